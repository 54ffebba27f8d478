"""What PML's own tests of ``CrossBatchMemory`` ask for, asked of ``XBNWrapper(delay=very large)``.

PML's source distributions carry no tests, so these are written anew. Those of its distributed wrapper are
in ``tests/distributed``.
"""

from __future__ import annotations

import pytest
import torch
from pytorch_metric_learning import losses, miners
from pytorch_metric_learning.utils import loss_and_miner_utils as lmu
from torch import Tensor

from pml_xbn import XBNWrapper

D, B = 32, 8


def make(loss: torch.nn.Module, memory_size: int = 81, miner: miners.BaseMiner | None = None) -> XBNWrapper:
    return XBNWrapper(loss, D, memory_size, miner, delay=10**9)


def batch(num_labels: int = 10) -> tuple[Tensor, Tensor]:
    return torch.randn(B, D), torch.randint(0, num_labels, (B,))


@pytest.mark.parametrize("memory_size", [16, 24])
def test_batch_size_equal_to_memory_size_is_the_inner_loss(memory_size: int) -> None:
    inner, miner = losses.NTXentLoss(temperature=0.1), miners.TripletMarginMiner(margin=0.1)
    plain, with_miner = make(inner, memory_size), make(inner, memory_size, miner)
    for _ in range(3):
        embeddings, labels = torch.randn(memory_size, D), torch.randint(0, 4, (memory_size,))
        torch.testing.assert_close(plain(embeddings, labels), inner(embeddings, labels))
        triplets = miner(embeddings, labels)
        torch.testing.assert_close(with_miner(embeddings, labels), inner(embeddings, labels, triplets))


def test_queue_holds_the_batch_where_it_says() -> None:
    loss_fn = make(losses.ContrastiveLoss())
    for step in range(30):
        assert loss_fn.queue_idx == step * B % 81
        embeddings, _ = batch()
        start = loss_fn.queue_idx
        loss_fn(embeddings, torch.arange(B))
        rows = (start + torch.arange(B)) % 81
        assert torch.equal(loss_fn.embedding_memory[rows], embeddings)
        assert torch.equal(loss_fn.label_memory[rows], torch.arange(B))
        assert torch.equal(loss_fn.curr_batch_idx, rows)


def test_loss_with_inner_and_outer_miner() -> None:
    """Against the inner loss on everything seen so far, at last with pairs of the caller.

    PML's test takes those pairs for rows of everything seen so far, as its class does (B1); they are
    rows of the batch.
    """
    inner, miner = losses.ContrastiveLoss(), miners.MultiSimilarityMiner(0.3)
    outer = miners.MultiSimilarityMiner(0.2)
    plain, with_miner, with_both = make(inner), make(inner, miner=miner), make(inner, miner=miner)
    all_embeddings, all_labels = torch.zeros(0, D), torch.zeros(0, dtype=torch.int64)
    for _ in range(10):
        embeddings, labels = batch()
        labels[: B // 2] = labels[B // 2 :]  # so that no anchor's only positive is its own copy
        given = outer(embeddings, labels)
        values = (
            plain(embeddings, labels),
            with_miner(embeddings, labels),
            with_both(embeddings, labels, given),
        )

        before = len(all_embeddings)
        all_embeddings, all_labels = torch.cat([all_embeddings, embeddings]), torch.cat([all_labels, labels])
        own = torch.arange(B) + before

        def expected(pairs: tuple[Tensor, ...], own: Tensor, given: tuple | None = None) -> Tensor:
            a1, p, a2, n = pairs
            keep = p != own[a1]
            pairs = a1[keep], p[keep], a2, n
            if given is not None:
                moved = given[0], own[given[1]], given[2], own[given[3]]
                pairs = tuple(torch.cat(x) for x in zip(pairs, moved, strict=True))
            return inner(embeddings, labels, pairs, all_embeddings, all_labels)  # noqa: B023

        everything = lmu.get_all_pairs_indices(labels, all_labels)
        mined = miner(embeddings, labels, all_embeddings, all_labels)
        torch.testing.assert_close(values[0], expected(everything, own))
        torch.testing.assert_close(values[1], expected(mined, own))
        torch.testing.assert_close(values[2], expected(mined, own, given))


def test_distance_weighted_miner_runs() -> None:
    miner = miners.DistanceWeightedMiner(cutoff=0.5, nonzero_loss_cutoff=1.4)
    loss_fn = make(losses.NTXentLoss(temperature=0.1), 256, miner)
    for _ in range(20):
        embeddings, labels = batch()
        loss_fn(embeddings.requires_grad_(), labels).backward()
        assert torch.isfinite(embeddings.grad).all()


@pytest.mark.parametrize("stored", range(0, 30, 7))
def test_pairs_of_a_batch_hold_no_row_with_itself_and_all_others(stored: int) -> None:
    """PML's test of ``remove_self_comparisons``, by way of ``create_indices_tuple``."""
    loss_fn = make(losses.ContrastiveLoss())
    for _ in range(stored):
        loss_fn.add_to_memory(*batch(), B)
    embeddings, labels = batch()
    loss_fn.add_to_memory(embeddings, labels, B)
    rows, row_labels = loss_fn.embedding_memory[: loss_fn.num_rows], loss_fn.label_memory[: loss_fn.num_rows]
    pairs = loss_fn.create_indices_tuple(embeddings, labels, rows, row_labels, None, True)
    a1, p, a2, n = (x.tolist() for x in pairs)
    own = loss_fn.curr_batch_idx.tolist()
    same = [[x == y for y in row_labels.tolist()] for x in labels.tolist()]
    positives = {(i, j) for i in range(B) for j in range(len(rows)) if same[i][j] and j != own[i]}
    negatives = {(i, j) for i in range(B) for j in range(len(rows)) if not same[i][j]}
    assert set(zip(a1, p, strict=True)) == positives
    assert set(zip(a2, n, strict=True)) == negatives
    everything = loss_fn.create_indices_tuple(embeddings, labels, rows, row_labels, None, False)
    assert len(everything[0]) == len(positives) + B


@pytest.mark.parametrize(
    "miner", [miners.PairMarginMiner(pos_margin=0, neg_margin=1), miners.TripletMarginMiner(margin=1)]
)
def test_given_indices_join_the_others_with_their_labels(miner: miners.BaseMiner) -> None:
    """PML's test takes a label per row, so its class's wrong rows (B1) would only show by accident."""
    loss_fn = make(losses.ContrastiveLoss())
    for _ in range(12):
        embeddings, labels = batch()
        loss_fn(embeddings, labels)
        rows, row_labels = (
            loss_fn.embedding_memory[: loss_fn.num_rows],
            loss_fn.label_memory[: loss_fn.num_rows],
        )
        given = miner(embeddings, labels)
        without = loss_fn.create_indices_tuple(embeddings, labels, rows, row_labels, None, True)
        a1, p, a2, n = loss_fn.create_indices_tuple(embeddings, labels, rows, row_labels, given, True)
        assert torch.equal(labels[a1], row_labels[p])
        assert not (labels[a2] == row_labels[n]).any()
        as_pairs = lmu.convert_to_pairs(given, labels)
        assert [len(x) for x in (a1, p, a2, n)] == [
            len(x) + len(y) for x, y in zip(without, as_pairs, strict=True)
        ]
