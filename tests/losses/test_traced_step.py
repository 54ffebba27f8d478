"""A step that is traced, compiled, or not waited for is the step itself."""

from __future__ import annotations

import copy
import sys
from collections.abc import Callable
from typing import Any

import pytest
import torch
from kinds import KINDS
from pytorch_metric_learning import losses, miners
from torch import Tensor, nn
from torch.fx.experimental.proxy_tensor import make_fx

from pml_xbn import SuperClassXBN, XBNWrapper
from pml_xbn.losses import AdaptiveCrossBatchMemory

B, D, M = 12, 6, 70
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


def batch(step: int) -> tuple[Tensor, Tensor]:
    """A batch of a model that drifts, with dead units, in which few triplets lie near a margin."""
    draw = torch.Generator().manual_seed(step)
    labels = torch.randint(0, 5, (B,), generator=draw)
    embeddings = torch.randn(B, D, generator=draw) * (1 + step / 100) + nn.functional.one_hot(labels, D) * 3
    return embeddings + step / 50, labels


def warmed(
    kind: str, loss: str = "SupCon", miner: str = "no miner", **options: Any
) -> AdaptiveCrossBatchMemory:
    memory = KINDS[kind].memory(LOSSES[loss](), D, M, MINERS[miner](), **options)
    for step in range(2):
        memory(*batch(step))
    return memory


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
    assert torch.equal(memory.label_memory, twin.label_memory)
    torch.testing.assert_close(memory.embedding_memory, twin.embedding_memory, rtol=1e-4, atol=1e-4)


def assert_runs_alike(
    run: Callable[..., tuple[Tensor, Tensor]],
    memory: AdaptiveCrossBatchMemory,
    twin: AdaptiveCrossBatchMemory,
    steps: range,
) -> None:
    for step in steps:
        found = run(*batch(step))
        for a, b in zip(found, value_and_gradient(twin, *batch(step)), strict=True):
            # A triplet within rounding of the margin is one more or less.
            torch.testing.assert_close(a, b, rtol=3e-3, atol=1e-4)
    assert_same(memory, twin)


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("kind", KINDS)
def test_a_trace_that_is_replayed_is_the_step(kind: str, loss: str) -> None:
    """A replay does the same operations on the same tensors, as a CUDA graph does, for ten wrap-arounds."""
    memory = warmed(
        kind, loss, list(MINERS)[(list(KINDS).index(kind) + list(LOSSES).index(loss)) % len(MINERS)]
    )
    twin = copy.deepcopy(memory)
    replay = make_fx(lambda *given: value_and_gradient(memory, *given))(*batch(2))  # a step of its own
    twin(*batch(2))
    assert_runs_alike(replay, memory, twin, range(3, 60))
    memory(*batch(60)), twin(*batch(60))  # and steps that are not traced go on from there
    assert_same(memory, twin)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_a_thousand_replays_are_a_thousand_steps(dtype: torch.dtype) -> None:
    """A look at the memory stores rows anew that have drifted, as their spread shrinks."""
    memory = warmed("xbn", memory_dtype=dtype)
    twin = copy.deepcopy(memory)
    replay = make_fx(lambda *given: value_and_gradient(memory, *given))(*batch(2))
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
    memory = warmed("xbn", batch_loss_weight=0.5)
    with pytest.raises(
        RuntimeError, match=r"XBNWrapper with warmup, batch_loss_weight.* cannot be part of a graph"
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
    kind: str, loss: str, miner: str, dtype: torch.dtype
) -> None:
    torch.compiler.reset()
    graphs: list[Any] = []

    def backend(graph: torch.fx.GraphModule, _: Any) -> Callable[..., Any]:
        graphs.append(graph)
        return graph.forward

    memory = KINDS[kind].memory(LOSSES[loss](), D, M, MINERS[miner](), memory_dtype=dtype)
    twin = copy.deepcopy(memory)
    compiled = torch.compile(memory, fullgraph=True, backend=backend)
    tight = 3e-3 if dtype == torch.float32 else 5e-2
    for step in range(30):
        found = value_and_gradient(compiled, *batch(step))
        for a, b in zip(found, value_and_gradient(twin, *batch(step)), strict=True):
            torch.testing.assert_close(a, b, rtol=tight, atol=tight)
        if step == 20:
            state = copy.deepcopy(memory.state_dict())
            memory.load_state_dict(state)
    assert memory.queue_idx == twin.queue_idx
    assert len(graphs) <= 3
    torch.compiler.reset()


@pytest.fixture
def waits_for_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """A CPU that is treated as a GPU: the host reads no number of a tensor that a step computes."""
    for name, module in list(sys.modules.items()):
        if name.startswith("pml_xbn") and hasattr(module, "can_read"):
            monkeypatch.setattr(module, "can_read", lambda _: False)


@pytest.mark.usefixtures("waits_for_nothing")
@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("kind", KINDS)
def test_a_step_that_waits_for_no_device_is_the_step(
    kind: str, loss: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    memory = KINDS[kind].memory(LOSSES[loss](), D, M)
    twin = copy.deepcopy(memory)
    for step in range(40):
        found = value_and_gradient(memory, *batch(step))
        with monkeypatch.context() as patch:
            for name, module in list(sys.modules.items()):
                if name.startswith("pml_xbn") and hasattr(module, "can_read"):
                    patch.setattr(module, "can_read", lambda values: True)
            expected = value_and_gradient(twin, *batch(step))
        for a, b in zip(found, expected, strict=True):
            torch.testing.assert_close(a, b, rtol=3e-3, atol=1e-4)
    assert_same(memory, twin)


NAN = (torch.full((B, D), torch.nan), torch.zeros(B, dtype=torch.int64))


@pytest.mark.parametrize("way", ["replayed", "not waited for"])
@pytest.mark.parametrize("kind", KINDS)
def test_a_batch_of_nan_is_left_out_and_raised_later(
    kind: str, way: str, request: pytest.FixtureRequest
) -> None:
    memory = warmed(kind)
    if way == "replayed":
        call = make_fx(lambda *given: memory(*given))(*batch(2))
    else:
        request.getfixturevalue("waits_for_nothing")
        call = memory
    before = memory.state_dict()
    assert call(*NAN).isnan()
    with pytest.raises(ValueError, match="an earlier batch had NaN or inf"):
        memory.state_dict()
    after = memory.state_dict()  # raised once
    for name, value in before.items():
        assert torch.equal(value, after[name]), name


@pytest.mark.usefixtures("waits_for_nothing")
def test_the_next_call_raises_and_skip_does_not() -> None:
    memory = warmed("xbn")
    memory(*NAN)
    with pytest.raises(ValueError, match="earlier batch"):
        memory(*batch(2))
    memory(*batch(2))
    skips = warmed("xbn", nonfinite="skip")
    for given in (NAN, batch(2)):
        skips(*given)
    assert skips.num_calls == 3


@pytest.mark.usefixtures("waits_for_nothing")
def test_raise_at_once_raises_in_the_call() -> None:
    memory = warmed("xbn", nonfinite="raise_at_once")
    with pytest.raises(ValueError, match=r"embeddings has NaN or inf in rows \[0, 1"):
        memory(*NAN)


@pytest.mark.usefixtures("waits_for_nothing")
@pytest.mark.parametrize("nonfinite", ["raise", "skip", "ignore"])
def test_labels_without_a_superclass_are_raised_whatever_happens_to_numbers(nonfinite: str) -> None:
    memory = SuperClassXBN(losses.SupConLoss(), D, M, superclasses=[0, 0, 1, 1, 1], nonfinite=nonfinite)
    for step in range(2):
        memory(*batch(step))
    embeddings, labels = batch(2)
    memory(embeddings, labels.index_fill(0, torch.tensor([3]), 9))
    with pytest.raises(ValueError, match="without a superclass"):
        memory(*batch(3))
    assert memory.num_calls == 2


@pytest.mark.usefixtures("waits_for_nothing")
def test_a_failing_step_on_a_device_leaves_everything_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    memory = XBNWrapper(losses.SupConLoss(), D, M, momentum=0.5)
    for step in range(4):
        memory(*batch(step))
    before = memory.state_dict()

    def fails(*_: Any) -> Tensor:
        raise MemoryError

    with monkeypatch.context() as patch:
        patch.setattr(sys.modules["pml_xbn.losses._step"], "compare", fails)
        with pytest.raises(MemoryError):
            memory(*batch(9))
    for name, value in memory.state_dict().items():
        assert torch.equal(value, before[name]), name
