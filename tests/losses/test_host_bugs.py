"""The defects of PML's ``CrossBatchMemory``: each shown on PML's class, and absent from ours.

The numbers are those of the table in ``docs/host_bugs.md``.
"""

from __future__ import annotations

from collections.abc import Callable
from inspect import signature
from typing import Any

import pytest
import torch
from exact import exact
from kinds import KINDS, WRAPPERS
from lifted_structure import LiftedStructureOfPaper
from pytorch_metric_learning import losses, miners, reducers
from pytorch_metric_learning.distances import DotProductSimilarity, LpDistance
from pytorch_metric_learning.losses import ContrastiveLoss, CrossBatchMemory
from pytorch_metric_learning.utils.distributed import DistributedLossWrapper
from pytorch_metric_learning.utils.loss_and_miner_utils import get_all_pairs_indices as all_pairs
from torch import Tensor, nn

from pml_xbn import XBNWrapper

D = 4


@pytest.fixture(params=WRAPPERS)
def ours(request: pytest.FixtureRequest) -> Callable[..., nn.Module]:
    return KINDS[request.param].memory


def batch(size: int = 4, first_label: int = 0) -> tuple[Tensor, Tensor]:
    return torch.randn(size, D), torch.arange(size) // 2 + first_label


class PairKeeper(ContrastiveLoss):
    """Keeps the pairs that it is asked to compare."""

    def forward(self, embeddings: Tensor, labels: Tensor, indices_tuple: tuple, *refs: Tensor) -> Tensor:
        self.indices, self.labels, self.ref_labels = indices_tuple, labels, refs[1]
        return super().forward(embeddings, labels, indices_tuple, *refs)

    def wrongly_labelled(self) -> int:
        anchors, positives, others, negatives = self.indices
        wrong_positives = self.labels[anchors] != self.ref_labels[positives]
        wrong_negatives = self.labels[others] == self.ref_labels[negatives]
        return int(wrong_positives.sum() + wrong_negatives.sum())


PairKeeper.__name__ = "ContrastiveLoss"  # PML's class goes by the name, which a subclass does not have


def test_b1_given_pairs_mean_rows_of_the_batch(ours: Callable) -> None:
    embeddings, labels = batch()
    given = miners.BatchHardMiner()(embeddings, labels)

    def wrong_pairs(loss_fn: nn.Module) -> int:
        loss_fn(*batch(first_label=7))  # so that the batch is not the first in memory
        # One step before the pairs: PML 2.9 asserts that no pair is both positive and negative.
        loss_fn.loss.loss_method = lambda mat, indices: loss_fn.loss.zero_losses()
        loss_fn(embeddings, labels, given)
        return loss_fn.loss.wrongly_labelled()

    assert wrong_pairs(CrossBatchMemory(PairKeeper(), D, 20)) > 0
    assert wrong_pairs(ours(PairKeeper(), D, 20)) == 0


def test_b2_a_checkpoint_holds_the_queue(ours: Callable) -> None:
    def rows_after_resume(make: Callable) -> int:
        first, second = make(PairKeeper(), D, 20), make(PairKeeper(), D, 20)
        for _ in range(3):
            first(*batch())
        second.load_state_dict(first.state_dict())
        second(*batch())
        return len(second.loss.ref_labels)

    assert rows_after_resume(CrossBatchMemory) == 4
    assert rows_after_resume(ours) == 16


def test_b3_an_empty_enqueue_mask_fills_nothing(ours: Callable) -> None:
    nothing = torch.zeros(4, dtype=torch.bool)

    pml = CrossBatchMemory(PairKeeper(), D, 20)
    pml(*batch(), None, nothing)
    assert pml.has_been_filled  # with twenty zero vectors of class 0

    loss_fn = ours(PairKeeper(), D, 20)
    embeddings, labels = batch()
    loss = loss_fn(embeddings.requires_grad_(), labels, None, nothing)
    loss.backward()
    assert loss == 0
    assert not embeddings.grad.any()
    assert loss_fn.num_rows == 0
    loss_fn(*batch())
    assert len(loss_fn.loss.ref_labels) == 4


def test_b4_more_rows_than_memory_are_refused(ours: Callable) -> None:
    embeddings, labels = batch(12)
    mask = torch.arange(12) >= 2

    pml = CrossBatchMemory(ContrastiveLoss(), D, 8)
    pml(embeddings, labels, None, mask)
    assert (pml.queue_idx, pml.has_been_filled) == (2, False)  # eight rows written, two of them used

    with pytest.raises(ValueError, match="10 rows to enqueue do not fit memory_size=8"):
        ours(ContrastiveLoss(), D, 8)(embeddings, labels, None, mask)


def test_b5_a_batch_of_one_is_not_compared_with_itself(ours: Callable) -> None:
    def num_positives(loss_fn: nn.Module) -> int:
        loss_fn(*batch(4))
        loss_fn(*batch(1, first_label=9))
        return len(loss_fn.loss.indices[0])

    assert num_positives(CrossBatchMemory(PairKeeper(), D, 20)) == 1
    assert num_positives(ours(PairKeeper(), D, 20)) == 0


@pytest.mark.parametrize(
    ("loss", "message"),
    [
        (lambda: losses.TripletMarginLoss(swap=True, margin=1.0), r"TripletMarginLoss\(swap=True\)"),
        (lambda: ContrastiveLoss(reducer=reducers.PerAnchorReducer()), "ContrastiveLoss with PerAnchorRed"),
    ],
)
def test_b6_losses_of_the_batch_alone_are_refused_when_built(
    ours: Callable, loss: Callable, message: str
) -> None:
    pml = CrossBatchMemory(loss(), D, 20)
    pml(*batch())
    with pytest.raises(IndexError):
        pml(*batch())
    with pytest.raises(ValueError, match=message):
        ours(loss(), D, 20)


def test_b7_half_precision_under_autocast(ours: Callable) -> None:
    layer = nn.Linear(D, D)

    def steps(loss_fn: nn.Module) -> Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            for _ in range(3):
                loss = loss_fn(layer(torch.randn(4, D)), batch()[1])
        loss.backward()
        return loss_fn.embedding_memory

    # PML's rows become half precision; on CUDA its index_put raises.
    assert steps(CrossBatchMemory(losses.SupConLoss(), D, 20)).dtype == torch.bfloat16
    assert steps(ours(losses.SupConLoss(), D, 20)).dtype == torch.float32


@pytest.mark.parametrize(
    "distance", [DotProductSimilarity(normalize_embeddings=False), LpDistance(normalize_embeddings=False)]
)
def test_b8_two_forwards_before_one_backward(ours: Callable, distance: nn.Module) -> None:
    def gradient(loss_fn: nn.Module) -> Tensor:
        embeddings = torch.randn(8, D, requires_grad=True)
        labels = batch()[1]
        (loss_fn(embeddings[:4], labels) + loss_fn(embeddings[4:], labels)).backward()
        return embeddings.grad

    def loss() -> nn.Module:
        return ContrastiveLoss(pos_margin=0.0, neg_margin=9.0, distance=distance)

    if distance.is_inverted:
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            gradient(CrossBatchMemory(loss(), D, 20))
    assert torch.isfinite(gradient(ours(loss(), D, 20))).all()


def test_b9_evaluation_reads_only(ours: Callable) -> None:
    def rows_after_evaluation(loss_fn: nn.Module) -> int:
        loss_fn(*batch())
        loss_fn.eval()
        loss_fn(*batch())
        loss_fn.train()
        with torch.no_grad():
            loss_fn(*batch())
        loss_fn(*batch())
        return len(loss_fn.loss.ref_labels)

    assert rows_after_evaluation(CrossBatchMemory(PairKeeper(), D, 20)) == 16
    assert rows_after_evaluation(ours(PairKeeper(), D, 20)) == 8


def test_b10_the_easiest_positive_is_not_the_anchor(ours: Callable) -> None:
    def loss_of_second_step(make: Callable) -> float:
        easy = miners.BatchEasyHardMiner(pos_strategy="easy", neg_strategy="hard")
        loss_fn = make(ContrastiveLoss(pos_margin=0.0, neg_margin=0.0), D, 20, easy)
        loss_fn(*batch())
        return loss_fn(*batch()).item()

    assert loss_of_second_step(CrossBatchMemory) == 0
    assert loss_of_second_step(ours) > 0


def test_b11_labels_keep_their_value(ours: Callable) -> None:
    def first_label(loss_fn: nn.Module) -> int:
        loss_fn(*batch(first_label=300))
        embeddings, labels = batch()
        loss_fn(embeddings, labels.to(torch.uint8))
        return int(loss_fn.label_memory[0])

    assert first_label(CrossBatchMemory(ContrastiveLoss(), D, 20)) == 44
    assert first_label(ours(ContrastiveLoss(), D, 20)) == 300


def test_b12_what_does_not_fit_is_named(ours: Callable) -> None:
    pml = CrossBatchMemory(ContrastiveLoss(), D, 8)
    with pytest.raises(AssertionError, match=r"^$"):
        pml(*batch(9))
    with pytest.raises(RuntimeError, match=r"shape mismatch"):
        pml(torch.randn(4, 3), torch.arange(4))
    loss_fn = ours(ContrastiveLoss(), D, 8)
    with pytest.raises(ValueError, match=r"9 rows to enqueue do not fit memory_size=8"):
        loss_fn(*batch(9))
    with pytest.raises(ValueError, match=r"shape \(4, 3\): pass \(n, 4\)"):
        loss_fn(torch.randn(4, 3), torch.arange(4))


def test_b13_rows_stay_in_float32(ours: Callable) -> None:
    def dtype_after_one_half_batch(loss_fn: nn.Module) -> torch.dtype:
        loss_fn(*batch())
        embeddings, labels = batch()
        loss_fn(embeddings.bfloat16(), labels)
        return loss_fn.embedding_memory.dtype

    assert dtype_after_one_half_batch(CrossBatchMemory(losses.SupConLoss(), D, 20)) == torch.bfloat16
    assert dtype_after_one_half_batch(ours(losses.SupConLoss(), D, 20)) == torch.float32


# B14, rows that differ between ranks, needs ranks: tests/distributed/test_ranks.py.


def test_b15_lifted_structure_does_not_depend_on_the_order_of_the_rows(ours: Callable) -> None:
    """What a row is compared with is not decided by its number in memory being that of an anchor."""
    torch.manual_seed(0)
    old, embeddings, labels = torch.randn(4, D, dtype=torch.float64), *batch()
    old_labels, embeddings = labels.roll(1), embeddings.double()

    def second_step(make: Callable, order: list[int], **options: Any) -> Tensor:
        loss_fn = make(losses.LiftedStructureLoss(), D, 20, **options).double()
        loss_fn(old[order], old_labels[order])
        return loss_fn(embeddings, labels)

    orders, options = ([0, 1, 2, 3], [3, 1, 0, 2]), {"delay": 10, "memory_dtype": torch.float64}
    pmls = [second_step(CrossBatchMemory, order) for order in orders]
    assert not torch.isclose(*pmls, rtol=1e-3)

    rows, row_labels = torch.cat([old, embeddings]), torch.cat([old_labels, labels])
    self_pairs = torch.arange(4, 8)
    a1, p, a2, n = all_pairs(labels, row_labels)
    is_other = p != a1 + 4
    expected = LiftedStructureOfPaper(losses.LiftedStructureLoss(), self_pairs)(
        embeddings, labels, (a1[is_other], p[is_other], a2, n), rows, row_labels
    )
    for order in orders:
        torch.testing.assert_close(second_step(ours, order, **options), expected)


def test_b16_packaged_triplets_are_of_the_batch(ours: Callable) -> None:
    labels = torch.tensor([0, 0, 1, 2, 2, 0])

    def wrong_triplets(make: Callable) -> int:
        loss_fn = make(PairKeeper(), D, 20, miners.EmbeddingsAlreadyPackagedAsTriplets())
        loss_fn(*batch(6, first_label=7))  # so that the batch is not the first in memory
        loss_fn(torch.randn(6, D), labels)
        a, p, _ = loss_fn.loss.indices
        assert torch.equal(a, torch.tensor([0, 3]))
        return int((labels[a] != loss_fn.loss.ref_labels[p]).sum())

    assert wrong_triplets(CrossBatchMemory) > 0
    assert wrong_triplets(ours) == 0


@pytest.mark.skipif(
    "embeddings" not in signature(DistributedLossWrapper.forward).parameters,
    reason="before PML 2.6 the wrapper itself needs a process group",
)
@pytest.mark.filterwarnings("ignore:DistributedLossWrapper is being used in a non-distributed setting")
def test_b17_the_distributed_wrapper_works_without_a_process_group(ours: Callable) -> None:
    with pytest.raises(TypeError, match="positional arguments"):
        DistributedLossWrapper(CrossBatchMemory(ContrastiveLoss(), D, 12))(*batch())
    memory, alone = ours(ContrastiveLoss(), D, 12), ours(ContrastiveLoss(), D, 12)
    wrapped = DistributedLossWrapper(memory)
    for first_label in range(4):
        embeddings, labels = batch(first_label=first_label)
        pairs = all_pairs(labels)
        assert torch.equal(wrapped(embeddings, labels, pairs), alone(embeddings, labels, pairs))
    assert exact(memory) == exact(alone)
    for refs in (batch(), (None, batch()[1])):
        with pytest.raises(ValueError, match="ref_emb and ref_labels with a memory"):
            wrapped(*batch(), None, *refs)
    assert exact(memory) == exact(alone)


def test_packaged_triplets_of_a_batch_that_is_not_stored_are_none() -> None:
    loss_fn = XBNWrapper(ContrastiveLoss(), D, 20, miners.EmbeddingsAlreadyPackagedAsTriplets())
    loss_fn.fill_memory(*batch(12))
    assert loss_fn.eval()(*batch(6)) == 0


@pytest.mark.parametrize("miner", [None, miners.MultiSimilarityMiner(), miners.BatchHardMiner()])
def test_lifted_structure_is_pmls_while_the_batch_is_all_there_is(miner: nn.Module | None) -> None:
    values = []
    for make, kwargs in ((CrossBatchMemory, {}), (XBNWrapper, {"memory_dtype": torch.float64})):
        torch.manual_seed(0)
        embeddings = torch.randn(8, D, dtype=torch.float64, requires_grad=True)
        loss = make(losses.LiftedStructureLoss(), D, 20, miner, **kwargs).double()(embeddings, batch(8)[1])
        values.append((loss.detach(), *torch.autograd.grad(loss, embeddings)))
    torch.testing.assert_close(values[1], values[0])


@pytest.mark.parametrize(
    "loss", [losses.NCALoss(softmax_scale=100), losses.NTXentLoss(temperature=0.005)], ids=repr
)
def test_a_hopeless_probability_keeps_its_gradient(loss: nn.Module) -> None:
    """PML's is rounded to zero in float32, beyond which neither loss sees any."""
    torch.manual_seed(0)
    anchors, rows = torch.randn(2, 5), torch.randn(23, 5)
    labels, row_labels = torch.zeros(2, dtype=torch.int64), torch.ones(23, dtype=torch.int64)
    rows[22], row_labels[22] = -anchors.sum(dim=0), 0  # the only positive is the farthest row

    def gradient(loss_fn: nn.Module, *refs: Tensor, dtype: torch.dtype = torch.float32) -> Tensor:
        leaf = anchors.to(dtype).requires_grad_()
        return torch.autograd.grad(loss_fn(leaf, labels, None, *refs), leaf)[0]

    ours = XBNWrapper(loss, 5, 23)
    ours.fill_memory(rows, row_labels)
    assert not gradient(loss, rows, row_labels).any()
    expected = gradient(loss, rows.double(), row_labels, dtype=torch.float64)
    assert expected.any()
    torch.testing.assert_close(gradient(ours.eval()).double(), expected, rtol=1e-4, atol=1e-3)


def test_small_terms_count() -> None:
    """PML rounds them to 0, and leaves them out of the mean over what is above 0."""
    loss = losses.NTXentLoss(temperature=0.02, reducer=reducers.AvgNonZeroReducer())
    anchors, labels = torch.tensor([[1.0, 0.0]]), torch.tensor([0])
    rows = torch.tensor([[1.0, 0.01], [0.6, 0.8], [0.5, -1.0], [-1.0, 1.0]])
    row_labels = torch.tensor([0, 0, 1, 1])
    expected = loss(anchors.double(), labels, None, rows.double(), row_labels)
    assert loss(anchors, labels, None, rows, row_labels) > 1.9 * expected
    ours = XBNWrapper(loss, 2, 4)
    ours.fill_memory(rows, row_labels)
    torch.testing.assert_close(ours.eval()(anchors, labels).double(), expected, rtol=1e-4, atol=1e-6)


def test_tuplet_margin_of_equal_vectors_has_a_finite_gradient() -> None:
    """The mean of those at small angles to either side; PML's, of an angle of 0, is infinite."""
    torch.manual_seed(0)
    anchors = torch.randn(2, D, dtype=torch.float64, requires_grad=True)
    offset, loss = 1e-5 * torch.randn(D, dtype=torch.float64), losses.TupletMarginLoss()
    labels, row_labels = torch.tensor([0, 3]), torch.tensor([0, 1])

    def rows(side: float) -> Tensor:
        return torch.stack([anchors[0] + side * offset, anchors[0] + 1e4 * offset]).detach()

    ours = XBNWrapper(loss, D, 2, memory_dtype=torch.float64)
    ours.fill_memory(rows(0), row_labels)
    values = [
        ours.eval()(anchors, labels),
        *(loss(anchors, labels, None, rows(x), row_labels) for x in (-1, 1)),
    ]
    found, *around = (torch.autograd.grad(value, anchors)[0] for value in values)
    torch.testing.assert_close(found, sum(around) / 2, rtol=1e-3, atol=1e-3)
    assert not torch.allclose(*around, rtol=1e-2, atol=1e-2)


@pytest.mark.parametrize(
    "name",
    [
        "AngularLoss",
        "CircleLoss",
        "GeneralizedLiftedStructureLoss",
        "LiftedStructureLoss",
        "MultiSimilarityLoss",
        "TupletMarginLoss",
    ],
)
def test_class_weights_do_not_weigh_the_terms_of_a_column_and_we_keep_that(name: str) -> None:
    torch.manual_seed(0)
    embeddings, labels = torch.randn(8, D), torch.arange(8) % 3
    weights = torch.tensor([0.5, 1.0, 2.5])
    loss = getattr(losses, name)(reducer=reducers.ClassWeightedReducer(weights))
    (part,) = loss.compute_loss(embeddings, labels, all_pairs(labels), embeddings, labels).values()
    terms = part["losses"]
    anchors = part["indices"] if part["reduction_type"] == "element" else part["indices"][0]
    assert terms.shape == (len(anchors), 1)
    weighted = sum(term * weights[labels[anchor]] for term, anchor in zip(terms[:, 0], anchors, strict=True))
    every_term_by_every_weight = terms.mean() * weights[labels[anchors]].mean()
    for make in (CrossBatchMemory, *(KINDS[name].memory for name in WRAPPERS)):
        value = make(loss, D, 20)(embeddings, labels)
        torch.testing.assert_close(value, every_term_by_every_weight)
        assert not torch.isclose(value, weighted / len(terms), rtol=1e-3)
