"""Checkpoints hold the whole state: a run that is saved and resumed is the run that was not."""

from __future__ import annotations

import copy
import pickle
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from exact import exact
from kinds import KINDS, WRAPPERS
from pytorch_metric_learning.losses import CrossBatchMemory, SupConLoss
from pytorch_metric_learning.miners import PairMarginMiner, TripletMarginMiner
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from pml_xbn import AXBNWrapper, XBNWrapper
from pml_xbn.losses import AdaptiveCrossBatchMemory

SUPPORT = Path(__file__).parents[1] / "support"
D, M = 4, 14
OPTIONS: dict[str, dict] = {
    "plain": {},
    "warmup": {"warmup": 4},
    "delay": {"delay": 4},
    "warmup and delay": {"warmup": 2, "delay": 4},
    "xbm*": {"batch_loss_weight": 0.5},
    "unit norm": {"normalize_memory": True},
    "skip": {"nonfinite": "skip"},
    "ignore": {"nonfinite": "ignore"},
    "float64": {"memory_dtype": torch.float64},
}
RUNS = {
    f"{name}, {option}": lambda kind=KINDS[name], options=options: kind.memory(SupConLoss(), D, M, **options)
    for name in WRAPPERS
    for option, options in OPTIONS.items()
}
RUNS |= {
    name: (lambda kind=KINDS[name]: kind.memory(SupConLoss(), D, M))
    for name in ("centre", "momentum", "absent stay")
}
RUNS |= {
    f"{name}, {miner.__name__}": (
        lambda kind=KINDS[name], miner=miner: kind.memory(SupConLoss(), D, M, miner())
    )
    for name in WRAPPERS
    for miner in (PairMarginMiner, TripletMarginMiner)
}


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_a_state_that_was_cast_along_with_a_model_computes_in_float64_again(dtype: torch.dtype) -> None:
    memory, twin = XBNWrapper(SupConLoss(), D, M), XBNWrapper(SupConLoss(), D, M)
    for number in range(6):
        step(memory, number)
    state = memory.state_dict()
    twin.load_state_dict({k: x.to(dtype) if x.is_floating_point() else x for k, x in state.items()})
    for number in range(6, 12):
        found, expected = step(twin, number), step(memory, number)
        torch.testing.assert_close(found, expected, rtol=0.1, atol=0.1)
    assert twin.queue.map.dtype == twin.queue.sums.dtype == torch.float64


def step(loss_fn: nn.Module, number: int) -> tuple[Tensor, Tensor, Tensor]:
    """Loss, gradient, and the memory after step ``number`` of a run that is the same every time."""
    generator = torch.Generator().manual_seed(number)
    embeddings = torch.randn(5, D, generator=generator) + number
    labels = torch.randint(0, 3, (5,), generator=generator)
    device = loss_fn.embedding_memory.device
    embeddings = embeddings.to(device).requires_grad_()
    loss = loss_fn(embeddings, labels.to(device))
    loss.backward()
    return loss.detach(), embeddings.grad, loss_fn.embedding_memory.clone()


def resumed_in_this_process(saved: str, results: str, device: str) -> None:
    """What the new process of the test below does."""
    torch.use_deterministic_algorithms(device != "cpu")
    states = torch.load(saved, map_location="cpu", weights_only=True)
    out = {}
    for name, state in states.items():
        loss_fn = RUNS[name]().to(device)
        loss_fn.load_state_dict(state)
        out[name] = [step(loss_fn, number) for number in range(5, 10)]
    torch.save(out, results)


@pytest.fixture(scope="module")
def resumed(tmp_path_factory: pytest.TempPathFactory, device: torch.device) -> dict[str, list]:
    """Steps 5 to 9 of every run, after steps 0 to 4 were saved and loaded by a new process."""
    folder = tmp_path_factory.mktemp("resume")
    states = {}
    for name, make in RUNS.items():
        loss_fn = make().to(device)
        for number in range(5):
            step(loss_fn, number)
        states[name] = loss_fn.state_dict()
    torch.save(states, folder / "saved.pt")
    code = (
        f"import sys; sys.path[:0] = {[str(Path(__file__).parent), str(SUPPORT)]!r}; import torch; "
        "torch.set_num_threads(1); from test_checkpoint import resumed_in_this_process as run; "
        f"run({str(folder / 'saved.pt')!r}, {str(folder / 'results.pt')!r}, {str(device)!r})"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)
    return torch.load(folder / "results.pt", weights_only=True)


@pytest.mark.usefixtures("deterministic")
@pytest.mark.parametrize("name", RUNS)
def test_resume_in_a_new_process_continues_bit_for_bit(
    name: str, resumed: dict[str, list], device: torch.device
) -> None:
    loss_fn = RUNS[name]().to(device)
    uninterrupted = [step(loss_fn, number) for number in range(10)][5:]
    for expected, result in zip(uninterrupted, resumed[name], strict=True):
        assert all(torch.equal(a, b) for a, b in zip(expected, result, strict=True))


@pytest.mark.parametrize("name", RUNS)
@pytest.mark.parametrize(
    "duplicate", [copy.deepcopy, lambda x: pickle.loads(pickle.dumps(x))], ids=["deepcopy", "pickle"]
)
def test_a_copy_goes_its_own_way(duplicate: Callable, name: str) -> None:
    loss_fn = RUNS[name]()
    for number in range(3):
        step(loss_fn, number)
    twin = duplicate(loss_fn)
    for number in range(3, 6):
        for a, b in zip(step(loss_fn, number), step(twin, number), strict=True):
            assert torch.equal(a, b)
    step(twin, 99)
    assert twin.num_calls == loss_fn.num_calls + 1
    assert not torch.equal(twin.embedding_memory, loss_fn.embedding_memory)


@pytest.mark.parametrize("kind", WRAPPERS)
def test_a_checkpoint_of_a_cpu_goes_on_upon_the_device_and_comes_back(
    kind: str, device: torch.device
) -> None:
    here, there, back = (KINDS[kind].memory(SupConLoss(), D, M) for _ in range(3))
    there.to(device)
    for number in range(5):
        step(here, number)
    there.load_state_dict(here.state_dict())
    assert there.embedding_memory.device.type == device.type
    for number in range(5, 10):
        for a, b in zip(step(there, number), step(here, number), strict=True):
            torch.testing.assert_close(a.cpu(), b, rtol=1e-3, atol=1e-3)
    back.load_state_dict(there.state_dict())
    assert torch.equal(back.embedding_memory, there.embedding_memory.cpu())
    for a, b in zip(step(back, 10), step(there, 10), strict=True):
        torch.testing.assert_close(a, b.cpu(), rtol=1e-3, atol=1e-3)


def add_one(memory: Tensor, *_: Tensor) -> Tensor:
    return memory + 1


def test_hooks_registered_after_unpickling_join_those_before(monkeypatch: pytest.MonkeyPatch) -> None:
    number = RemovableHandle.next_id
    loss_fn = AdaptiveCrossBatchMemory(SupConLoss(), D, M)
    loss_fn.register_memory_hook(add_one)
    pickled = pickle.dumps(loss_fn)
    monkeypatch.setattr(RemovableHandle, "next_id", number)  # as a new process may have it
    twin = pickle.loads(pickled)
    twin.register_memory_hook(add_one)
    for _ in range(2):
        twin(torch.zeros(1, D), torch.tensor([0]))
    assert torch.equal(twin.embedding_memory[0], torch.full((D,), 2.0))


@pytest.mark.parametrize("kind", WRAPPERS)
def test_a_memory_of_another_size_is_refused_by_both_numbers(kind: str) -> None:
    state = KINDS[kind].memory(SupConLoss(), D, M).state_dict()
    loss_fn = KINDS[kind].memory(SupConLoss(), D, 20)
    step(loss_fn, 0)
    before = exact(loss_fn)
    with pytest.raises(ValueError, match="memory_size=14, not 20"):
        loss_fn.load_state_dict(state)
    assert exact(loss_fn) == before
    with pytest.raises(ValueError, match="embedding_size=4, not 6"):
        KINDS[kind].memory(SupConLoss(), 6, M).load_state_dict(state)


@pytest.mark.parametrize("steps", [0, 1, 2, 3, 7])
@pytest.mark.parametrize("kind", WRAPPERS)
def test_pmls_checkpoint_loads_with_a_warning(kind: str, steps: int) -> None:
    pml = CrossBatchMemory(SupConLoss(), D, M)
    for number in range(steps):
        step(pml, number)
    loss_fn = KINDS[kind].memory(SupConLoss(), D, M)
    filled = min(5 * steps, M)
    with pytest.warns(UserWarning, match=f"took {filled} of {M} rows to be filled"):
        loss_fn.load_state_dict(pml.state_dict())
    assert loss_fn.num_rows == filled
    assert loss_fn.queue_idx == filled % M
    assert torch.equal(loss_fn.embedding_memory, pml.embedding_memory)
    assert torch.equal(loss_fn.label_memory, pml.label_memory)
    step(loss_fn, 100)
    assert loss_fn.num_rows == min(filled + 5, M)


def test_labels_of_pmls_checkpoint_become_int64() -> None:
    pml, ours = (make(SupConLoss(), D, M) for make in (CrossBatchMemory, XBNWrapper))
    pml(torch.randn(3, D), torch.arange(3, dtype=torch.uint8))  # PML's have the dtype of the last batch's
    with pytest.warns(UserWarning, match=f"took 3 of {M} rows"):
        ours.load_state_dict(pml.state_dict())
    assert ours.id_memory.tolist() == [-1] * M  # no sample, which 255 would be
    ours(torch.randn(2, D), torch.tensor([300, 301]))
    assert ours.label_memory[:5].tolist() == [0, 1, 2, 300, 301]
    assert ours.label_memory.dtype == torch.int64


def test_pmls_checkpoint_inside_a_model_loads_too() -> None:
    pml, ours = (
        nn.ModuleDict({"loss": make(SupConLoss(), D, M)}) for make in (CrossBatchMemory, AXBNWrapper)
    )
    step(pml["loss"], 0)
    with pytest.warns(UserWarning, match="took 5 of 14 rows"):
        ours.load_state_dict(pml.state_dict())
    assert ours["loss"].num_rows == 5


def test_what_is_not_strict_takes_what_there_is() -> None:
    """As in PML's class, though torch tells every module to be strict."""
    memory, taken = XBNWrapper(SupConLoss(), D, M), AdaptiveCrossBatchMemory(SupConLoss(), D, M)
    step(memory, 0)
    taken.load_state_dict(memory.state_dict(), strict=False)  # without the adapter's
    assert torch.equal(taken.embedding_memory, memory.embedding_memory)
    with pytest.raises(RuntimeError, match=r"Unexpected key.*adapter\._extra_state"):
        taken.load_state_dict(memory.state_dict())
    weights = {"net.weight": torch.ones(D, D), "net.bias": torch.ones(D)}
    model = nn.ModuleDict({"net": nn.Linear(D, D), "loss": memory})
    before = memory.embedding_memory.clone()
    missing = model.load_state_dict(weights, strict=False).missing_keys
    assert all(name.startswith("loss.") for name in missing)
    assert model["net"].weight.sum() == D * D
    assert torch.equal(memory.embedding_memory, before)
    with pytest.raises(RuntimeError, match=r"Missing key.*loss\."):
        model.load_state_dict(weights)


def test_a_checkpoint_that_lacks_a_parameter_is_still_refused() -> None:
    class Learned(SupConLoss):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.ones(1))

    state = CrossBatchMemory(SupConLoss(), D, M).state_dict()
    with (
        pytest.warns(UserWarning, match="queue position"),
        pytest.raises(RuntimeError, match=r"loss\.weight"),
    ):
        XBNWrapper(Learned(), D, M).load_state_dict(state)
