"""The state of a memory is plain tensors, which every way of saving takes and gives back whole."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from every_memory import DTYPES, EVERY, D, M, are_equal, assert_same_runs, batch, state, step
from pytorch_metric_learning.losses import CrossBatchMemory, SupConLoss
from torch import Tensor, nn

from pml_xbn.losses import AdaptiveCrossBatchMemory


def model_with(memory: nn.Module) -> nn.ModuleDict:
    return nn.ModuleDict({"trunk": nn.Linear(2, 2), "loss": memory})


def trained(kind: str, num_steps: int = 4, **options: Any) -> AdaptiveCrossBatchMemory:
    memory = EVERY[kind](**options)
    for number in range(num_steps):
        step(memory, number)
    return memory


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("kind", EVERY)
def test_the_state_has_its_entries_and_their_shapes_from_the_start(kind: str, dtype: torch.dtype) -> None:
    memory = EVERY[kind](memory_dtype=dtype)

    def layout() -> dict[str, Any]:
        return {name: (value.shape, value.dtype) for name, value in memory.state_dict().items()}

    assert all(isinstance(value, Tensor) for value in memory.state_dict().values())
    fresh = layout()
    for number in range(30):
        step(memory, number)
        if number in (0, 2, 3, 29):
            assert layout() == fresh
    memory.reset_queue()
    assert layout() == fresh


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("kind", EVERY)
def test_a_state_that_has_been_moved_resumes_bit_for_bit(kind: str, dtype: torch.dtype) -> None:
    memory, resumed = trained(kind, memory_dtype=dtype), EVERY[kind](memory_dtype=dtype)
    resumed.load_state_dict({name: value.cpu() for name, value in memory.state_dict().items()})
    assert_same_runs(memory, resumed)


@pytest.mark.parametrize("kind", EVERY)
def test_safetensors_save_and_load_a_model_with_a_memory(kind: str, tmp_path: Path) -> None:
    safetensors = pytest.importorskip("safetensors.torch")
    first, second, third = (model_with(memory) for memory in (trained(kind), EVERY[kind](), EVERY[kind]()))
    safetensors.save_model(first, str(tmp_path / "model"))
    safetensors.load_model(second, str(tmp_path / "model"))
    safetensors.save_file(first.state_dict(), str(tmp_path / "file"))
    third.load_state_dict(safetensors.load_file(str(tmp_path / "file")))
    assert are_equal(state(first), state(second))
    assert are_equal(state(first), state(third))
    assert_same_runs(first["loss"], second["loss"])


@pytest.mark.parametrize("is_in_model", [True, False])
@pytest.mark.parametrize("kind", ["xbn", "axbn", "per class"])
def test_accelerate_saves_and_loads_it(kind: str, is_in_model: bool, tmp_path: Path) -> None:
    accelerate = pytest.importorskip("accelerate")

    def prepared(memory: nn.Module) -> Any:
        accelerator = accelerate.Accelerator(cpu=True)
        if is_in_model:
            accelerator.prepare(model_with(memory))
        else:
            accelerator.register_for_checkpointing(memory)
        return accelerator

    memory, resumed = trained(kind), EVERY[kind]()
    prepared(memory).save_state(str(tmp_path))
    prepared(resumed).load_state(str(tmp_path))
    assert_same_runs(memory, resumed)


@pytest.mark.filterwarnings("ignore")  # torch warns of its own ways, in other words with every version
@pytest.mark.parametrize("kind", EVERY)
def test_distributed_checkpoint_resumes_bit_for_bit(kind: str, tmp_path: Path) -> None:
    dcp = pytest.importorskip("torch.distributed.checkpoint")
    save = getattr(dcp, "save", None) or dcp.save_state_dict
    load = getattr(dcp, "load", None) or dcp.load_state_dict

    def alone(function: Callable) -> dict[str, bool]:
        return {"no_dist": True} if "no_dist" in inspect.signature(function).parameters else {}

    memory, resumed = trained(kind), EVERY[kind]()
    save(memory.state_dict(), storage_writer=dcp.FileSystemWriter(tmp_path), **alone(save))
    # It writes into the tensors of a state, which is none of the memory's business.
    before, own_state = state(resumed), resumed.state_dict()
    load(own_state, storage_reader=dcp.FileSystemReader(tmp_path), **alone(load))
    assert are_equal(state(resumed), before)
    resumed.load_state_dict(own_state)
    assert_same_runs(memory, resumed)


@pytest.mark.parametrize("options", [{}, {"full_state_dict": True, "cpu_offload": True}])
@pytest.mark.parametrize("kind", ["plain", "axbn"])
def test_states_that_pytorch_gathers_resume_bit_for_bit(kind: str, options: dict[str, bool]) -> None:
    """As after FSDP."""
    tools = pytest.importorskip("torch.distributed.checkpoint.state_dict")
    first, second = model_with(trained(kind)), model_with(EVERY[kind]())
    options = tools.StateDictOptions(**options)
    tools.set_model_state_dict(second, tools.get_model_state_dict(first, options=options), options=options)
    assert_same_runs(first["loss"], second["loss"])


@pytest.mark.parametrize("kind", ["plain", "axbn", "per class"])
def test_a_memory_that_is_built_on_the_meta_device_is_loaded_or_begins_empty(kind: str) -> None:
    memory = trained(kind)
    with torch.device("meta"):
        loaded, empty = EVERY[kind](), EVERY[kind]()
    loaded.load_state_dict(memory.state_dict(), assign=True)
    assert_same_runs(loaded, memory)
    assert_same_runs(empty.to_empty(device="cpu"), EVERY[kind]())
    assert memory.to("meta").embedding_memory.is_meta


class Annotated(Tensor):
    """As libraries have them that note where a batch comes from."""


@pytest.mark.parametrize("kind", EVERY)
def test_a_state_holds_no_subclass_of_a_batch(kind: str) -> None:
    memory, twin = trained(kind), trained(kind)
    embeddings, labels = (x.as_subclass(Annotated) for x in batch(4))
    memory(embeddings, labels)
    step(twin, 4)
    assert {type(value) for value in memory.state_dict().values()} == {Tensor}
    assert are_equal(state(memory), state(twin))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("saved_dtype", DTYPES, ids=str)
def test_a_state_of_another_dtype_is_converted(saved_dtype: torch.dtype, dtype: torch.dtype) -> None:
    memory, resumed = (
        AdaptiveCrossBatchMemory(SupConLoss(), D, M, memory_dtype=x) for x in (saved_dtype, dtype)
    )
    memory.fill_memory(1e5 + 0.1 * torch.randn(10, D), torch.arange(10) % 3)  # beyond the range of float16
    resumed.load_state_dict(memory.state_dict())
    # Rounded in half precision are deviations from the mean; the rows themselves are read in float32.
    off = (resumed.embedding_memory - memory.embedding_memory)[:10].abs().max().item()
    assert off < max(4 * torch.finfo(dtype).eps, 1e5 * 2.0**-23)
    assert torch.equal(resumed.label_memory, memory.label_memory)
    step(resumed, 5)


CONVERSIONS = {
    "cpu": lambda memory: memory.cpu(),
    "float": lambda memory: memory.float(),
    "half": lambda memory: memory.half(),
    "bfloat16": lambda memory: memory.bfloat16(),
    "double": lambda memory: memory.double(),
    "to float16": lambda memory: memory.to(torch.float16),
    "to cpu": lambda memory: memory.to("cpu"),
    "state, cpu": lambda memory: (memory.state_dict(), memory.cpu()),
    "cpu, state, double": lambda memory: (memory.cpu(), memory.state_dict(), memory.double()),
}


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32], ids=str)
@pytest.mark.parametrize("kind", EVERY)
@pytest.mark.parametrize("how", CONVERSIONS)
def test_moving_and_converting_a_memory_changes_nothing(how: str, kind: str, dtype: torch.dtype) -> None:
    memory, twin = EVERY[kind](memory_dtype=dtype), EVERY[kind](memory_dtype=dtype)
    for number in range(7):
        for a, b in zip(step(memory, number), step(twin, number), strict=True):
            assert torch.equal(a, b)
        rows = memory.queue.contents.rows.stored
        CONVERSIONS[how](memory)
        assert memory.queue.contents.rows.stored is rows  # a copy would take as much memory again
        assert are_equal(state(memory), state(twin))


@pytest.mark.parametrize("how", CONVERSIONS)
def test_a_state_stays_what_it_was_when_the_memory_moves_and_goes_on(how: str) -> None:
    memory = trained("xbn")
    saved = memory.state_dict()
    before = {name: value.clone() for name, value in saved.items()}
    CONVERSIONS[how](memory)
    step(memory, 4)
    assert are_equal(saved, before)


@pytest.mark.parametrize("is_strict", [True, False])
@pytest.mark.parametrize("is_nested", [True, False])
@pytest.mark.parametrize("own", EVERY)
@pytest.mark.parametrize("other", EVERY)
def test_a_checkpoint_of_another_class_loads_or_is_refused(
    other: str, own: str, is_nested: bool, is_strict: bool
) -> None:
    given, memory = trained(other), trained(own, 2)
    before = state(memory)
    wrap: Callable = (lambda x: nn.ModuleDict({"loss": x})) if is_nested else (lambda x: x)
    error = ""
    try:
        wrap(memory).load_state_dict(wrap(given).state_dict(), strict=is_strict)
    except (RuntimeError, ValueError) as raised:
        error = str(raised)
    if error:
        assert re.search(r"(Missing|Unexpected) key\(s\)|build the memory as it was built then", error)
    else:
        after, theirs = state(memory), state(given)
        assert all(torch.equal(after[name], theirs.get(name, before[name])) for name in after)
        assert is_strict <= (after.keys() == theirs.keys())
    step(memory, 9)
    assert torch.isfinite(memory.embedding_memory).all()


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("kind", EVERY)
def test_pmls_checkpoint_loads_into_every_dtype(kind: str, dtype: torch.dtype) -> None:
    pml = CrossBatchMemory(SupConLoss(), D, M)
    for number in range(2):
        step(pml, number)
    memory = EVERY[kind](memory_dtype=dtype)
    with pytest.warns(UserWarning, match=f"took 10 of {M} rows to be filled"):
        memory.load_state_dict(pml.state_dict())
    expected, atol = pml.embedding_memory.to(memory.embedding_memory), 4 * torch.finfo(dtype).eps
    torch.testing.assert_close(memory.embedding_memory, expected, rtol=0, atol=atol)
    for number in range(2, 5):
        step(memory, number)
    assert torch.isfinite(memory.embedding_memory).all()
