"""Sums over all triplets, none of which is listed."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from itertools import product
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from pytorch_metric_learning import distances, losses, miners, reducers
from stored_rows import stored_rows
from torch import Tensor

from pml_xbn.losses import _sums
from pml_xbn.losses._choice import all_pairs
from pml_xbn.losses._choosers import CHOOSERS, Candidates
from pml_xbn.losses._cosines import Distances
from pml_xbn.losses._counting import Bounds, Order, counts_within
from pml_xbn.losses._pairs import chosen_pairs
from pml_xbn.losses._seam import Comparison, form_of, loss_against

_angular = importlib.import_module("pml_xbn.losses._forms.angular")  # whose name in the package is a function
TYPES = ["all", "hard", "semihard", "easy"]
COUNTS = st.integers(0, 3)
# Differences of such products are exact.
GRID = st.integers(-2, 2).map(lambda x: x / 2)


class Case:
    """Anchors against rows, the last of which are theirs."""

    def __init__(self, seed: int = 0, num_rows: int = 40, d: int = 4, classes: int = 3) -> None:
        generator = torch.Generator().manual_seed(seed)
        self.rows = torch.randn(num_rows, d, generator=generator, dtype=torch.float64)
        self.row_labels = torch.randint(0, classes, (num_rows,), generator=generator)
        self.own_rows = torch.arange(num_rows - 6, num_rows)

    @property
    def anchors(self) -> Tensor:
        return self.rows[-6:].clone().requires_grad_()

    @property
    def labels(self) -> Tensor:
        return self.row_labels[-6:]

    def ours(self, loss: Any, miner: Any = None, anchors: Tensor | None = None, given: Any = None) -> Tensor:
        anchors = self.anchors if anchors is None else anchors
        rows = stored_rows(self.rows)
        arguments = anchors, self.labels, rows, self.row_labels, self.own_rows, given
        return loss_against(Comparison(loss, miner, *arguments))

    def lists(self, miner: Any) -> tuple[Tensor, ...]:
        """What PML's own code chooses."""
        of_rows = Distances(self.anchors.detach(), stored_rows(self.rows))
        return chosen_pairs(miner, of_rows, self.labels, self.row_labels, self.own_rows)

    def assert_as_pmls(self, loss: Any, miner: Any = None) -> None:
        """Values and gradients."""
        assert form_of(loss) is not None
        anchors, results = self.anchors, []
        for value in (
            self.ours(loss, miner, anchors),
            loss(anchors, self.labels, self.lists(miner), self.rows, self.row_labels),
        ):
            inputs = [anchors, *loss.parameters()]
            gradients = torch.autograd.grad(value, inputs, allow_unused=True, materialize_grads=True)
            results.append([value.detach(), *gradients])
        for ours, pmls in zip(*results, strict=True):
            torch.testing.assert_close(ours, pmls, rtol=1e-9, atol=1e-11)


@pytest.fixture(params=["whole", "parts"])
def parts(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Few pairs at a time, or all."""
    if request.param == "parts":
        monkeypatch.setattr(_sums, "_PAIRS_AT_ONCE", {"cpu": 90, "gpu": 90})
        monkeypatch.setattr(_sums, "_PRODUCTS_AT_ONCE", 90)
        monkeypatch.setattr(_sums, "_FEWEST_VECTORS", 2)


# -- counts ------------------------------------------------------------------------------------------------


@settings(max_examples=300)
@given(st.data(), st.integers(1, 3), st.integers(1, 9), st.booleans())
def test_counts_are_those_of_a_list(data: st.DataObject, a: int, n: int, has_lower: bool) -> None:
    def matrix(of: st.SearchStrategy) -> Tensor:
        return torch.tensor(data.draw(st.lists(of, min_size=a * n, max_size=a * n))).view(a, n)

    numbers = st.integers(-2, 2).map(float) | st.just(-0.0)
    bound = numbers | st.sampled_from([float("inf"), -float("inf"), float("nan")])
    mat, upper = matrix(numbers | st.just(float("nan"))), matrix(bound)
    lower = matrix(bound) if has_lower else None
    positive, negative = (matrix(data.draw(st.sampled_from([st.booleans(), COUNTS]))) for _ in range(2))
    expected = torch.zeros(2, a, n, dtype=torch.int32)
    for anchor, p, m in product(range(a), range(n), range(n)):
        is_above = lower is None or bool(lower[anchor, p] <= mat[anchor, m])
        if is_above and mat[anchor, m] < upper[anchor, p]:
            number = int(positive[anchor, p]) * int(negative[anchor, m])
            expected[0, anchor, p] += number
            expected[1, anchor, m] += number
    counts = counts_within(Bounds(lower, upper), Order.of(mat), positive, negative)
    assert torch.equal(torch.stack(counts), expected)


@given(
    st.lists(st.tuples(GRID, GRID), min_size=7, max_size=14),
    st.sampled_from(TYPES),
    st.sampled_from([-0.5, 0.0, 0.25, 1.0]),
    st.booleans(),
)
def test_triplet_margin_miner_chooses_what_pmls_does(
    rows: list, kind: str, margin: float, inverted: bool
) -> None:
    case = Case(num_rows=len(rows), classes=2)
    case.rows = torch.tensor(rows, dtype=torch.float64)
    distance = (distances.DotProductSimilarity if inverted else distances.LpDistance)(
        normalize_embeddings=False, **({} if inverted else {"p": 1})
    )
    miner = miners.TripletMarginMiner(margin, kind, distance=distance)
    assert_chooses_as_pmls(case, miner)
    if kind == "all":
        rules = [reducers.ThresholdReducer(low=0.5), reducers.ThresholdReducer(low=0.0, high=0.5)]
        for loss, rule in product((losses.TripletMarginLoss, losses.MarginLoss), rules):
            case.assert_as_pmls(loss(margin=0.25, distance=distance, reducer=rule))
            case.assert_as_pmls(loss(margin=0.25, distance=distance, reducer=rule), miner)


@pytest.mark.usefixtures("parts")
@pytest.mark.parametrize("angle", [0, 20, 45, 90])
def test_angular_miner_chooses_what_pmls_does(angle: float) -> None:
    for seed in range(5):
        assert_chooses_as_pmls(Case(seed), miners.AngularMiner(angle))


def assert_chooses_as_pmls(case: Case, miner: Any) -> None:
    pairs = all_pairs(case.labels, case.row_labels, case.own_rows)
    of_rows = Distances(case.anchors.detach(), stored_rows(case.rows))
    choice = CHOOSERS[type(miner)].choose(
        miner, Candidates(pairs, of_rows, case.labels, case.row_labels, case.own_rows)
    )
    lists = case.lists(miner)
    for ours, pmls in zip(choice.lists(), lists, strict=True):
        assert torch.equal(ours, pmls)
    expected = type(choice).of_lists(lists, choice.positive.shape)
    assert torch.equal(choice.positive, expected.positive)
    assert torch.equal(choice.negative, expected.negative)


# -- losses of triplets ------------------------------------------------------------------------------------

REDUCERS: dict[str, Callable[[], Any]] = {
    "own": lambda: None,
    "mean": reducers.MeanReducer,
    "sum": reducers.SumReducer,
    "not zero": reducers.AvgNonZeroReducer,
    "between": lambda: reducers.ThresholdReducer(low=0.3, high=0.8),
    "all below": lambda: reducers.ThresholdReducer(high=0.4),
    "nothing below": lambda: reducers.ThresholdReducer(high=0),
    "less than all": lambda: reducers.ThresholdReducer(low=-1, high=0.7),
    "classes": lambda: reducers.ClassWeightedReducer(torch.tensor([1.0, 2.0, 0.5])),
}
MINERS: dict[str, Callable[[], Any]] = {
    "none": lambda: None,
    "cosine": lambda: miners.TripletMarginMiner(0.3, distance=distances.CosineSimilarity()),
    "Euclidean": lambda: miners.TripletMarginMiner(0.3, "semihard"),
    "squared": lambda: miners.TripletMarginMiner(0.3, "easy", distance=distances.LpDistance(power=2)),
    "city block": lambda: miners.TripletMarginMiner(0.3, "hard", distance=distances.LpDistance(p=1)),
    "angular": miners.AngularMiner,
    "listed": miners.BatchHardMiner,
}
LOSSES: dict[str, Callable[..., Any]] = {
    "triplet": lambda **kw: losses.TripletMarginLoss(margin=0.2, **kw),
    "cosine": lambda **kw: losses.TripletMarginLoss(margin=0.2, distance=distances.CosineSimilarity(), **kw),
    "squared": lambda **kw: losses.TripletMarginLoss(distance=distances.LpDistance(power=2), **kw),
    "smooth": lambda **kw: losses.TripletMarginLoss(smooth_loss=True, **kw),
    "margin": losses.MarginLoss,
    "one beta": lambda **kw: losses.MarginLoss(learn_beta=True, nu=0.1, **kw),
    "a beta each": lambda **kw: losses.MarginLoss(learn_beta=True, nu=0.1, num_classes=3, **kw),
    "a given beta each": lambda **kw: losses.MarginLoss(num_classes=3, **kw),
    "margin of cosines": lambda **kw: losses.MarginLoss(
        beta=0.3, distance=distances.CosineSimilarity(), **kw
    ),
}


@pytest.mark.usefixtures("parts")
@pytest.mark.parametrize("miner", MINERS)
@pytest.mark.parametrize("reducer", REDUCERS)
@pytest.mark.parametrize("loss", LOSSES)
def test_every_reducer_and_order(loss: str, reducer: str, miner: str) -> None:
    for seed in range(2):
        Case(seed).assert_as_pmls(LOSSES[loss](reducer=REDUCERS[reducer]()).double(), MINERS[miner]())


@pytest.mark.parametrize("loss", ["one beta", "a beta each"])
def test_beta_is_not_regularized_where_there_are_no_triplets(loss: str) -> None:
    case = Case(num_rows=6)
    case.row_labels[:] = 0
    case.assert_as_pmls(LOSSES[loss]())


@pytest.mark.parametrize("loss", LOSSES)
def test_vectors_of_zeros_have_no_order_in_common(loss: str) -> None:
    case = Case()
    case.rows[:5] = 0
    for miner in MINERS.values():
        case.assert_as_pmls(LOSSES[loss]().double(), miner())


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("length", [3, 4])
def test_pairs_and_triplets_that_are_given_twice_count_twice(loss: str, length: int) -> None:
    case, made = Case(), LOSSES[loss]()
    given = tuple(x[::3].repeat(2) for x in case.lists(miners.TripletMarginMiner()))
    if length == 4:
        given = (*given[:2], given[0], given[2])
    miner = miners.TripletMarginMiner(0.1, "hard") if length == 3 else miners.PairMarginMiner(0.3, 1.0)
    lists = tuple(torch.cat(x) for x in zip(case.lists(miner), given, strict=True))
    value = case.ours(made, miner, given=given)
    expected = made(case.anchors, case.labels, lists, case.rows, case.row_labels)
    torch.testing.assert_close(value, expected, rtol=1e-9, atol=0)


@pytest.mark.usefixtures("parts")
@pytest.mark.parametrize("miner", ["none", "cosine", "angular"])
@pytest.mark.parametrize("loss", [*LOSSES, "angular"])
def test_first_and_second_derivatives(loss: str, miner: str) -> None:
    case = Case(num_rows=15)
    made = {**LOSSES, "angular": losses.AngularLoss}[loss](reducer=reducers.MeanReducer()).double()

    def value(anchors: Tensor, *_: Tensor) -> Tensor:
        return case.ours(made, MINERS[miner](), anchors)

    inputs = (case.anchors, *made.parameters())
    assert torch.autograd.gradcheck(value, inputs, nondet_tol=1e-12)
    assert torch.autograd.gradgradcheck(value, inputs, nondet_tol=1e-12)


def test_triplets_may_be_more_than_2_to_the_31() -> None:
    case, half = Case(), 100_000
    case.rows = torch.tensor([[0.25], [0.5]], dtype=torch.float64).repeat_interleave(half, dim=0)
    case.row_labels = torch.tensor([0, 1]).repeat_interleave(half)
    distance = distances.DotProductSimilarity(normalize_embeddings=False)
    anchors = torch.ones(2, 1, dtype=torch.float64)
    for miner in (None, miners.TripletMarginMiner(0.1, distance=distance)):
        for reducer, expected in ((None, 0.5), (reducers.SumReducer(), 0.5 * 2 * half**2)):
            loss = losses.TripletMarginLoss(margin=0.25, distance=distance, reducer=reducer)
            labels = torch.zeros(2).long()
            compared = Comparison(loss, miner, anchors, labels, stored_rows(case.rows), case.row_labels)
            value = loss_against(compared)
            torch.testing.assert_close(value, torch.tensor(expected, dtype=torch.float64))
    if miner is not None:
        assert miner.num_triplets == 2 * half**2


# -- AngularLoss -------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("parts")
@pytest.mark.parametrize("miner", MINERS)
@pytest.mark.parametrize("length", [1e-3, 1.0, 30.0, 1e3])
def test_angles_of_rows_of_any_length(length: float, miner: str) -> None:
    for seed in range(2):
        case = Case(seed)
        case.rows *= length
        case.assert_as_pmls(losses.AngularLoss(), MINERS[miner]())


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(("spread", "is_hopeless"), [(5.0, False), (60.0, False), (3000.0, True)])
def test_sums_of_exponentials_of_any_size(
    spread: float, is_hopeless: bool, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Products in float32, which hold 60 no longer; in float64; and one anchor at a time."""
    generator = torch.Generator().manual_seed(0)
    x, y = (spread * torch.randn(k, 20, generator=generator, dtype=torch.float64) for k in (3, 4))
    x[:, :2], y[:, :2] = -torch.inf, -torch.inf
    x[0, 2:4] = torch.tensor([2 * spread, -2 * spread])
    y[0, 2:4] = torch.tensor([-2 * spread, 2 * spread])
    of_each, calls = _angular.checkpoint, []
    monkeypatch.setattr(_angular, "checkpoint", lambda *a, **kw: calls.append(a) or of_each(*a, **kw))
    expected_leaf, leaf = x.to(dtype).double().requires_grad_(), x.to(dtype).requires_grad_()
    y = y.to(dtype)
    weights = torch.rand(3, 4, generator=generator, dtype=torch.float64)
    expected = (expected_leaf.unsqueeze(1) + y.double()).logsumexp(dim=2)
    sums = _angular._log_sums_exp(leaf, y)
    (expected * weights).sum().backward()
    (sums * weights.to(dtype)).sum().backward()
    assert bool(calls) == is_hopeless
    rtol = 1e-5 if dtype == torch.float32 else 1e-12
    torch.testing.assert_close(sums.double(), expected, rtol=rtol, atol=rtol)
    atol = spread * rtol  # of differences of exponents, which have been rounded
    torch.testing.assert_close(leaf.grad.double(), expected_leaf.grad, rtol=rtol, atol=atol)


@pytest.mark.parametrize("miner", ["none", "angular"])
def test_angles_of_long_rows_in_many_dimensions(miner: str) -> None:
    """As vectors of a normal distribution are: the rows of a class are far nearer than all others."""
    for classes in (3, 40):
        case = Case(num_rows=120, d=400, classes=classes)
        case.assert_as_pmls(losses.AngularLoss(), MINERS[miner]())
        expected = case.ours(losses.AngularLoss(), MINERS[miner]())
        case.rows = case.rows.float()
        value = case.ours(losses.AngularLoss(), MINERS[miner]())
        torch.testing.assert_close(value.double(), expected, rtol=1e-5, atol=0)
