"""Value and gradient are PML's for every loss, miner, reducer and distance, whatever the rows are.

PML's are computed on the CPU, of the rows that the memory holds, wherever it is.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from itertools import product
from typing import Any

import pytest
import torch
from pmls_value import PER_ANCHOR, assert_as_pmls, pmls, value_and_gradients
from pytorch_metric_learning import distances, losses, miners, reducers
from pytorch_metric_learning.utils import loss_and_miner_utils as lmu
from torch import Tensor

from pml_xbn import XBNWrapper
from pml_xbn.losses import AdaptiveCrossBatchMemory

D, NUM_ROWS, NUM_ANCHORS = 5, 23, 7
CPU = torch.device("cpu")
LOSSES: list[str] = losses.CrossBatchMemory.supported_losses()
MINERS: dict[str, Callable[[], Any]] = {
    "none": lambda: None,
    "angular": miners.AngularMiner,
    "easy": lambda: miners.BatchEasyHardMiner("easy", "semihard"),
    "hard, easy": lambda: miners.BatchEasyHardMiner("hard", "easy", (0.2, 1.5), None),
    "all positives": lambda: miners.BatchEasyHardMiner("all", "hard"),
    "all negatives": lambda: miners.BatchEasyHardMiner("hard", "all", None, (0.5, 3.0)),
    "hard": miners.BatchHardMiner,
    "multi-similarity": miners.MultiSimilarityMiner,
    "pair margin": lambda: miners.PairMarginMiner(0.8, 1.3),
    "triplet margin": miners.TripletMarginMiner,
    "hard triplets": lambda: miners.TripletMarginMiner(0.3, "hard"),
    "easy triplets": lambda: miners.TripletMarginMiner(0.3, "easy"),
    "semihard triplets": lambda: miners.TripletMarginMiner(0.3, "semihard"),
}
# They choose a fraction of all pairs, which may hold self-pairs.
ONLY_WITHOUT_COPIES = {"hdc": miners.HDCMiner, "few of hdc": lambda: miners.HDCMiner(0.1)}
DISTANCES: list[Callable[[], distances.BaseDistance]] = [
    distances.CosineSimilarity,
    distances.LpDistance,
    lambda: distances.LpDistance(power=2),
    lambda: distances.LpDistance(normalize_embeddings=False),
    lambda: distances.LpDistance(p=1),
    lambda: distances.DotProductSimilarity(normalize_embeddings=False),
]
OF_ONE_DISTANCE = {"AngularLoss", "CircleLoss", "SignalToNoiseRatioContrastiveLoss", "TupletMarginLoss"}
REDUCERS: dict[str, Callable[[], reducers.BaseReducer | None]] = {
    "default": lambda: None,
    "mean": reducers.MeanReducer,
    "sum": reducers.SumReducer,
    "not zero": reducers.AvgNonZeroReducer,
    "between": lambda: reducers.ThresholdReducer(low=0.3, high=1.0),
    "below": lambda: reducers.ThresholdReducer(high=0.4),
    "classes": lambda: reducers.ClassWeightedReducer(torch.tensor([1.0, 2.0, 0.5, 3.0]).double()),
    "anchors": reducers.PerAnchorReducer,
    "many": lambda: reducers.MultipleReducers(
        {"pos_loss": reducers.SumReducer(), "loss": reducers.AvgNonZeroReducer()},
        default_reducer=reducers.ThresholdReducer(low=0.2),
    ),
}


def rows_of(kind: str, seed: int) -> tuple[Tensor, Tensor]:
    """Rows in memory and their labels, of which the last are the batch."""
    generator = torch.Generator().manual_seed(seed)
    rows = torch.randn(NUM_ROWS, D, generator=generator, dtype=torch.float64)
    labels = torch.randint(0, 4, (NUM_ROWS,), generator=generator)
    if kind == "one class":
        labels[:] = 1
    elif kind == "no positives":
        labels[-NUM_ANCHORS:] = torch.arange(NUM_ANCHORS) + 10
    elif kind == "ties":
        rows = rows.mul(2).round().div(2)
    elif kind == "equal vectors":
        rows[3:9], rows[10:13] = rows[-NUM_ANCHORS:-1], rows[9]
    elif kind == "zeros":
        rows[:5] = 0
    elif kind == "one row":
        rows, labels = rows[:1], labels[:1]
    return rows, labels


def on_cpu(memory: AdaptiveCrossBatchMemory) -> AdaptiveCrossBatchMemory:
    """The memory itself, or its copy on the CPU."""
    return memory if memory.embedding_memory.device == CPU else copy.deepcopy(memory).to(CPU)


def assert_same(
    loss: Any,
    miner: Any,
    kind: str = "any",
    *,
    seed: int = 0,
    given: Any = None,
    device: torch.device = CPU,
    **tolerances: float,
) -> None:
    """That a step's loss and gradients are PML's, those with respect to what the loss learns included."""
    rows, labels = rows_of(kind, seed)
    memory = AdaptiveCrossBatchMemory(loss, D, NUM_ROWS, miner, memory_dtype=torch.float64).to(device)
    memory.fill_memory(rows[:-NUM_ANCHORS].to(device), labels[:-NUM_ANCHORS].to(device))
    batch, batch_labels = rows[-NUM_ANCHORS:], labels[-NUM_ANCHORS:]
    moved = batch.to(device), batch_labels.to(device)
    if kind != "mask":
        ours = value_and_gradients(memory, *moved, given and tuple(x.to(device) for x in given))
        expected = pmls(on_cpu(memory), batch, batch_labels, memory.curr_batch_idx.cpu(), given)
    else:  # the last row is stored, the others are anchors
        is_stored = torch.arange(NUM_ANCHORS) == NUM_ANCHORS - 1
        ours = value_and_gradients(memory, *moved, None, is_stored.to(device))
        ours[1] = ours[1][~is_stored.to(device)]
        expected = pmls(on_cpu(memory), batch[~is_stored], batch_labels[~is_stored], None)
    assert_as_pmls([x.cpu() for x in ours], expected, **tolerances)


def options_of(loss: str, number: int) -> dict[str, Any]:
    if loss == "TupletMarginLoss":
        return {"scale": 8}  # with its default PML rounds small terms to 0: test_host_bugs.py
    if loss in OF_ONE_DISTANCE:
        return {}
    # Of a smaller one and dot products some terms are rounding, which a reducer counts or not.
    temperature = {"temperature": 1.0} if loss == "SupConLoss" else {}
    return {"distance": DISTANCES[number % len(DISTANCES)](), **temperature}


@pytest.mark.parametrize("miner", MINERS)
@pytest.mark.parametrize("loss", LOSSES)
def test_with_every_miner_reducer_and_distance(loss: str, miner: str, device: torch.device) -> None:
    """With every reducer; of distances one in turn, so that each meets every miner and every reducer."""
    first = list(MINERS).index(miner)
    for number, (name, make_reducer) in enumerate(REDUCERS.items()):
        if name == "anchors" and loss not in PER_ANCHOR:
            continue  # refused when built
        made = getattr(losses, loss)(reducer=make_reducer(), **options_of(loss, first + number))
        kind = "mask" if number % 4 == 3 else "any"
        assert_same(made, MINERS[miner](), kind, seed=number, device=device)


@pytest.mark.parametrize("distance", [distances.SNRDistance(power=2), distances.LpDistance(power=0.5)])
def test_with_powers_of_other_distances(distance: distances.BaseDistance) -> None:
    """A power below 1 has no derivative at 0, where anchors are from their own copies."""
    loss = losses.ContrastiveLoss(neg_margin=3, distance=distance)
    for seed in range(3):
        assert_same(loss, None, seed=seed)


@pytest.mark.parametrize("miner", ONLY_WITHOUT_COPIES)
@pytest.mark.parametrize("loss", LOSSES)
def test_with_a_miner_of_all_pairs_at_once(loss: str, miner: str) -> None:
    made, chooser = getattr(losses, loss)(), ONLY_WITHOUT_COPIES[miner]()
    memory = AdaptiveCrossBatchMemory(made, D, NUM_ROWS, chooser, memory_dtype=torch.float64)
    rows, labels = rows_of("any", 1)
    memory.fill_memory(rows[:-NUM_ANCHORS], labels[:-NUM_ANCHORS])
    batch, batch_labels = rows[-NUM_ANCHORS:], labels[-NUM_ANCHORS:]
    ours = value_and_gradients(memory.eval(), batch, batch_labels)
    chosen = chooser(batch, batch_labels, rows[:-NUM_ANCHORS], labels[:-NUM_ANCHORS])
    assert_as_pmls(ours, pmls(memory, batch, batch_labels, None, chosen=chosen))


@pytest.mark.parametrize("miner", ["distance weighted", "histogram", "hdc"])
@pytest.mark.parametrize("loss", LOSSES)
def test_whatever_a_miner_that_draws_has_drawn(loss: str, miner: str, device: torch.device) -> None:
    """The loss is PML's of its choice, in which no anchor is compared with its own copy."""
    make = {
        "distance weighted": lambda: miners.DistanceWeightedMiner(0.1, 1.9),
        "histogram": lambda: miners.UniformHistogramMiner(7, 3, 3),
        "hdc": lambda: miners.HDCMiner(0.9),
    }
    seen: list[tuple[Tensor, ...]] = []
    made = getattr(losses, loss)()
    memory = AdaptiveCrossBatchMemory(made, D, NUM_ROWS, make[miner](), memory_dtype=torch.float64).to(device)
    handle = made.register_forward_pre_hook(lambda _, args: seen.append(args[2]))
    rows, labels = (x.to(device) for x in rows_of("any", 2))
    memory.fill_memory(rows[:-NUM_ANCHORS], labels[:-NUM_ANCHORS])
    batch, batch_labels = rows[-NUM_ANCHORS:], labels[-NUM_ANCHORS:]
    torch.manual_seed(0)
    value_and_gradients(copy.deepcopy(memory), batch, batch_labels)
    handle.remove()
    torch.manual_seed(0)
    ours = value_and_gradients(memory, batch, batch_labels)
    chosen = tuple(x.cpu() for x in seen[-1])
    batch, batch_labels, own_rows = (x.cpu() for x in (batch, batch_labels, memory.curr_batch_idx))
    a1, p, a2, n = lmu.convert_to_pairs(chosen, batch_labels)
    assert len(a1) > 0
    assert len(a2) > 0
    of_rows = memory.label_memory.cpu()
    assert (batch_labels[a1] == of_rows[p]).all()
    assert (batch_labels[a2] != of_rows[n]).all()
    assert (p != own_rows[a1]).all()
    expected = pmls(on_cpu(memory), batch, batch_labels, own_rows, chosen=chosen)
    assert_as_pmls([x.cpu() for x in ours], expected)


KINDS = ["one class", "no positives", "ties", "equal vectors", "zeros", "one row", "mask"]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("loss", LOSSES)
def test_whatever_the_rows_are(loss: str, kind: str) -> None:
    if (loss, kind) == ("TupletMarginLoss", "equal vectors"):
        pytest.skip("of which PML's gradient is infinite: test_host_bugs.py")
    # Ties lie at the margin, or not, as the rounding goes; and zeros are at a distance of 1.
    options = {"neg_margin": 0.9} if "Contrastive" in loss and kind in ("ties", "zeros") else {}
    names = ["none", "multi-similarity", "hard", "triplet margin"]
    if (loss, kind) == ("LiftedStructureLoss", "equal vectors"):
        names.remove("hard")  # by rounding, a CPU's own, it chooses a row that is an anchor or an equal one
    for miner, seed in product(names, range(2)):
        assert_same(getattr(losses, loss)(**options), MINERS[miner](), kind, seed=seed)


@pytest.mark.parametrize("miner", ["none", "pair margin", "hard", "semihard triplets"])
@pytest.mark.parametrize("loss", LOSSES)
def test_given_pairs_and_triplets_join_the_others_and_count_as_often(loss: str, miner: str) -> None:
    _, labels = rows_of("any", 0)
    labels = labels[-NUM_ANCHORS:]
    pairs, triplets = lmu.get_all_pairs_indices(labels), lmu.get_all_triplets_indices(labels)
    for given in (pairs, triplets):
        for indices in (given, tuple(x[::2].repeat(2) for x in given)):
            assert_same(getattr(losses, loss)(), MINERS[miner](), given=indices)


WITH_OPTIONS: dict[str, Callable[..., Any]] = {
    "smooth": lambda **kw: losses.TripletMarginLoss(smooth_loss=True, **kw),
    "wide margin": lambda **kw: losses.TripletMarginLoss(margin=0.6, **kw),
    "one beta": lambda **kw: losses.MarginLoss(learn_beta=True, nu=0.1, **kw),
    "a beta each": lambda **kw: losses.MarginLoss(learn_beta=True, nu=0.1, num_classes=4, **kw),
    "a given beta each": lambda **kw: losses.MarginLoss(num_classes=4, **kw),
    "contrastive margins": lambda **kw: losses.ContrastiveLoss(pos_margin=0.4, neg_margin=1.2, **kw),
    "supcon": lambda **kw: losses.SupConLoss(temperature=0.5, **kw),
    "wide angle": lambda **kw: losses.AngularLoss(alpha=60, **kw),
}


@pytest.mark.parametrize("miner", ["none", "angular", "pair margin", "triplet margin", "hard"])
@pytest.mark.parametrize("loss", WITH_OPTIONS)
def test_with_options_and_what_a_loss_learns(loss: str, miner: str) -> None:
    for name in ("default", "mean", "sum", "not zero", "between", "classes"):
        for kind in ("any", "one class"):
            made = WITH_OPTIONS[loss](reducer=REDUCERS[name]()).double()
            assert_same(made, MINERS[miner](), kind, seed=3)


class LearnedTemperature(losses.SupConLoss):
    def __init__(self) -> None:
        super().__init__()
        self.temperature = torch.nn.Parameter(torch.tensor(0.3, dtype=torch.float64))


def test_a_temperature_and_class_weights_may_be_learned() -> None:
    weights = torch.nn.Parameter(torch.linspace(0.5, 2, 4, dtype=torch.float64))
    assert_same(LearnedTemperature(), None)
    assert_same(losses.SupConLoss(reducer=reducers.ClassWeightedReducer(weights)), None)


class LearnedMargins(losses.ContrastiveLoss):
    def __init__(self) -> None:
        super().__init__(neg_margin=1.2)
        self.pos_margin = torch.nn.Parameter(torch.tensor(0.3, dtype=torch.float64))
        self.neg_margin = torch.nn.Parameter(torch.tensor(1.2, dtype=torch.float64))


class LearnedTupletMargin(losses.TupletMarginLoss):
    def __init__(self) -> None:
        super().__init__(scale=8)
        self.margin = torch.nn.Parameter(torch.tensor(0.1, dtype=torch.float64))


def weighted_classes() -> losses.SupConLoss:
    weights = torch.nn.Parameter(torch.linspace(0.5, 2, 4, dtype=torch.float64))
    return losses.SupConLoss(reducer=reducers.ClassWeightedReducer(weights))


LEARNING: dict[str, Callable[[], Any]] = {
    "one beta": WITH_OPTIONS["one beta"],
    "a beta each": lambda: losses.MarginLoss(learn_beta=True, nu=0.1, num_classes=20),
    "beta, sum": lambda: losses.MarginLoss(learn_beta=True, nu=0.1, reducer=reducers.SumReducer()),
    "temperature": LearnedTemperature,
    "two margins": LearnedMargins,
    "tuplet margin": LearnedTupletMargin,
    "class weights": weighted_classes,
}


@pytest.mark.parametrize("miner", ["none", "pair margin", "triplet margin"])
@pytest.mark.parametrize("name", LEARNING)
def test_what_a_loss_learns_may_be_frozen_and_thawed(name: str, miner: str) -> None:
    loss = LEARNING[name]().double()
    parameters = list(loss.parameters())
    for frozen in (parameters, parameters[:1], parameters[1:], []):
        for parameter in parameters:
            parameter.requires_grad_(all(parameter is not other for other in frozen))
        for kind in ("any", "one class", "no positives", "mask"):
            assert_same(loss, MINERS[miner](), kind)


@pytest.mark.parametrize("name", LEARNING)
def test_embeddings_may_be_frozen_where_a_loss_learns(name: str) -> None:
    rows, labels = rows_of("any", 0)
    batch, batch_labels = rows[-NUM_ANCHORS:], labels[-NUM_ANCHORS:]
    results = []
    for needs_gradient in (True, False):
        loss = LEARNING[name]().double()
        memory = AdaptiveCrossBatchMemory(loss, D, NUM_ROWS, memory_dtype=torch.float64)
        memory.fill_memory(rows[:-NUM_ANCHORS], labels[:-NUM_ANCHORS])
        value = memory(batch.clone().requires_grad_(needs_gradient), batch_labels)
        value.backward()
        results.append([value.detach(), *(parameter.grad for parameter in loss.parameters())])
    for with_gradient, without in zip(*results, strict=True):
        torch.testing.assert_close(without, with_gradient)
        for parameter in loss.parameters():
            parameter.requires_grad_(False)
    assert not memory(batch, batch_labels).requires_grad


@pytest.mark.parametrize("memory_dtype", [torch.float16, torch.bfloat16, torch.float32])
@pytest.mark.parametrize("loss", LOSSES)
def test_in_lower_precision(loss: str, memory_dtype: torch.dtype, device: torch.device) -> None:
    """Against the rows as the memory gives them, adapted."""
    for miner in ("none", "multi-similarity", "triplet margin"):
        memory = XBNWrapper(getattr(losses, loss)(), D, NUM_ROWS, MINERS[miner](), memory_dtype=memory_dtype)
        memory.to(device)
        for seed in range(4):
            rows, labels = rows_of("any", seed)
            memory(rows[-NUM_ANCHORS:].float().to(device), labels[-NUM_ANCHORS:].to(device))
        batch, batch_labels = rows[:NUM_ANCHORS].float(), labels[:NUM_ANCHORS]
        ours = value_and_gradients(memory.eval(), batch.to(device), batch_labels.to(device))
        expected = pmls(on_cpu(memory), batch, batch_labels, None)
        assert_as_pmls([x.cpu() for x in ours], expected, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("loss", LOSSES)
def test_of_many_rows(loss: str) -> None:
    """So many that anchors and rows are compared some at a time."""
    num_rows, num_anchors = 27_000, 21
    generator = torch.Generator().manual_seed(0)
    rows = torch.randn(num_rows, D, generator=generator, dtype=torch.float64)
    labels = torch.arange(num_rows) // 2
    memory = AdaptiveCrossBatchMemory(getattr(losses, loss)(), D, num_rows, memory_dtype=torch.float64)
    memory.fill_memory(rows, labels)
    memory.eval()
    anchors, anchor_labels = rows[:num_anchors] + 0.1, labels[:num_anchors] * 700
    ours = value_and_gradients(memory, anchors, anchor_labels)
    assert_as_pmls(ours, pmls(memory, anchors, anchor_labels, None), rtol=1e-8)
