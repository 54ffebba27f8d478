"""PML's losses as functions of one matrix give what PML's own code gives."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from pytorch_metric_learning import distances, losses, miners, reducers
from stored_rows import stored_rows
from torch import Tensor

from pml_xbn.losses import _sums
from pml_xbn.losses._choosers import CHOOSERS
from pml_xbn.losses._cosines import Distances
from pml_xbn.losses._forms import FORMS
from pml_xbn.losses._pairs import chosen_pairs
from pml_xbn.losses._seam import form_of, loss_against

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
# Of LiftedStructureLoss against other rows than the batch PML's value is wrong: see its own test.
WRONG = {"LiftedStructureLoss"}


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
                loss, miner, anchors, self.labels, stored_rows(self.rows), self.row_labels, self.own_rows
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
    expected = [x.nan_to_num(0) for x in case.pmls(loss, miner)]  # of no terms PML's MeanReducer makes NaN
    tolerance = (
        {"rtol": 1e-9, "atol": 1e-11} if case.rows.dtype == torch.float64 else {"rtol": 1e-5, "atol": 1e-5}
    )
    for ours, pmls in zip(case.ours(loss, miner), expected, strict=True):
        torch.testing.assert_close(ours, pmls, **tolerance)


@pytest.fixture(params=["whole", "slices"])
def slices(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two anchors at a time, or all."""
    if request.param == "slices":
        monkeypatch.setattr(_sums, "_PAIRS_AT_ONCE", {"cpu": 46, "gpu": 46})


pmls_are_right = pytest.mark.parametrize("name", sorted(LOSSES.keys() - WRONG))


@pytest.mark.usefixtures("slices")
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("miner", MINERS)
@pmls_are_right
def test_with_every_miner(name: str, miner: str, dtype: torch.dtype) -> None:
    for seed in range(3):
        assert_equal(Case(seed, dtype=dtype), made(name), MINERS[miner]())


@pytest.mark.parametrize("miner", ["none", "pair margin", "hard"])
@pytest.mark.parametrize("distance", DISTANCES)
@pytest.mark.parametrize("name", sorted(LOSSES.keys() - WRONG - OF_ONE_DISTANCE))
def test_with_every_distance(name: str, distance: str, miner: str) -> None:
    for seed in range(3):
        assert_equal(Case(seed), made(name, distance=DISTANCES[distance]()), MINERS[miner]())


@pytest.mark.usefixtures("slices")
@pytest.mark.parametrize("miner", ["none", "pair margin", "triplet margin"])
@pytest.mark.parametrize("reducer", REDUCERS)
@pmls_are_right
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
@pmls_are_right
def test_of_every_kind_of_rows(name: str, kind: str, miner: str) -> None:
    for seed in range(3):
        assert_equal(Case(seed, kind), made(name), MINERS[miner]())


def test_every_supported_loss_has_a_form() -> None:
    assert {cls.__name__ for cls in FORMS} == set(losses.CrossBatchMemory.supported_losses())


def test_every_miner_is_a_function_of_one_matrix() -> None:
    own = {cls for cls in vars(miners).values() if isinstance(cls, type) and cls.__module__.startswith("pyt")}
    others = {miners.BaseMiner, miners.EmbeddingsAlreadyPackagedAsTriplets}
    assert set(CHOOSERS) == own - others
