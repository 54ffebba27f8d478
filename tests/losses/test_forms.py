"""PML's losses as functions of one matrix give what PML's own code gives."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from lifted_structure import LiftedStructureOfPaper
from pytorch_metric_learning import distances, losses, miners, reducers
from stored_rows import stored_rows
from torch import Tensor

from pml_xbn.losses import _sums
from pml_xbn.losses._choosers import CHOOSERS
from pml_xbn.losses._cosines import Distances
from pml_xbn.losses._forms import FORMS
from pml_xbn.losses._pairs import chosen_pairs
from pml_xbn.losses._seam import Comparison, form_of, loss_against

D = 5
LOSSES = {cls.__name__: cls for cls in FORMS}
DISTANCES: dict[str, Callable[[], distances.BaseDistance]] = {
    "cosine": distances.CosineSimilarity,
    "Euclidean": distances.LpDistance,
    "squared Euclidean": lambda: distances.LpDistance(power=2),
    "Euclidean, any length": lambda: distances.LpDistance(normalize_embeddings=False),
    "dot product": lambda: distances.DotProductSimilarity(normalize_embeddings=False),
}
# Those that take one distance alone.
OF_ONE_DISTANCE = {"AngularLoss", "CircleLoss", "SignalToNoiseRatioContrastiveLoss", "TupletMarginLoss"}
MINERS: dict[str, Callable[[], Any]] = {
    "none": lambda: None,
    "angular": miners.AngularMiner,
    "easy": lambda: miners.BatchEasyHardMiner("easy", "semihard"),
    "all positives": lambda: miners.BatchEasyHardMiner("all", "hard"),
    "hard": miners.BatchHardMiner,
    "hdc": miners.HDCMiner,
    "multi-similarity": miners.MultiSimilarityMiner,
    "pair margin": lambda: miners.PairMarginMiner(0.8, 1.3),
    "triplet margin": miners.TripletMarginMiner,
    "hard triplets": lambda: miners.TripletMarginMiner(0.3, "hard"),
    "easy triplets": lambda: miners.TripletMarginMiner(0.3, "easy"),
    "semihard triplets": lambda: miners.TripletMarginMiner(0.3, "semihard"),
}
REDUCERS: dict[str, Callable[[], reducers.BaseReducer]] = {
    "mean": reducers.MeanReducer,
    "sum": reducers.SumReducer,
    "not zero": reducers.AvgNonZeroReducer,
    "threshold": lambda: reducers.ThresholdReducer(low=0.3, high=1.0),
    "below": lambda: reducers.ThresholdReducer(high=0.4),
    "classes": lambda: reducers.ClassWeightedReducer(torch.tensor([1.0, 2.0, 0.5, 3.0])),
    "anchors": reducers.PerAnchorReducer,
}
PER_ANCHOR = {"CircleLoss", "GeneralizedLiftedStructureLoss", "MultiSimilarityLoss", "NCALoss", "SupConLoss"}
# Ties lie at the margin, or not, as the rounding goes.
OFF_THE_MARGIN = {"SignalToNoiseRatioContrastiveLoss": {"neg_margin": 0.9}}


class Case:
    """A batch against rows, of which those of the batch itself are the last."""

    def __init__(self, seed: int, kind: str = "any", dtype: torch.dtype = torch.float64) -> None:
        generator = torch.Generator().manual_seed(seed)
        self.rows = torch.randn(23, D, generator=generator, dtype=dtype)
        self.row_labels = torch.randint(0, 4, (23,), generator=generator)
        self.own_rows: Tensor | None = torch.arange(16, 23)
        if kind == "one class":
            self.row_labels[:] = 1
        elif kind == "no positives":
            self.row_labels[16:] = torch.arange(7) + 10
        elif kind == "ties":
            self.rows = self.rows.mul(2).round().div(2)
        elif kind == "equal vectors":
            self.rows[3:9] = self.rows[16:22]
            self.rows[10:13] = self.rows[9]
        elif kind == "one row":
            self.rows, self.row_labels, self.own_rows = self.rows[:1], self.row_labels[:1], torch.arange(1)
        elif kind == "mask":
            self.own_rows = None
        self.anchors = (
            self.rows[-7:].clone()
            if self.own_rows is not None
            else torch.randn(7, D, generator=generator, dtype=dtype)
        )
        self.labels = self.row_labels[-7:]

    def ours(self, loss: Any, miner: Any) -> list[Tensor]:
        return self._of(
            loss,
            lambda anchors: loss_against(
                Comparison(
                    loss, miner, anchors, self.labels, stored_rows(self.rows), self.row_labels, self.own_rows
                )
            ),
        )

    def pmls(self, loss: Any, miner: Any) -> list[Tensor]:
        def value(anchors: Tensor) -> Tensor:
            distances = Distances(anchors, stored_rows(self.rows))
            lists = chosen_pairs(miner, distances, self.labels, self.row_labels, self.own_rows)
            return loss(anchors, self.labels, lists, self.rows, self.row_labels)

        return self._of(loss, value)

    def _of(self, loss: Any, value_of: Callable[[Tensor], Tensor]) -> list[Tensor]:
        """The loss and its gradients."""
        anchors = self.anchors.clone().requires_grad_()
        loss.zero_grad()
        value = value_of(anchors)
        (3 * value).backward()
        return [value.detach(), anchors.grad, *(x.grad for x in loss.parameters() if x.grad is not None)]


def made(name: str, **options: Any) -> Any:
    return LOSSES[name](**options)


def assert_equal(case: Case, loss: Any, miner: Any = None) -> None:
    assert form_of(loss) is not None
    pmls_loss = loss
    if isinstance(loss, losses.LiftedStructureLoss):  # of which PML's value is that of other pairs
        pmls_loss = LiftedStructureOfPaper(loss, case.own_rows)
    # Of no terms PML's MeanReducer makes NaN.
    expected = [x.nan_to_num(0) for x in case.pmls(pmls_loss, miner)]
    rtol, atol = (1e-9, 1e-11) if case.rows.dtype == torch.float64 else (1e-5, 1e-5)
    for ours, pmls in zip(case.ours(loss, miner), expected, strict=True):
        torch.testing.assert_close(ours, pmls, rtol=rtol, atol=atol * max(1.0, float(pmls.abs().max())))


@pytest.fixture(params=["whole", "slices"])
def slices(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two anchors at a time, or all."""
    if request.param == "slices":
        monkeypatch.setattr(_sums, "_PAIRS_AT_ONCE", {"cpu": 46, "gpu": 46})


of_every_loss = pytest.mark.parametrize("name", sorted(LOSSES))


@pytest.mark.usefixtures("slices")
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("miner", MINERS)
@of_every_loss
def test_with_every_miner(name: str, miner: str, dtype: torch.dtype) -> None:
    for seed in range(3):
        assert_equal(Case(seed, dtype=dtype), made(name), MINERS[miner]())


@pytest.mark.parametrize("miner", ["none", "pair margin", "hard"])
@pytest.mark.parametrize("distance", DISTANCES)
@pytest.mark.parametrize("name", sorted(LOSSES.keys() - OF_ONE_DISTANCE))
def test_with_every_distance(name: str, distance: str, miner: str) -> None:
    for seed in range(3):
        assert_equal(Case(seed), made(name, distance=DISTANCES[distance]()), MINERS[miner]())


@pytest.mark.usefixtures("slices")
@pytest.mark.parametrize("miner", ["none", "pair margin", "triplet margin"])
@pytest.mark.parametrize("reducer", REDUCERS)
@of_every_loss
def test_with_every_reducer(name: str, reducer: str, miner: str) -> None:
    if reducer == "anchors" and name not in PER_ANCHOR:
        pytest.skip("refused when built")
    loss = made(name, reducer=REDUCERS[reducer]())
    if reducer == "classes" and FORMS[LOSSES[name]].is_column:
        assert form_of(loss) is None  # PML multiplies every term with every weight
        return
    for seed in range(3):
        assert_equal(Case(seed), loss, MINERS[miner]())


@pytest.mark.usefixtures("slices")
@pytest.mark.parametrize("miner", ["none", "multi-similarity", "hard", "triplet margin"])
@pytest.mark.parametrize("kind", ["one class", "no positives", "ties", "equal vectors", "one row", "mask"])
@of_every_loss
def test_of_every_kind_of_rows(name: str, kind: str, miner: str) -> None:
    if (name, kind) == ("TupletMarginLoss", "equal vectors"):
        pytest.skip("of which PML's gradient is infinite")
    options = OFF_THE_MARGIN.get(name, {}) if kind == "ties" else {}
    for seed in range(3):
        assert_equal(Case(seed, kind), made(name, **options), MINERS[miner]())


# -- LiftedStructureLoss -------------------------------------------------------------------------------------


# HDCMiner's share of all pairs is any of two that are mirrored.
@pytest.mark.parametrize("miner", sorted(MINERS.keys() - {"hdc"}))
def test_lifted_structure_is_pmls_where_the_rows_are_the_batch(miner: str) -> None:
    """In its order, so that PML's numbers of rows are those of anchors."""
    for seed in range(3):
        case, loss = Case(seed), losses.LiftedStructureLoss()
        case.rows, case.row_labels, case.own_rows = case.rows[16:], case.row_labels[16:], torch.arange(7)
        expected = case.pmls(loss, MINERS[miner]())
        for ours, pmls in zip(case.ours(loss, MINERS[miner]()), expected, strict=True):
            torch.testing.assert_close(ours, pmls.nan_to_num(0), rtol=1e-9, atol=1e-11)


def test_lifted_structure_does_not_depend_on_the_order_of_the_rows() -> None:
    case, loss = Case(0), losses.LiftedStructureLoss()
    expected = case.ours(loss, None)
    order = torch.randperm(23, generator=torch.Generator().manual_seed(0))
    case.rows, case.row_labels, case.own_rows = case.rows[order], case.row_labels[order], order.argsort()[16:]
    for ours, before in zip(case.ours(loss, None), expected, strict=True):
        torch.testing.assert_close(ours, before, rtol=1e-12, atol=1e-12)


# -- what PML has no finite gradient of ----------------------------------------------------------------------


def test_tuplet_margin_of_equal_vectors_has_the_gradient_amid_those_around_them() -> None:
    """PML's, of an angle of 0, is infinite; that of small angles depends on their side."""
    generator = torch.Generator().manual_seed(0)
    case, loss = Case(0), losses.TupletMarginLoss()
    case.row_labels[16:] = torch.arange(7)
    case.row_labels[:2] = torch.tensor([0, 9])
    offset = 1e-5 * torch.randn(D, generator=generator, dtype=torch.float64)
    case.rows[1] = case.anchors[0] + 1e4 * offset  # a negative that is near, too
    around = []
    for side in (-1, 1):
        case.rows[0] = case.anchors[0] + side * offset
        around.append(case.pmls(loss, None))
    case.rows[0] = case.anchors[0]
    for ours, *pmls in zip(case.ours(loss, None), *around, strict=True):
        torch.testing.assert_close(ours, sum(pmls) / 2, rtol=1e-3, atol=1e-3)
        assert torch.isfinite(ours).all()
    assert not torch.allclose(around[0][1], around[1][1], rtol=1e-2, atol=1e-2)


@pytest.mark.parametrize("name", ["NCALoss", "NTXentLoss"])
def test_a_hopeless_probability_keeps_its_gradient(name: str) -> None:
    """PML's is rounded to zero, beyond which neither loss sees any."""
    loss = losses.NCALoss(softmax_scale=100) if name == "NCALoss" else losses.NTXentLoss(temperature=0.005)
    single, double = (Case(0, "mask", dtype) for dtype in (torch.float32, torch.float64))
    for case in (single, double):
        case.rows, case.anchors = single.rows.to(case.rows), single.anchors[:2].to(case.rows)
        case.labels, case.row_labels[:], case.row_labels[22] = torch.zeros(2, dtype=torch.int64), 1, 0
        case.rows[22] = -case.anchors.sum(dim=0)  # the only positive is the farthest row
    assert not single.pmls(loss, None)[1].any()
    for ours, expected in zip(single.ours(loss, None), double.pmls(loss, None), strict=True):
        assert expected.any()
        torch.testing.assert_close(ours.double(), expected, rtol=1e-4, atol=1e-3)


# -- all are there -------------------------------------------------------------------------------------------


def test_every_supported_loss_has_a_form() -> None:
    assert {cls.__name__ for cls in FORMS} == set(losses.CrossBatchMemory.supported_losses())


def test_every_miner_is_a_function_of_one_matrix() -> None:
    own = {cls for cls in vars(miners).values() if isinstance(cls, type) and cls.__module__.startswith("pyt")}
    others = {miners.BaseMiner, miners.EmbeddingsAlreadyPackagedAsTriplets}
    assert set(CHOOSERS) == own - others
