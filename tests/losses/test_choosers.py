"""Miners as functions of one matrix choose what PML's own code chooses."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from pytorch_metric_learning import distances, losses, miners
from pytorch_metric_learning.utils import loss_and_miner_utils as lmu
from stored_rows import stored_rows
from torch import Tensor

from pml_xbn import XBNWrapper
from pml_xbn.losses._choice import Choice, all_pairs
from pml_xbn.losses._choosers import CHOOSERS, Candidates
from pml_xbn.losses._choosers.uniform_histogram import bins_of
from pml_xbn.losses._cosines import Distances
from pml_xbn.losses._pairs import chosen_pairs

D = 4


class Case(NamedTuple):
    """Anchors and rows, of which those of the anchors themselves are the last."""

    anchors: Tensor
    labels: Tensor
    rows: Tensor
    row_labels: Tensor
    own_rows: Tensor | None

    def candidates(self, miner: Any) -> Candidates:
        distances = Distances(self.anchors, stored_rows(self.rows))
        pairs = all_pairs(self.labels, self.row_labels, self.own_rows)
        return Candidates(pairs, distances, self.labels, self.row_labels, self.own_rows)

    def ours(self, miner: Any) -> Choice:
        return CHOOSERS[type(miner)].choose(miner, self.candidates(miner))

    def pmls(self, miner: Any) -> Choice:
        distances = Distances(self.anchors, stored_rows(self.rows))
        lists = chosen_pairs(miner, distances, self.labels, self.row_labels, self.own_rows)
        return Choice.of_lists(lists, (len(self.labels), len(self.row_labels)))


KINDS = ["any", "ties", "equal vectors", "one class", "no positives", "no own rows", "one row"]


def case_of(seed: int, kind: str = "any", dtype: torch.dtype = torch.float64) -> Case:
    generator = torch.Generator().manual_seed(seed)
    rows = torch.randn(21, D, generator=generator, dtype=dtype)
    labels = torch.randint(0, 3, (21,), generator=generator)
    if kind == "ties":
        rows = rows.argsort(dim=1).to(dtype) + 1
    elif kind == "equal vectors":
        rows[2:8], rows[10:13] = rows[15:], rows[9]
    elif kind == "one class":
        labels[:] = 1
    elif kind == "no positives":
        labels[15:] = torch.arange(6) + 3
    elif kind == "one row":
        rows, labels = rows[:1], labels[:1]
    own_rows = None if kind == "no own rows" else torch.arange(len(rows))[-6:]
    return Case(rows[-6:].clone(), labels[-6:], rows, labels, own_rows)


DISTANCES = st.sampled_from(
    [
        distances.CosineSimilarity(),
        distances.DotProductSimilarity(normalize_embeddings=False),
        distances.LpDistance(),
        distances.LpDistance(normalize_embeddings=False),
        distances.LpDistance(power=2),
        distances.LpDistance(p=1),
    ]
)
RANGES = st.none() | st.tuples(st.floats(-1, 1), st.floats(0, 3))


@st.composite
def easy_hard(draw: Callable[[Any], Any]) -> miners.BatchEasyHardMiner:
    strategies = draw(
        st.tuples(*[st.sampled_from(["hard", "semihard", "easy", "all"])] * 2).filter(
            lambda pair: "semihard" not in pair or not {*pair} <= {"semihard", "all"}
        )
    )
    return miners.BatchEasyHardMiner(*strategies, draw(RANGES), draw(RANGES), distance=draw(DISTANCES))


# Those that draw nothing.
MINERS: dict[type, st.SearchStrategy[Any]] = {
    miners.BatchEasyHardMiner: easy_hard(),
    miners.BatchHardMiner: st.builds(
        miners.BatchHardMiner, allowed_pos_range=RANGES, allowed_neg_range=RANGES, distance=DISTANCES
    ),
    miners.HDCMiner: st.builds(miners.HDCMiner, filter_percentage=st.floats(0, 1), distance=DISTANCES),
    miners.MultiSimilarityMiner: st.builds(
        miners.MultiSimilarityMiner, epsilon=st.floats(-0.5, 1.5), distance=DISTANCES
    ),
    miners.PairMarginMiner: st.builds(
        miners.PairMarginMiner,
        pos_margin=st.floats(-1, 3),
        neg_margin=st.floats(-1, 3),
        distance=DISTANCES,
    ),
}
SEEDS = st.integers(0, 2**31)
of_every_miner = pytest.mark.parametrize("cls", MINERS)


def assert_alike(ours: Tensor, pmls: Tensor, mat: Tensor, *, is_by_anchor: bool) -> None:
    """The same pairs, but for which of those with equal distances."""
    if len(mat.unique()) == mat.numel():
        assert torch.equal(ours.int(), pmls)
        return
    places = [counts.int() if is_by_anchor else counts.int().view(1, -1) for counts in (ours, pmls)]
    values = [mat.view(counts.shape).masked_fill(counts == 0, torch.inf).sort().values for counts in places]
    assert torch.equal(*values)
    assert ours.max() <= 1


@of_every_miner
@settings(max_examples=200)
@given(data=st.data(), seed=SEEDS, kind=st.sampled_from(KINDS), is_float32=st.booleans())
def test_the_choice_is_pmls(cls: type, data: st.DataObject, seed: int, kind: str, is_float32: bool) -> None:
    miner = data.draw(MINERS[cls])
    case = case_of(seed, kind, torch.float32 if is_float32 else torch.float64)
    candidates = case.candidates(miner)
    ours, pmls, mat = case.ours(miner), case.pmls(miner), candidates.mat(miner)
    for chosen, expected, among in zip(ours[:2], pmls[:2], candidates.pairs[:2], strict=True):
        assert not chosen[~among].any()
        assert_alike(chosen, expected, mat, is_by_anchor=CHOOSERS[cls].is_by_anchor)
    assert (ours.triplets is None) == (pmls.triplets is None)
    if ours.triplets is not None:
        assert torch.equal(ours.triplets.anchors, pmls.triplets.anchors)
        of_triplets = Choice.of_lists(ours.lists(), mat.shape)
        assert torch.equal(of_triplets.positive, ours.positive.int())
        assert torch.equal(of_triplets.negative, ours.negative.int())


class OfSome(Distances):
    """The part of some anchors, to the last digit."""

    def __init__(self, whole: Distances, anchors: slice) -> None:
        super().__init__(whole.anchors[anchors], whole._rows)
        self.whole, self.part = whole, anchors

    def measured(self, distance: distances.BaseDistance) -> Tensor:
        return self.whole.measured(distance)[self.part]


@pytest.mark.parametrize("cls", [cls for cls in MINERS if CHOOSERS[cls].is_by_anchor])
@given(data=st.data(), seed=SEEDS, kind=st.sampled_from(KINDS[:-1]), first=st.integers(0, 5))
def test_the_choice_for_some_anchors_is_part_of_that_for_all(
    cls: type, data: st.DataObject, seed: int, kind: str, first: int
) -> None:
    miner, some = data.draw(MINERS[cls]), slice(first, data.draw(st.integers(first + 1, 6)))
    everyone = case_of(seed, kind).candidates(miner)
    of_all = CHOOSERS[cls].choose(miner, everyone).of_anchors(some)
    part = Candidates(
        everyone.pairs.of_anchors(some),
        OfSome(everyone.distances, some),
        everyone.labels[some],
        everyone.row_labels,
        None if everyone.own_rows is None else everyone.own_rows[some],
    )
    of_part = CHOOSERS[cls].choose(miner, part)
    assert all(torch.equal(x, y) for x, y in zip(of_part.lists(), of_all.lists(), strict=True))


def test_rows_at_an_infinite_distance_are_no_reason_to_choose_an_own_row() -> None:
    """Nor one of another class: the variance that distances are divided by is 0."""
    case, miner = case_of(0), miners.BatchHardMiner(distance=distances.SNRDistance())
    case.anchors[:], case.labels[:], case.row_labels[0] = 1, 1, 1
    choice, among = case.ours(miner), case.candidates(miner).pairs
    assert case.candidates(miner).mat(miner).isinf().all()
    assert not (choice.positive & ~among.positive).any()
    assert not (choice.negative & ~among.negative).any()


def test_pairs_that_somebody_gives_hdc_miner_are_filtered() -> None:
    miner, values = miners.HDCMiner(0.25), []
    embeddings, labels = torch.randn(12, D), torch.arange(12) % 3
    given_pairs = tuple(numbers[:20] for numbers in lmu.get_all_pairs_indices(labels))
    for loss_fn in (XBNWrapper(losses.ContrastiveLoss(), D, 12, miner), losses.ContrastiveLoss()):
        miner.set_idx_externally(given_pairs, labels)
        pairs = () if isinstance(loss_fn, XBNWrapper) else (miner(embeddings, labels),)
        values.append(loss_fn(embeddings, labels, *pairs))
        assert (miner.num_pos_pairs, miner.num_neg_pairs) == (5, 5)
    torch.testing.assert_close(*values)


# -- draws -------------------------------------------------------------------------------------------------


class Binned(miners.UniformHistogramMiner):
    """Notes in which bin PML finds each value."""

    def filter_by_bin(self, distances: Tensor, bins: Tensor, num_pairs: int) -> Tensor:
        # PML's two conditions, for all bins at a time; the last one is closed.
        low, high = bins[:-1, None] <= distances, distances < bins[1:, None]
        high[-1] = distances <= bins[-1]
        self.bins = (low & high).int().argmax(dim=0)
        assert torch.equal((low & high).sum(dim=0), torch.ones(len(distances), dtype=torch.int64))
        return super().filter_by_bin(distances, bins, num_pairs)


def values_near_edges(low: float, width: float, num_bins: int, dtype: torch.dtype) -> Tensor:
    edges = torch.linspace(low, low + width, num_bins + 1, dtype=dtype)
    after, before = (torch.nextafter(edges, x.expand_as(edges)) for x in (edges[-1], edges[0]))
    return torch.cat([edges, after, before])


@settings(max_examples=200)
@given(
    low=st.sampled_from([0.0, 1.0, -3.0]) | st.floats(-1, 1),
    width=st.sampled_from([0.0, 1e-6, 1.0, 2.0, 1e3]) | st.floats(1e-6, 2),
    num_bins=st.sampled_from([1, 2, 7, 100, 256, 300]),
    lattice=st.sampled_from([None, 4, 10, 64, 777]),
    dtype=st.sampled_from([torch.float32, torch.float64]),
)
def test_bins_are_pmls(
    low: float, width: float, num_bins: int, lattice: int | None, dtype: torch.dtype
) -> None:
    if lattice is None:
        values = values_near_edges(low, width, num_bins, dtype)
    else:
        values = (torch.arange(lattice + 1) / lattice).to(dtype) * width + low
    miner = Binned(num_bins, 1, 1)
    miner.get_uniformly_distributed_pairs(values, *torch.zeros(2, len(values)), 1)
    ours = bins_of(values, num_bins).long()
    # The numbers of bins do not matter where floats lie farther apart than edges.
    shared = {*zip(ours.tolist(), miner.bins.tolist(), strict=True)}
    assert len(shared) == len(ours.unique()) == len(miner.bins.unique())


def assert_expected(counts: Tensor, expected: Tensor) -> None:
    """Counts are as far from what is expected as chance may take them, and none where there is none."""
    assert not counts[expected == 0].any()
    assert ((counts - expected).abs() <= 6 * expected.sqrt() + 6).all()


ways = pytest.mark.parametrize("choose", [Case.ours, Case.pmls])


@ways
@pytest.mark.parametrize("kind", KINDS)
def test_every_bin_gives_as_many_pairs_each_as_often_as_another(
    choose: Callable[..., Choice], kind: str
) -> None:
    miner, case = miners.UniformHistogramMiner(7, 3000, 5000), case_of(0, kind)
    candidates, choice = case.candidates(miner), choose(case, miner)
    for counts, among, per_bin in zip(choice[:2], candidates.pairs[:2], (3000, 5000), strict=True):
        expected = torch.zeros_like(counts, dtype=torch.float64)
        if among.any():
            bins = bins_of(candidates.mat(miner)[among], 7).long()
            expected[among] = per_bin / bins.bincount()[bins].double()
            of_bins = bins.bincount(counts[among].double())
            assert ((of_bins == per_bin) | (bins.bincount() == 0)).all()
        assert_expected(counts, expected)


def negative_weights(case: Case, miner: miners.DistanceWeightedMiner) -> Tensor:
    """How probable each negative is: the inverse of the density of distances on a sphere."""
    anchors, rows = (torch.nn.functional.normalize(x) for x in (case.anchors, case.rows))
    mat = torch.cdist(anchors, rows).clamp_min(miner.cutoff)
    weights = 1 / (mat ** (D - 2) * (1 - mat**2 / 4) ** ((D - 3) / 2))
    is_same_class = case.labels[:, None] == case.row_labels
    weights[is_same_class | (mat >= miner.nonzero_loss_cutoff) | weights.isinf()] = 0
    return weights / weights.sum(dim=1, keepdim=True).clamp_min(1e-30)


def antipodes() -> Case:
    """A row at the distance 2, where the weight is infinite."""
    case = case_of(5)
    case.rows[-6:], case.rows[:2] = 0, 0
    case.rows[-6:, 0], case.rows[:2, 0] = 3, -2
    case.labels[:], case.row_labels[:2] = 1, 2
    return case._replace(anchors=case.rows[-6:].clone())


def of_unknown_classes() -> Case:
    case = case_of(3, "no own rows")
    return case._replace(labels=torch.tensor([9, 0, 1, -2, 2, 5]))


TRIPLETS: dict[str, tuple[Callable[[], Case], float, float]] = {
    **{kind: (lambda kind=kind: case_of(1, kind), 0.5, 1.4) for kind in KINDS},
    "some without negatives": (lambda: case_of(1), 0.9, 0.91),
    "of any distance": (lambda: case_of(1), 0.0, 3.0),
    "antipodes": (antipodes, 0.0, 3.0),
    "unknown classes": (of_unknown_classes, 0.5, 1.4),
}


@ways
@pytest.mark.parametrize("name", TRIPLETS)
def test_triplets_are_drawn_by_the_distance_of_their_negatives(
    choose: Callable[..., Choice], name: str
) -> None:
    """Of an anchor every positive once in the mean, but its own copy never."""
    make, *cutoffs = TRIPLETS[name]
    miner, case, num_calls = miners.DistanceWeightedMiner(*cutoffs), make(), 300
    num_rows, is_positive = len(case.rows), case.candidates(miner).pairs.positive
    counts = torch.zeros(len(case.labels), num_rows, num_rows, dtype=torch.float64)
    for _ in range(num_calls):
        triplets = choose(case, miner).triplets
        counts.index_put_(triplets.lists(), counts.new_ones(()), accumulate=True)
    expected = num_calls * is_positive.unsqueeze(2) * negative_weights(case, miner).unsqueeze(1)
    for dims in ([], [1], [2], [1, 2]):
        sums = [x.sum(dim=dims) if dims else x for x in (counts, expected)]
        assert_expected(*sums)


def test_no_triplet_is_drawn_where_no_weight_is_finite() -> None:
    """PML raises an error of a maximum of nothing."""
    choice = case_of(0, "one row").ours(miners.DistanceWeightedMiner(cutoff=0.0))
    assert len(choice.triplets.anchors) == 0
    assert choice.num_pairs() == [0, 0]
