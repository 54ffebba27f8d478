"""A step that is traced, captured, compiled, or not waited for is the step itself.

What a CUDA graph does on a GPU, ``make_fx`` does on a CPU: a trace of the operations, which is replayed.
"""

from __future__ import annotations

import copy
import pickle
import sys
import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch
from as_on_a_gpu import read_as
from kinds import KINDS
from pytorch_metric_learning import losses, miners
from torch import Tensor, nn
from torch.fx.experimental.proxy_tensor import make_fx

from pml_xbn import SuperClassXBN, XBNWrapper
from pml_xbn.losses import AdaptiveCrossBatchMemory

B, D, M = 12, 6, 70
CPU = torch.device("cpu")
Step = Callable[[Tensor, Tensor], tuple[Tensor, ...]]
LOSSES: dict[str, Callable[[], nn.Module]] = {
    "SupCon": losses.SupConLoss,
    "contrastive": losses.ContrastiveLoss,
    "MultiSimilarity": losses.MultiSimilarityLoss,
    "triplet": losses.TripletMarginLoss,
}
MINERS: dict[str, Callable[[], Any]] = {
    "no miner": lambda: None,
    "pair margin": miners.PairMarginMiner,
    "multi-similarity": miners.MultiSimilarityMiner,
    "batch hard": miners.BatchHardMiner,
}
NEEDS_TORCH = pytest.mark.skipif(
    tuple(map(int, torch.__version__.split(".")[:2])) < (2, 6),
    reason="older Dynamo lacks what the step needs",
)


def batch(step: int, device: torch.device = CPU) -> tuple[Tensor, Tensor]:
    """A batch of a model that drifts, with dead units, in which few triplets lie near a margin."""
    draw = torch.Generator().manual_seed(step)
    labels = torch.randint(0, 5, (B,), generator=draw)
    embeddings = torch.randn(B, D, generator=draw) * (1 + step / 100) + nn.functional.one_hot(labels, D) * 3
    return (embeddings + step / 50).to(device), labels.to(device)


def warmed(
    kind: str,
    loss: str = "SupCon",
    miner: str = "no miner",
    device: torch.device = CPU,
    **options: Any,
) -> AdaptiveCrossBatchMemory:
    memory = KINDS[kind].memory(LOSSES[loss](), D, M, MINERS[miner](), **options).to(device)
    for step in range(2):
        memory(*batch(step, device))
    return memory


def replayed(call: Step, given: tuple[Tensor, Tensor]) -> Step:
    """Returns a graph of the call, which it has replayed once, with what it was given."""
    if given[0].device.type == "cpu":
        return torch.no_grad()(make_fx(call)(*given))  # tracing it computes it
    inputs, graph = tuple(x.clone() for x in given), torch.cuda.CUDAGraph()
    torch.cuda.synchronize()
    with torch.cuda.graph(graph):
        results = call(*inputs)

    def replay(*given: Tensor) -> tuple[Tensor, ...]:
        for own, new in zip(inputs, given, strict=True):
            own.detach().copy_(new)
        graph.replay()
        return tuple(x.clone() for x in results)

    replay(*given)
    return replay


def value_and_gradient(
    call: Callable[..., Tensor], embeddings: Tensor, labels: Tensor
) -> tuple[Tensor, Tensor]:
    embeddings = embeddings.requires_grad_()
    loss = call(embeddings, labels)
    (gradient,) = torch.autograd.grad(loss, embeddings)
    return loss.detach(), gradient


def assert_same(memory: AdaptiveCrossBatchMemory, twin: AdaptiveCrossBatchMemory) -> None:
    for name in ("num_rows", "num_calls", "queue_idx"):
        assert getattr(memory, name) == getattr(twin, name), name
    assert torch.equal(memory.label_memory.cpu(), twin.label_memory.cpu())
    rows = memory.embedding_memory.cpu(), twin.embedding_memory.cpu()
    torch.testing.assert_close(*rows, rtol=1e-4, atol=1e-4)


def assert_runs_alike(
    run: Callable[..., tuple[Tensor, Tensor]],
    memory: AdaptiveCrossBatchMemory,
    twin: AdaptiveCrossBatchMemory,
    steps: range,
    device: torch.device,
) -> None:
    for step in steps:
        found = run(*batch(step, device))
        for a, b in zip(found, value_and_gradient(twin, *batch(step, device)), strict=True):
            # A triplet within rounding of the margin is one more or less.
            torch.testing.assert_close(a, b, rtol=3e-3, atol=1e-4)
    assert_same(memory, twin)


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("kind", KINDS)
def test_a_trace_that_is_replayed_is_the_step(kind: str, loss: str, device: torch.device) -> None:
    """A replay does the same operations on the same tensors, for ten wrap-arounds."""
    miner = list(MINERS)[(list(KINDS).index(kind) + list(LOSSES).index(loss)) % len(MINERS)]
    own_loss = 0.5 if kind in ("xbn", "super-class") else 0.0
    memory = warmed(kind, loss, miner, device, batch_loss_weight=own_loss)
    twin = copy.deepcopy(memory)
    replay = replayed(lambda *given: value_and_gradient(memory, *given), batch(2, device))
    twin(*batch(2, device))
    assert_runs_alike(replay, memory, twin, range(3, 60), device)
    memory(*batch(60, device)), twin(*batch(60, device))  # and steps that are not traced go on from there
    assert_same(memory, twin)


@pytest.mark.parametrize("kind", ["xbn", "axbn", "per class", "super-class"])
def test_a_whole_training_step_is_replayed(kind: str, device: torch.device) -> None:
    """A model, the memory, the backward pass and the optimizer."""
    memory = warmed(kind, device=device)
    twin = copy.deepcopy(memory)
    weights = [torch.eye(D, device=device).requires_grad_() for _ in range(2)]

    def train(memory: nn.Module, weight: Tensor, images: Tensor, labels: Tensor) -> tuple[Tensor]:
        loss = memory(images @ weight, labels)
        (gradient,) = torch.autograd.grad(loss, weight)
        with torch.no_grad():
            weight -= 0.01 * gradient
        return (loss.detach(),)

    replay = replayed(lambda *given: train(memory, weights[0], *given), batch(2, device))
    train(twin, weights[1], *batch(2, device))
    for step in range(3, 40):
        found, expected = replay(*batch(step, device)), train(twin, weights[1], *batch(step, device))
        torch.testing.assert_close(found, expected, rtol=3e-3, atol=1e-4)
    torch.testing.assert_close(*weights, rtol=1e-3, atol=1e-4)
    assert not torch.allclose(weights[0], torch.eye(D, device=device), atol=1e-2)
    assert_same(memory, twin)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_a_thousand_replays_are_a_thousand_steps(dtype: torch.dtype) -> None:
    """A look at the memory stores rows anew that have drifted, as their spread shrinks."""
    memory = warmed("xbn", memory_dtype=dtype)
    twin = copy.deepcopy(memory)
    replay = replayed(lambda *given: value_and_gradient(memory, *given), batch(2))
    twin(*batch(2))
    for step in range(3, 1003):
        found, expected = replay(*batch(step)), value_and_gradient(twin, *batch(step))
        for a, b in zip(found, expected, strict=True):
            torch.testing.assert_close(a, b, rtol=2e-2, atol=1e-2)
        if step % 100 == 0:  # as at the end of an epoch
            memory.state_dict()
            if dtype == torch.float32:
                torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-4)
    assert memory.queue_idx == twin.queue_idx


def test_what_reads_a_number_cannot_be_traced() -> None:
    memory = warmed("xbn", collect_stats=True)
    with pytest.raises(
        RuntimeError, match=r"XBNWrapper that collects statistics.* cannot be part of a graph"
    ):
        make_fx(lambda *given: memory(*given))(*batch(2))


@NEEDS_TORCH
@pytest.mark.filterwarnings("ignore")  # torch's own, of what it compiles
@pytest.mark.parametrize(
    ("kind", "loss", "miner", "dtype"),
    [
        ("xbn", "SupCon", "no miner", torch.float32),
        ("xbn", "MultiSimilarity", "multi-similarity", torch.bfloat16),
        ("axbn", "contrastive", "pair margin", torch.float32),
        ("per class", "SupCon", "no miner", torch.float32),
        ("plain", "triplet", "no miner", torch.float32),
    ],
)
def test_compiled_whole_it_is_the_step_in_three_graphs(
    kind: str, loss: str, miner: str, dtype: torch.dtype, device: torch.device
) -> None:
    torch.compiler.reset()
    graphs: list[Any] = []

    def backend(graph: torch.fx.GraphModule, _: Any) -> Callable[..., Any]:
        graphs.append(graph)
        return graph.forward

    memory = KINDS[kind].memory(LOSSES[loss](), D, M, MINERS[miner](), memory_dtype=dtype).to(device)
    twin = copy.deepcopy(memory)
    compiled = torch.compile(memory, fullgraph=True, backend=backend)
    tight = 3e-3 if dtype == torch.float32 else 5e-2
    for step in range(30):
        found = value_and_gradient(compiled, *batch(step, device))
        for a, b in zip(found, value_and_gradient(twin, *batch(step, device)), strict=True):
            torch.testing.assert_close(a, b, rtol=tight, atol=tight)
        if step == 20:
            state = copy.deepcopy(memory.state_dict())
            memory.load_state_dict(state)
    assert memory.queue_idx == twin.queue_idx
    assert len(graphs) <= 3
    torch.compiler.reset()


@pytest.mark.filterwarnings("ignore")  # torch's own, of what it compiles
def test_compiled_to_kernels_of_a_gpu_it_is_the_step(device: torch.device) -> None:
    if device.type == "cpu":
        pytest.skip("compiling for a CPU takes a compiler and half a minute, and is no other than above")
    torch.compiler.reset()
    memory = KINDS["xbn"].memory(losses.SupConLoss(), D, M).to(device)
    twin = copy.deepcopy(memory)
    compiled = torch.compile(memory, fullgraph=True)
    assert_runs_alike(lambda *given: value_and_gradient(compiled, *given), memory, twin, range(30), device)


@pytest.fixture
def waits_for_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """A CPU that is treated as a GPU: the host reads no number of a tensor that a step computes."""
    read_as(monkeypatch, lambda _: False)


def wait_for(device: torch.device) -> None:
    """So that the host knows what the device has found."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


@pytest.mark.usefixtures("waits_for_nothing")
@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("kind", KINDS)
def test_a_step_that_waits_for_no_device_is_the_step_of_a_cpu(
    kind: str, loss: str, monkeypatch: pytest.MonkeyPatch, device: torch.device
) -> None:
    twin = KINDS[kind].memory(LOSSES[loss](), D, M)
    memory = copy.deepcopy(twin).to(device)
    for step in range(40):
        found = value_and_gradient(memory, *batch(step, device))
        with monkeypatch.context() as patch:
            read_as(patch, lambda _: True)
            expected = value_and_gradient(twin, *batch(step))
        for a, b in zip(found, expected, strict=True):
            torch.testing.assert_close(a.cpu(), b, rtol=3e-3, atol=1e-4)
    assert_same(memory, twin)


def of_nan(device: torch.device) -> tuple[Tensor, Tensor]:
    return torch.full((B, D), torch.nan, device=device), torch.zeros(B, dtype=torch.int64, device=device)


@pytest.mark.parametrize("way", ["replayed", "not waited for"])
@pytest.mark.parametrize("kind", KINDS)
def test_a_batch_of_nan_is_left_out_and_raised_later(
    kind: str, way: str, request: pytest.FixtureRequest, device: torch.device
) -> None:
    memory = warmed(kind, device=device)
    if way == "replayed":
        call = replayed(lambda *given: (memory(*given).detach(),), batch(2, device))
    else:
        request.getfixturevalue("waits_for_nothing")
        call = lambda *given: (memory(*given),)  # noqa: E731
    before = {name: value.clone() for name, value in memory.state_dict().items()}
    (loss,) = call(*of_nan(device))
    assert loss.isnan()
    with pytest.raises(ValueError, match="an earlier batch had NaN or inf"):
        memory.state_dict()
    after = memory.state_dict()  # raised once
    for name, value in before.items():
        assert torch.equal(value, after[name]), name


def test_rows_are_read_anew_after_a_replay(device: torch.device) -> None:
    """Which runs no Python that would say that it has stored rows."""
    memory = warmed("xbn", device=device)
    replay = replayed(lambda *given: (memory(*given).detach(),), batch(2, device))
    rows = memory.embedding_memory
    place = memory.queue_idx
    replay(*batch(3, device))
    torch.testing.assert_close(memory.embedding_memory[place : place + B], batch(3, device)[0])
    rows[0] = 7.0  # of those that were read before; nobody looks at them
    assert not (memory.embedding_memory == 7.0).any()
    rows = memory.embedding_memory
    replay(*batch(4, device))
    rows[0] = 7.0
    with pytest.raises(RuntimeError, match="read embedding_memory anew"):
        memory.state_dict()
    rows = memory.embedding_memory
    rows[0] = 7.0
    assert (memory.embedding_memory[0] == 7.0).all()


@pytest.mark.usefixtures("waits_for_nothing")
def test_what_a_move_or_a_copy_takes_along_is_still_told(device: torch.device) -> None:
    for duplicate in (
        copy.deepcopy,
        lambda memory: pickle.loads(pickle.dumps(memory)),
        lambda memory: memory,
    ):
        memory = warmed("xbn", device=device)
        memory(*of_nan(device))
        wait_for(device)
        memory.queue.findings._is_copied = (
            memory.queue.findings._is_copied or threading.Lock()
        )  # as no event can
        other = duplicate(memory)
        other.queue._move(torch.device("cpu"))
        with pytest.raises(ValueError, match="an earlier batch had NaN or inf"):
            other.state_dict()


@pytest.mark.usefixtures("waits_for_nothing")
@pytest.mark.parametrize("kind", KINDS)
def test_a_state_that_was_loaded_in_inference_mode_can_be_trained_with(
    kind: str, device: torch.device
) -> None:
    memory, other = warmed(kind, device=device), warmed(kind, device=device)
    with torch.inference_mode():
        memory.load_state_dict(other.state_dict())
    torch.testing.assert_close(memory(*batch(2, device)), other(*batch(2, device)))


@pytest.mark.usefixtures("waits_for_nothing")
def test_the_next_call_raises_and_skip_does_not(device: torch.device) -> None:
    memory = warmed("xbn", device=device)
    memory(*of_nan(device))
    wait_for(device)
    with pytest.raises(ValueError, match="earlier batch"):
        memory(*batch(2, device))
    memory(*batch(2, device))
    skips = warmed("xbn", device=device, nonfinite="skip")
    for given in (of_nan(device), batch(2, device)):
        skips(*given)
        wait_for(device)
    assert skips.num_calls == 3


@pytest.mark.usefixtures("waits_for_nothing")
def test_raise_at_once_raises_in_the_call(device: torch.device) -> None:
    memory = warmed("xbn", device=device, nonfinite="raise_at_once")
    with pytest.raises(ValueError, match=r"embeddings has NaN or inf in rows \[0, 1"):
        memory(*of_nan(device))


@pytest.mark.usefixtures("waits_for_nothing")
@pytest.mark.parametrize("nonfinite", ["raise", "skip", "ignore"])
def test_labels_without_a_superclass_are_raised_whatever_happens_to_numbers(
    nonfinite: str, device: torch.device
) -> None:
    memory = SuperClassXBN(losses.SupConLoss(), D, M, superclasses=[0, 0, 1, 1, 1], nonfinite=nonfinite)
    memory.to(device)
    for step in range(2):
        memory(*batch(step, device))
    embeddings, labels = batch(2, device)
    labels[3] = 9
    memory(embeddings, labels)
    wait_for(device)
    with pytest.raises(ValueError, match="without a superclass"):
        memory(*batch(3, device))
    assert memory.num_calls == 2


@pytest.mark.usefixtures("waits_for_nothing")
def test_two_refusals_of_one_batch_are_both_told(device: torch.device) -> None:
    memory = SuperClassXBN(losses.SupConLoss(), D, M, superclasses=[0, 0, 1, 1, 1]).to(device)
    embeddings, labels = batch(2, device)
    labels[3], embeddings[0, 0] = 9, torch.nan
    memory(embeddings, labels)
    wait_for(device)
    with pytest.raises(ValueError, match=r"without a superclass.*had NaN or inf"):
        memory.state_dict()


@pytest.mark.usefixtures("waits_for_nothing")
def test_a_failing_step_on_a_device_leaves_everything_as_it_was(
    monkeypatch: pytest.MonkeyPatch, device: torch.device
) -> None:
    memory = XBNWrapper(losses.SupConLoss(), D, M, momentum=0.5).to(device)
    for step in range(4):
        memory(*batch(step, device))
    before = {name: value.clone() for name, value in memory.state_dict().items()}

    def fails(*_: Any) -> Tensor:
        raise MemoryError

    with monkeypatch.context() as patch:
        patch.setattr(sys.modules["pml_xbn.losses._step"], "compare", fails)
        with pytest.raises(MemoryError):
            memory(*batch(9, device))
    for name, value in memory.state_dict().items():
        assert torch.equal(value, before[name]), name


@NEEDS_TORCH
def test_what_a_hook_traces_within_a_step_reads_no_number() -> None:
    other, traced = AdaptiveCrossBatchMemory(losses.SupConLoss(), D, M), []

    def fill(rows: Tensor, labels: Tensor) -> Tensor:
        other.fill_memory(rows, labels)
        return rows + 0

    def hook(*_: Tensor) -> None:
        traced.append(make_fx(fill)(torch.randn(B, D), torch.arange(B)))

    memory = AdaptiveCrossBatchMemory(losses.SupConLoss(), D, M)
    memory.register_memory_hook(hook)
    memory(torch.randn(B, D, requires_grad=True), torch.arange(B))
    traced[0](torch.randn(B, D), torch.arange(B))
    assert other.num_rows == 2 * B
