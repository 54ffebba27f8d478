"""What makes a step cheap gives the same numbers as doing without it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from pytorch_metric_learning import losses, miners
from pytorch_metric_learning.distances import DotProductSimilarity
from stored_rows import stored_rows
from torch import Tensor, nn

from pml_xbn import AXBNWrapper, PerClassXBN, SuperClassXBN, XBNWrapper
from pml_xbn.adapters import GroupMomentMatching
from pml_xbn.losses import AdaptiveCrossBatchMemory, _seam
from pml_xbn.losses._cosines import Distances

D, M = 4, 17
CLASSES: dict[str, Callable[..., AdaptiveCrossBatchMemory]] = {
    "XBNWrapper": XBNWrapper,
    "AXBNWrapper": lambda *a, **kw: AXBNWrapper(*a, measurement_noise=20.0, **kw),
    "PerClassXBN": PerClassXBN,
    "SuperClassXBN": lambda *a, **kw: SuperClassXBN(*a, superclasses=[0, 0, 1], **kw),
}


@pytest.fixture(params=CLASSES)
def make(request: pytest.FixtureRequest) -> Callable[..., AdaptiveCrossBatchMemory]:
    return CLASSES[request.param]


def batch(step: int, size: int = 5) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(step)
    return torch.randn(size, D, generator=generator) + step, torch.arange(size) % 3


def test_an_adapter_that_writes_into_the_memory_equals_the_plain_hook(make: Callable) -> None:
    fast, plain = make(losses.SupConLoss(), D, M), make(losses.SupConLoss(), D, M)
    plain.register_memory_hook(lambda *_: None)  # a second hook: the adapter is no longer alone
    for step in range(12):
        embeddings, labels = batch(step)
        torch.testing.assert_close(fast(embeddings, labels), plain(embeddings, labels), rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(fast.embedding_memory, plain.embedding_memory, rtol=1e-5, atol=1e-5)


# Against other rows than the batch PML's LiftedStructureLoss is that of other pairs.
@pytest.mark.parametrize(
    "loss", sorted({*losses.CrossBatchMemory.supported_losses()} - {"LiftedStructureLoss"})
)
@pytest.mark.parametrize("miner", [None, miners.PairMarginMiner(0.3, 0.9)])
def test_forms_equal_lists(loss: str, miner: object, monkeypatch: pytest.MonkeyPatch) -> None:
    def steps() -> list[Tensor]:
        loss_fn, out = XBNWrapper(getattr(losses, loss)(), D, M, miner, memory_dtype=torch.float64), []
        for step in range(6):
            embeddings, labels = batch(step)
            embeddings = embeddings.double().requires_grad_()
            torch.manual_seed(step)
            value = loss_fn(embeddings, labels)
            value.backward()
            out += [value.detach(), embeddings.grad]
        return out

    from_forms = steps()
    monkeypatch.setattr(_seam, "form_of", lambda _: None)
    for ours, pmls in zip(from_forms, steps(), strict=True):
        torch.testing.assert_close(ours, pmls, rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("loss", ["ContrastiveLoss", "NTXentLoss", "SupConLoss"])
@pytest.mark.parametrize(
    "miner",
    [
        None,
        miners.BatchHardMiner(),
        miners.MultiSimilarityMiner(),
        miners.PairMarginMiner(0.3, 0.9),
        miners.PairMarginMiner(0.3, 0.9, collect_stats=True),
    ],
)
def test_a_loss_reads_its_distances_off_the_cosines(
    loss: str, miner: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As does its miner: the loss of PML's class on the same rows, without a normalised copy of them."""
    loss_fn, plain = XBNWrapper(getattr(losses, loss)(), D, M, miner), getattr(losses, loss)()
    measure = type(plain.distance).compute_mat
    for step in range(6):
        embeddings, labels = batch(step)
        values = []
        for fn in (loss_fn, lambda *b: values_of_pml(plain, miner, loss_fn, *b)):
            leaf = embeddings.clone().requires_grad_()
            with monkeypatch.context() as patch:
                if fn is loss_fn:
                    for part in (plain, miner or plain):
                        patch.setattr(type(part.distance), "compute_mat", lambda *_: pytest.fail("measured"))
                value = fn(leaf, labels)
            value.backward()
            values.append((value.detach(), leaf.grad))
        assert type(plain.distance).compute_mat is measure
        for one, other in zip(*values, strict=True):
            torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-5)


def values_of_pml(loss: nn.Module, miner: Any, stored: XBNWrapper, anchors: Tensor, labels: Tensor) -> Tensor:
    """PML's loss against the rows that a call has just stored; no anchor with its own row."""
    rows, row_labels = stored.embedding_memory[: stored.num_rows], stored.label_memory[: stored.num_rows]
    own_rows = (stored.queue_idx - len(anchors) + torch.arange(len(anchors))) % M
    distances = Distances(anchors, stored_rows(rows))
    pairs = _seam.chosen_pairs(miner, distances, labels, row_labels, own_rows)
    return loss(anchors, labels, pairs, rows, row_labels)


def test_a_miner_with_statistics_is_asked_itself() -> None:
    miner = miners.PairMarginMiner(0.3, 0.9, collect_stats=True)
    loss_fn = XBNWrapper(losses.SupConLoss(), D, M, miner)
    for step in range(3):
        loss_fn(*batch(step))
    assert miner.pos_pair_dist > 0
    assert miner.num_neg_pairs > 0


def test_a_loss_that_raises_keeps_its_method_and_its_distance() -> None:
    class Broken(losses.SupConLoss):
        def _compute_loss(self, *_: object) -> None:
            raise ArithmeticError

    loss = Broken()
    loss_fn = XBNWrapper(loss, D, M)
    with pytest.raises(ArithmeticError):
        loss_fn(*batch(0))
    assert loss.loss_method == loss.mat_based_loss
    assert loss.distance.forward == type(loss.distance).forward.__get__(loss.distance)


def test_rows_stay_where_they_are(make: Callable) -> None:
    """Those of the batch are written in place; but for groups, no other row changes a bit."""
    loss_fn = make(losses.SupConLoss(), D, M)
    for step in range(8):
        before = loss_fn.queue.contents.rows.stored.clone()
        address = loss_fn.queue.contents.rows.stored.data_ptr()
        embeddings, labels = batch(step)
        loss_fn(embeddings.requires_grad_(), labels).backward()
        stored = loss_fn.queue.contents.rows.stored
        changed = (stored != before).any(dim=1).nonzero().flatten()
        if not isinstance(loss_fn.adapter, GroupMomentMatching):
            assert stored.data_ptr() == address
            assert set(changed.tolist()) <= set(loss_fn.curr_batch_idx.tolist())


def unnormalised() -> nn.Module:
    distance = DotProductSimilarity(normalize_embeddings=False)
    return losses.ContrastiveLoss(pos_margin=9.0, neg_margin=0.0, distance=distance)


@pytest.mark.parametrize("pending", [2, 3, 5])
def test_rows_that_a_pending_backward_needs_are_not_written_to(make: Callable, pending: int) -> None:
    """Many forwards before one backward give the gradients of as many forwards with a backward each."""
    together, apart = make(unnormalised(), D, M), make(unnormalised(), D, M)
    weights = [torch.eye(D, requires_grad=True) for _ in range(2)]
    for first in range(0, 3 * pending, pending):
        total = torch.zeros(())
        for step in range(first, first + pending):
            embeddings, labels = batch(step)
            total = total + together(embeddings @ weights[0], labels)
            apart(embeddings @ weights[1], labels).backward()
        total.backward()
    torch.testing.assert_close(weights[0].grad, weights[1].grad)


def test_rows_that_a_pending_evaluation_needs_are_not_written_to() -> None:
    loss_fn = XBNWrapper(unnormalised(), D, M)
    loss_fn(*batch(0))
    loss_fn.eval()
    embeddings, labels = batch(1)
    loss = loss_fn(embeddings.requires_grad_(), labels)
    loss_fn.train()
    for step in range(2, 6):
        x, labels = batch(step)
        loss_fn(x.requires_grad_(), labels).backward()
    loss.backward()
    assert torch.isfinite(embeddings.grad).all()


def test_a_failed_step_leaves_no_rows_behind_the_occupied_ones() -> None:
    loss_fn = XBNWrapper(losses.SupConLoss(), D, M)
    for step in range(2):
        loss_fn(*batch(step, size=2))
    distance, loss_fn.loss.distance = loss_fn.loss.distance, None
    with pytest.raises(AttributeError):
        loss_fn(*batch(2, size=9))
    loss_fn.loss.distance = distance
    for step in range(2):
        loss_fn(*batch(step, size=1))
        assert not loss_fn.embedding_memory[loss_fn.num_rows :].any()


@pytest.mark.parametrize("write", ["in place", "another tensor"])
def test_rows_that_somebody_else_writes_are_noticed(make: Callable, write: str) -> None:
    """Re-embedding the stored images, for instance; a plain hook reads the rows every time."""
    fast, plain = make(losses.SupConLoss(), D, M), make(losses.SupConLoss(), D, M)
    plain.register_memory_hook(lambda *_: None)
    for step in range(5):
        fast(*batch(step))
        plain(*batch(step))
    fresh = torch.randn(M, D) * 3 - 7
    for loss_fn in (fast, plain):
        if write == "in place":
            loss_fn.embedding_memory.copy_(fresh)
        else:
            loss_fn.embedding_memory = fresh.clone()
    for step in range(5, 8):
        torch.testing.assert_close(fast(*batch(step)), plain(*batch(step)), rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(fast.embedding_memory, plain.embedding_memory, rtol=1e-5, atol=1e-5)
