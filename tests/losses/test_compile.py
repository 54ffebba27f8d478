"""A compiled module that holds a memory trains as it does uncompiled."""

from __future__ import annotations

import copy
import math
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from every_memory import BATCH_SIZE, EVERY, D, M, batch
from exact import exact
from pytorch_metric_learning import losses
from pytorch_metric_learning.distances import CosineSimilarity, DotProductSimilarity, LpDistance, SNRDistance
from pytorch_metric_learning.losses import (
    AngularLoss,
    ContrastiveLoss,
    MarginLoss,
    SupConLoss,
    TripletMarginLoss,
)
from pytorch_metric_learning.miners import BatchEasyHardMiner, PairMarginMiner, TripletMarginMiner
from pytorch_metric_learning.reducers import MeanReducer, MultipleReducers, SumReducer
from torch import Tensor, nn

from pml_xbn import AXBNWrapper, XBNWrapper
from pml_xbn.adapters import Affine, BaseAdapter, Moments
from pml_xbn.diagnostics import WatchedLoss
from pml_xbn.losses import AdaptiveCrossBatchMemory

# Dynamo looks at the gradients of embeddings where a graph ends, which torch warns of.
pytestmark = [
    pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor:UserWarning"),
    pytest.mark.filterwarnings(
        "ignore:.* should not be instantiated:DeprecationWarning"
    ),  # torch's, of itself
    # Of Python 3.13.0 alone.
    pytest.mark.filterwarnings("ignore:Guards may run slower on Python:RuntimeWarning"),
    pytest.mark.skipif(
        tuple(map(int, torch.__version__.split(".")[:2])) < (2, 4),
        reason="Dynamo of torch 2.1 fails while it imports its own modules",
    ),
]


class Network(nn.Module):
    def __init__(self, loss_fn: nn.Module) -> None:
        super().__init__()
        self.layer, self.loss_fn = nn.Linear(D, D), loss_fn

    def forward(self, images: Tensor, labels: Tensor) -> Tensor:
        return self.loss_fn(self.layer(images).tanh(), labels) * 2


@pytest.fixture(autouse=True)
def _forget() -> Iterator[None]:
    yield
    torch.compiler.reset()


def trained(
    loss_fn: nn.Module, compiled: Callable[[Network], Callable[[Tensor, Tensor], Tensor]]
) -> list[Tensor]:
    """Losses, rows and weights of ten steps."""
    torch.manual_seed(0)
    network = Network(loss_fn)
    call, values = compiled(network), []
    optimizer = torch.optim.SGD(network.parameters(), 0.1)
    for _ in range(10):
        loss = call(torch.randn(BATCH_SIZE, D), torch.arange(BATCH_SIZE) % 3)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        values.append(loss.detach())
    return [torch.stack(values), loss_fn.embedding_memory, network.layer.weight.detach()]


def whole(backend: str) -> Callable[[Network], Callable[[Tensor, Tensor], Tensor]]:
    return lambda network: torch.compile(network, backend=backend)


def only_loss(network: Network) -> Callable[[Tensor, Tensor], Tensor]:
    compiled = torch.compile(network.loss_fn, backend="eager")
    return lambda images, labels: compiled(network.layer(images).tanh(), labels) * 2


@pytest.mark.parametrize("way", [whole("eager"), whole("aot_eager"), only_loss], ids=["all", "aot", "loss"])
@pytest.mark.parametrize("kind", EVERY)
def test_compiled_training_is_the_uncompiled_one(kind: str, way: Callable) -> None:
    for a, b in zip(trained(EVERY[kind](), lambda x: x), trained(EVERY[kind](), way), strict=True):
        torch.testing.assert_close(a, b)


@pytest.mark.parametrize("way", ["eval", "no_grad"])
@pytest.mark.parametrize("kind", EVERY)
def test_a_compiled_memory_that_is_only_read_stores_nothing(kind: str, way: str) -> None:
    memory, twin = EVERY[kind](), EVERY[kind]()
    call = torch.compile(memory, backend="eager")
    for number in range(3):
        call(*batch(number))
        twin(*batch(number))
    before = exact(memory)
    for one in (memory, twin):
        one.train(way != "eval")
    with torch.set_grad_enabled(way == "eval"):
        torch.testing.assert_close(call(*batch(9)), twin(*batch(9)))
    assert exact(memory) == before


@pytest.mark.parametrize("kind", EVERY)
def test_the_first_step_is_compiled_as_the_others_are(kind: str) -> None:
    graphs = []

    def backend(graph: Any, _: object) -> Any:
        graphs.append(graph)
        return graph

    trained(EVERY[kind](), lambda network: torch.compile(network, backend=backend, fullgraph=True))
    assert len(graphs) == 1


# The others are contrastive losses with other distances, or have SupCon's reductions.
OTHERS = ["CircleLoss", "LiftedStructureLoss", "MarginLoss", "NCALoss", "NTXentLoss", "TripletMarginLoss"]
OTHERS += ["TupletMarginLoss"]  # whose margin is a number of numpy


@pytest.mark.parametrize("loss", OTHERS)
def test_so_it_is_of_other_losses_and_with_a_miner(loss: str) -> None:
    def make() -> XBNWrapper:
        miner = PairMarginMiner() if loss in ("MarginLoss", "NCALoss", "TripletMarginLoss") else None
        return XBNWrapper(getattr(losses, loss)(), D, M, miner=miner)

    for a, b in zip(trained(make(), lambda x: x), trained(make(), whole("aot_eager")), strict=True):
        # Some multiply cosines, and their rounding, by 64 or 80.
        torch.testing.assert_close(a, b, rtol=3e-3, atol=3e-3)


NOT_WHOLE: dict[str, tuple[Callable[[], XBNWrapper], str]] = {
    "own copies": (
        lambda: XBNWrapper(losses.NCALoss(), D, M, batch_loss_weight=0.5),
        "batch_loss_weight and NCALoss",
    ),
    "weight": (
        lambda: XBNWrapper(ContrastiveLoss(distance=SNRDistance()), D, M, batch_loss_weight=0.5),
        "batch_loss_weight and SNRDistance",
    ),
    "draws": (
        lambda: XBNWrapper(TripletMarginLoss(triplets_per_anchor=1), D, M, batch_loss_weight=0.5),
        "triplets_per_anchor",
    ),
    "tensor in a tuple": (
        lambda: XBNWrapper(
            SupConLoss(), D, M, miner=BatchEasyHardMiner(allowed_neg_range=(0.1, torch.tensor(1.3)))
        ),
        "a tensor within a tuple in its attribute 'allowed_neg_range'",
    ),
    "smooth": (lambda: XBNWrapper(TripletMarginLoss(smooth_loss=True), D, M), "smooth_loss"),
    "tensor": (
        lambda: XBNWrapper(SupConLoss(), D, M, batch_loss_weight=torch.tensor(0.5)),
        "batch_loss_weight that is a tensor",
    ),
    "order": (
        lambda: XBNWrapper(
            TripletMarginLoss(distance=DotProductSimilarity()), D, M, miner=TripletMarginMiner()
        ),
        "may sort rows otherwise",
    ),
    "angular": (lambda: XBNWrapper(AngularLoss(), D, M), "PML's own code"),
}


@pytest.mark.parametrize("case", NOT_WHOLE)
def test_what_cannot_be_compiled_runs_as_it_is_written_and_says_why(case: str) -> None:
    make, reason = NOT_WHOLE[case]
    expected = trained(make(), lambda x: x)
    with pytest.warns(UserWarning, match=f"{reason}(.|\n)*leaves this call out of the graph") as warnings:
        found = trained(make(), only_loss)
    for a, b in zip(expected, found, strict=True):
        torch.testing.assert_close(a, b)
    assert len([x for x in warnings if "out of the graph" in str(x.message)]) == 1  # in ten steps
    torch.compiler.reset()
    with pytest.raises(Exception, match=f"{reason}(.|\n)*outside of the graph"):
        torch.compile(make(), fullgraph=True, backend="eager")(torch.randn(4, D), torch.arange(4) % 2)


def test_a_watched_call_runs_as_it_is_written() -> None:
    pushes = []
    for way in (lambda memory: memory, lambda memory: torch.compile(memory, backend="eager")):
        memory = XBNWrapper(ContrastiveLoss(), D, M)
        call = way(memory)
        for step in range(3):
            generator = torch.Generator().manual_seed(step)
            embeddings = torch.randn(8, D, generator=generator, requires_grad=True)
            if step == 2:
                with WatchedLoss(memory) as seen:
                    call(embeddings, torch.arange(8) % 4)
            else:
                call(embeddings, torch.arange(8) % 4)
        pushes.append(seen.common_mode_push().push)
    assert pushes[0].abs() > 1e-3
    torch.testing.assert_close(*pushes)


def test_once_its_warm_up_is_over_a_memory_is_compiled_whole() -> None:
    def make() -> XBNWrapper:
        return XBNWrapper(SupConLoss(), D, M, warmup=3)

    memory, twin = make(), make()
    for a, b in zip(trained(memory, only_loss), trained(twin, lambda x: x), strict=True):
        torch.testing.assert_close(a, b)
    torch.compiler.reset()
    with pytest.raises(Exception, match="warm-up is not over \\(make 4 calls"):
        torch.compile(make(), fullgraph=True, backend="eager")(torch.randn(4, D), torch.arange(4) % 2)


def test_what_is_written_to_the_rows_between_compiled_steps_counts() -> None:
    memory, twin = (XBNWrapper(SupConLoss(), D, M) for _ in range(2))
    whole = torch.compile(memory, fullgraph=True, backend="eager")
    in_parts = torch.compile(memory, backend="eager")
    for step in range(8):
        given = torch.randn(BATCH_SIZE, D, requires_grad=True), torch.arange(BATCH_SIZE) % 3
        compiled = in_parts if step % 3 == 2 else whole
        torch.testing.assert_close(compiled(*given), twin(*given))
        if step % 3 == 1:
            for one in (memory, twin):
                one.embedding_memory[0] = 1.0
        if step == 1:  # later on torch has what runs in parts, and takes that
            with pytest.raises(Exception, match="embedding_memory was read"):
                whole(*given)
    torch.testing.assert_close(memory.embedding_memory, twin.embedding_memory)


def temperature_of_a_loss() -> SupConLoss:
    loss = SupConLoss()
    loss.temperature = nn.Parameter(torch.tensor(0.1))
    return loss


@pytest.mark.parametrize("make", [temperature_of_a_loss, lambda: MarginLoss(learn_beta=True, num_classes=3)])
def test_what_a_loss_learns_gets_its_gradient(make: Callable[[], nn.Module]) -> None:
    memory, twin = (XBNWrapper(make(), D, M) for _ in range(2))
    compiled = torch.compile(memory, fullgraph=True, backend="aot_eager")
    optimizers = [torch.optim.SGD(one.parameters(), 0.01) for one in (memory, twin)]
    for _ in range(5):
        given = torch.randn(BATCH_SIZE, D), torch.arange(BATCH_SIZE) % 3
        for call, optimizer in zip((compiled, twin), optimizers, strict=True):
            optimizer.zero_grad()
            call(*given).backward()
            optimizer.step()
        for ours, theirs in zip(memory.parameters(), twin.parameters(), strict=True):
            torch.testing.assert_close(ours.grad, theirs.grad, rtol=1e-3, atol=1e-4)
            assert ours.grad.any()


def set_reducer(memory: XBNWrapper) -> None:
    memory.loss.reducer = SumReducer()


# What is no tensor is part of the graph, which has to be made anew where it has changed.
CHANGES: dict[str, Callable[[XBNWrapper], None]] = {
    "temperature": lambda memory: setattr(memory.loss, "temperature", memory.loss.temperature + 0.05),
    "reducer": set_reducer,
    "adapter": lambda memory: setattr(memory._hooks.adapters[0], "match_std", False),
    "margin of a miner": lambda memory: setattr(memory.miner, "pos_margin", memory.miner.pos_margin + 0.2),
    "batch loss": lambda memory: setattr(memory, "batch_loss_weight", memory.batch_loss_weight + 0.5),
    "loss": lambda memory: setattr(memory, "loss", losses.NTXentLoss(0.2)),
    "distance": lambda memory: setattr(memory.loss, "distance", DotProductSimilarity()),
    "miner": lambda memory: setattr(memory, "miner", None),
    "nonfinite": lambda memory: setattr(memory, "nonfinite", "ignore"),
    "size of a batch": lambda memory: None,
}


@pytest.mark.parametrize("case", CHANGES)
def test_what_changes_between_compiled_steps_counts(case: str) -> None:
    memory, twin = (XBNWrapper(SupConLoss(), D, M, miner=PairMarginMiner(0.1, 0.9)) for _ in range(2))
    compiled = torch.compile(memory, fullgraph=True, backend="aot_eager")
    for step in range(7):
        size = BATCH_SIZE - (step % 2 if case == "size of a batch" else 0)
        given = torch.randn(size, D, requires_grad=True), torch.arange(size) % 3
        if step in (3, 5):
            for one in (memory, twin):
                CHANGES[case](one)
        value, expected = compiled(*given), twin(*given)
        torch.testing.assert_close(value, expected, rtol=1e-4, atol=1e-4)
        gradients = (torch.autograd.grad(x, given[0])[0] for x in (value, expected))
        torch.testing.assert_close(*gradients, rtol=1e-3, atol=1e-4)
    assert torch.equal(memory.curr_batch_idx, twin.curr_batch_idx)


# What makes of a fused loss one that is called.
REPLACED: dict[str, Callable[[XBNWrapper], None]] = {
    "another method": lambda memory: setattr(memory.loss, "loss_method", memory.loss.method_of_mine),
    "a method of its own": lambda memory: setattr(memory.loss, "compute_loss", memory.loss.compute_loss),
    "statistics": lambda memory: setattr(memory.loss.distance, "collect_stats", True),
}


class OfMine(ContrastiveLoss):
    def method_of_mine(self, *args: Any) -> Any:
        return self.mat_based_loss(*args)


@pytest.mark.parametrize("case", REPLACED)
def test_a_loss_that_is_changed_after_it_was_compiled_is_called(case: str) -> None:
    memory = XBNWrapper(OfMine(), D, M)
    compiled = torch.compile(memory, fullgraph=True, backend="eager")
    for _ in range(3):
        compiled(torch.randn(BATCH_SIZE, D, requires_grad=True), torch.arange(BATCH_SIZE) % 3)
    REPLACED[case](memory)
    with pytest.raises(Exception, match="OfMine, which runs PML's own code"):
        compiled(torch.randn(BATCH_SIZE, D, requires_grad=True), torch.arange(BATCH_SIZE) % 3)


def test_two_memories_that_one_function_calls_are_not_taken_for_each_other() -> None:
    memories = [XBNWrapper(SupConLoss(), D, M) for _ in range(2)]
    twins = copy.deepcopy(memories)
    call = torch.compile(lambda memory, *given: memory(*given), fullgraph=True, backend="aot_eager")
    for step in range(6):
        given = torch.randn(BATCH_SIZE, D, requires_grad=True) + step % 2, torch.arange(BATCH_SIZE) % 3
        torch.testing.assert_close(call(memories[step % 2], *given), twins[step % 2](*given))
    for memory, twin in zip(memories, twins, strict=True):
        torch.testing.assert_close(memory.embedding_memory, twin.embedding_memory)


class Part(nn.Module):
    def __init__(self, factor: float) -> None:
        super().__init__()
        self.factor = factor
        self.register_buffer("held", torch.tensor(factor))


@dataclass
class Options:
    strength: float = 1.0


class OfManyParts(BaseAdapter):
    """Reads a factor from every place in which an adapter of a user may keep one."""

    strength = 1.0

    @staticmethod
    def factor_of_code() -> float:
        return 1.0

    def __init__(self) -> None:
        super().__init__()
        self.parts, self.named = nn.ModuleList([Part(1.1)]), nn.ModuleDict({"a": Part(1.2)})
        self.one = self.other = Part(1.3)
        self.options: dict[str, Any] = {"x": 1.0, "more": [1.0, Options()]}
        self.factor: Any = 1.0

    def map(self, memory: Moments, target: Moments) -> Affine:
        values = [self.strength, self.factor_of_code(), float(self.factor), self.options["x"]]
        values += [self.options["more"][0], self.options["more"][1].strength, self.options.get("y", 1.0)]
        values += [x.factor for x in (*self.parts, *self.named.values(), self.one, self.other)]
        factor = self.one.held * self.other.held * math.prod(values)
        return memory.affine_to(Moments(target.mean * factor, target.std))


def of_parts() -> AdaptiveCrossBatchMemory:
    memory = AdaptiveCrossBatchMemory(ContrastiveLoss(), D, M)
    memory.register_memory_hook(OfManyParts())
    return memory


def of_reducers(other: str) -> Callable[[], XBNWrapper]:
    def make() -> XBNWrapper:
        reducer = MeanReducer()
        names = {"pos_loss": reducer, "neg_loss": reducer} if other == "shared" else {"pos_loss": reducer}
        return XBNWrapper(ContrastiveLoss(reducer=MultipleReducers(names)), D, M)

    return make


def of_adapter(*changes: Callable[[Any], object]) -> tuple[Callable[[], Any], list[Callable[[Any], object]]]:
    def on_memory(change: Callable[[Any], object]) -> Callable[[Any], object]:
        return lambda memory: change(memory._hooks.adapters[0])

    return of_parts, [on_memory(change) for change in changes]


def sum_negatives(memory: XBNWrapper) -> None:
    memory.loss.reducer.reducers["neg_loss"] = SumReducer()


# What holds a setting, or takes its place, is not always the module itself.
DEEP_CHANGES: dict[str, tuple[Callable[[], Any], list[Callable[[Any], object]]]] = {
    "parts": of_adapter(
        lambda x: x.parts.append(Part(0.4)),
        lambda x: x.named.update({"b": Part(0.4)}),
        lambda x: setattr(x, "other", Part(0.5)),  # which was used twice
        lambda x: setattr(x, "strength", 0.4),  # which only the class had
        lambda x: setattr(x, "factor_of_code", lambda: 0.4),
    ),
    "containers": of_adapter(
        lambda x: x.options.update(x=0.4),
        lambda x: x.options.update(y=0.4),
        lambda x: x.options["more"].__setitem__(0, 0.4),
        lambda x: setattr(x.options["more"][1], "strength", 0.4),
    ),
    "a reducer by name": (of_reducers("alone"), [sum_negatives]),
    "one of two uses of a reducer": (of_reducers("shared"), [sum_negatives]),
}


@pytest.mark.parametrize("case", DEEP_CHANGES)
def test_what_changes_deep_within_counts(case: str) -> None:
    make, changes = DEEP_CHANGES[case]
    memory, twin = make(), make()
    compiled = torch.compile(memory, fullgraph=True, backend="aot_eager")
    for step, change in enumerate([None, None, *changes]):
        given = torch.randn(BATCH_SIZE, D, requires_grad=True) + step / 3, torch.arange(BATCH_SIZE) % 3
        if change is not None:
            before = copy.deepcopy(twin)(*given)
            change(memory), change(twin)
        value = twin(*given)
        torch.testing.assert_close(compiled(*given), value, rtol=1e-5, atol=1e-5)
        assert change is None or not torch.isclose(before, value, rtol=1e-4)
    torch.testing.assert_close(memory.embedding_memory, twin.embedding_memory, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    "value", [np.float64(1.0), [torch.ones(1)], object()], ids=["numpy", "list", "object"]
)
def test_an_adapter_whose_changes_would_not_be_seen_is_refused(value: object) -> None:
    memory = of_parts()
    memory._hooks.adapters[0].factor = value
    with pytest.raises(Exception, match=r"OfManyParts has a .* in its attribute 'factor'"):
        torch.compile(memory, fullgraph=True, backend="eager")(torch.randn(4, D), torch.arange(4) % 2)


WRONG: dict[str, tuple[Callable[[XBNWrapper], object], str]] = {
    "size": (lambda memory: setattr(memory, "memory_size", M - 1), "memory_size was set to"),
    "dtype": (lambda memory: setattr(memory, "memory_dtype", torch.bfloat16), "memory_dtype was set to"),
    "large": (lambda memory: None, "rows to enqueue do not fit memory_size"),
    "once": (lambda memory: setattr(memory, "nonfinite", "raise_at_once"), "nonfinite='raise_at_once'"),
}


@pytest.mark.parametrize("case", WRONG)
def test_what_a_call_refuses_a_compiled_one_does(case: str) -> None:
    change, message = WRONG[case]
    memory = XBNWrapper(SupConLoss(), D, M)
    compiled = torch.compile(memory, fullgraph=True, backend="eager")
    for _ in range(3):
        compiled(torch.randn(BATCH_SIZE, D, requires_grad=True), torch.arange(BATCH_SIZE) % 3)
    change(memory)
    size = M + 1 if case == "large" else BATCH_SIZE
    with pytest.raises(Exception, match=message):
        compiled(torch.randn(size, D, requires_grad=True), torch.arange(size) % 3)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
def test_units_that_are_dead_now_and_then_leave_no_trace(dtype: torch.dtype) -> None:
    """All rows become equal in them, and the rows that come next are stored as precisely as others."""
    memory = XBNWrapper(SupConLoss(0.3), D, M, memory_dtype=dtype)
    twin = copy.deepcopy(memory)
    compiled = torch.compile(memory, fullgraph=True, backend="aot_eager")
    for step in range(14):
        embeddings = torch.randn(BATCH_SIZE, D) + step / 3
        embeddings[:, 0] = 0.0
        embeddings[:, 1] *= step in (0, 1, 3, 6, 7, 8, 10, 12)
        embeddings[:, 2] *= step % 2
        given = embeddings.requires_grad_(), torch.arange(BATCH_SIZE) % 3
        tight = 1e-4 if dtype == torch.float32 else 3e-2
        torch.testing.assert_close(compiled(*given), twin(*given), rtol=tight, atol=tight)
    torch.testing.assert_close(memory.embedding_memory, twin.embedding_memory, rtol=tight, atol=tight)


@pytest.mark.parametrize(
    ("loss", "distance"),
    [
        (TripletMarginLoss, LpDistance(power=2)),
        (TripletMarginLoss, LpDistance()),
        (MarginLoss, CosineSimilarity()),
    ],
    ids=["squares", "lengths", "cosines"],
)
def test_a_miner_of_triplets_is_compiled_with_distances_that_sort_as_its_own(
    loss: type[nn.Module], distance: nn.Module
) -> None:
    memory = XBNWrapper(loss(distance=distance), D, M, TripletMarginMiner(type_of_triplets="semihard"))
    twin = copy.deepcopy(memory)
    compiled = torch.compile(memory, fullgraph=True, backend="aot_eager")
    for _ in range(4):
        given = torch.randn(BATCH_SIZE, D, requires_grad=True), torch.arange(BATCH_SIZE) % 3
        torch.testing.assert_close(compiled(*given), twin(*given), rtol=1e-4, atol=1e-4)


def test_an_empty_batch_has_no_own_loss() -> None:
    memory = XBNWrapper(SupConLoss(), D, M, batch_loss_weight=0.5)
    compiled = torch.compile(memory, fullgraph=True, backend="aot_eager")
    for size in (BATCH_SIZE, BATCH_SIZE, 0):
        value = compiled(torch.randn(size, D, requires_grad=True), torch.arange(size) % 3)
    assert value == 0


class Counting(BaseAdapter):
    number = 0

    def estimate(self, batch: Moments, batch_size: int) -> Moments:
        self.number = self.number + 1
        return batch

    def map(self, memory: Moments, target: Moments) -> Affine:
        return memory.affine_to(target)


class CountingInADict(Counting):
    def __init__(self) -> None:
        super().__init__()
        self.numbers = {"of batches": 0}

    def estimate(self, batch: Moments, batch_size: int) -> Moments:
        self.numbers["of batches"] += 1
        return batch


class Forgetting(Counting):
    """It sets a tensor that it held to None."""

    def __init__(self) -> None:
        super().__init__()
        self.average: Tensor | None = torch.zeros(D)

    def estimate(self, batch: Moments, batch_size: int) -> Moments:
        self.average = None
        return batch


@pytest.mark.parametrize("adapter", [Counting, CountingInADict, Forgetting])
def test_an_adapter_that_changes_what_is_no_tensor_is_refused(adapter: type[BaseAdapter]) -> None:
    memory = AdaptiveCrossBatchMemory(SupConLoss(), D, M)
    memory.register_memory_hook(adapter())
    with pytest.raises(Exception, match="changes what is no tensor of a fixed shape"):
        torch.compile(memory, fullgraph=True, backend="eager")(torch.randn(4, D), torch.arange(4) % 2)


OWN_LOSSES: dict[str, Callable[[], nn.Module]] = {
    "SupCon": lambda: SupConLoss(0.1),
    "contrastive": ContrastiveLoss,
    "triplet": lambda: TripletMarginLoss(distance=LpDistance(power=2)),
    "dot products": lambda: losses.NTXentLoss(1.0, distance=DotProductSimilarity()),
    "MultiSimilarity": losses.MultiSimilarityLoss,
    "learned": lambda: MarginLoss(learn_beta=True, num_classes=3),
}


@pytest.mark.parametrize("miner", [None, PairMarginMiner(0.2, 0.8)], ids=["no miner", "miner"])
@pytest.mark.parametrize("loss", OWN_LOSSES)
def test_the_batchs_own_loss_is_compiled_too_and_is_that_of_pml(loss: str, miner: nn.Module | None) -> None:
    """Uncompiled, PML's code computes it."""
    twin, memory = (XBNWrapper(OWN_LOSSES[loss](), D, M, miner, batch_loss_weight=0.5) for _ in range(2))
    compiled, labels = (
        torch.compile(memory, fullgraph=True, backend="aot_eager"),
        torch.arange(BATCH_SIZE) % 3,
    )
    for step in range(2 * M // BATCH_SIZE + 1):
        first = torch.randn(BATCH_SIZE, D) + step / 10
        first[:, 0] = 0.0  # a dead unit
        second = first.clone().requires_grad_()
        value, expected = compiled(first.requires_grad_(), labels), twin(second, labels)
        torch.testing.assert_close(value, expected, rtol=1e-4, atol=1e-4)
        value.backward(), expected.backward()
        torch.testing.assert_close(first.grad, second.grad, rtol=1e-3, atol=1e-4)
    for one, other in zip(memory.parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(one.grad, other.grad, rtol=1e-3, atol=1e-4)
    torch.testing.assert_close(memory.embedding_memory, twin.embedding_memory)


def test_importing_the_package_does_not_import_dynamo() -> None:
    code = "import sys, pml_xbn; print('torch._dynamo' in sys.modules)"
    answer = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert answer.stdout.strip() == "False"


def test_rows_of_half_precision_are_read_as_they_were_stored() -> None:
    """A memory without adapters measures them as it stores the first."""
    memory, twin = (
        AdaptiveCrossBatchMemory(ContrastiveLoss(), D, M, memory_dtype=torch.bfloat16) for _ in range(2)
    )
    compiled = torch.compile(memory, fullgraph=True, backend="aot_eager")
    torch.manual_seed(0)
    for _ in range(4):
        batch = torch.randn(BATCH_SIZE, D) + 5, torch.arange(BATCH_SIZE) % 3
        torch.testing.assert_close(compiled(*batch), twin(*batch))
    torch.testing.assert_close(memory.embedding_memory, twin.embedding_memory, rtol=0.01, atol=0.02)
    torch.testing.assert_close(memory(*batch), twin(*batch), rtol=1e-3, atol=1e-3)


def test_a_unit_that_fires_once_in_many_batches() -> None:
    """A filter's σ falls step by step meanwhile, and the row that fires is stored as a large number."""
    memory, twin = (AXBNWrapper(SupConLoss(), D, 8 * BATCH_SIZE) for _ in range(2))
    compiled = torch.compile(memory, fullgraph=True, backend="aot_eager")
    torch.manual_seed(0)
    labels = torch.arange(BATCH_SIZE) % 4
    for step in range(32):
        images = torch.randn(BATCH_SIZE, D).relu()
        images[:, 0] = 0
        if step in (0, 20):
            images[0, 0] = 1.0
        ours, theirs = images.clone().requires_grad_(), images.clone().requires_grad_()
        loss, expected = compiled(ours, labels), twin(theirs, labels)
        torch.testing.assert_close(loss, expected)
        torch.testing.assert_close(
            torch.autograd.grad(loss, ours), torch.autograd.grad(expected, theirs), rtol=1e-3, atol=1e-6
        )
    torch.testing.assert_close(memory.embedding_memory, twin.embedding_memory)


@pytest.mark.parametrize("act", [lambda x: x.load_state_dict(x.state_dict()), lambda x: x.reset_queue()])
def test_a_warm_up_that_is_over_stays_so(act: Callable[[XBNWrapper], object]) -> None:
    memory = XBNWrapper(SupConLoss(), D, M, warmup=2)
    compiled = torch.compile(memory, fullgraph=True, backend="eager")
    batch = torch.randn(BATCH_SIZE, D), torch.arange(BATCH_SIZE) % 3
    for call in (memory, memory, memory, compiled):
        call(*batch)
    act(memory)
    compiled(*batch)
    assert memory.num_calls == 5
