"""What five of PML's miners choose, as functions of one matrix, and what others do by their own code.

A fused miner gets the miner, for its settings, the matrix that its distance measures, all pairs, and
``over_rows``, which computes row-wise reductions.
"""

from __future__ import annotations

from collections.abc import Callable
from math import inf
from typing import Any

import torch
from pytorch_metric_learning import miners
from torch import Tensor

from .._tracing import can_read, is_tracing, looks_again
from ._distances import Distances
from ._pairs import IndicesTuple, Pairs, drop_self_pairs, mapped, only, similarities
from ._ranges import Ranges
from ._reductions import AllRows, Largest, Max, OverRows

Miner = Callable[[Tensor, Tensor, Tensor, Tensor], IndicesTuple]


def mine(fused: FusedMiner, miner: Any, distances: Distances, pairs: Pairs) -> Pairs:
    """Returns those of the pairs that one of the five miners chooses, by its function."""
    if not is_tracing():
        miner.reset_stats()
    with torch.no_grad():
        mat = distances.measure(miner.distance)
        chosen = fused(miner, mat, pairs, AllRows())
        if isinstance(miner, miners.BatchHardMiner):  # of every anchor one triplet
            triplets = Ranges.all(mat, chosen.positive, chosen.negative, most=1)
            chosen = chosen._replace(triplets=triplets)
        num_pairs: Any = chosen.counts
        if can_read(mat) or (miner.collect_stats and not is_tracing()):
            num_pairs = torch.stack([torch.as_tensor(x, device=mat.device) for x in num_pairs]).tolist()
            record_num_pairs(miner, *num_pairs)
    return chosen._replace(num_pairs=num_pairs)


def record_num_pairs(miner: Any, num_positive: int, num_negative: int) -> None:
    """Lets one of the five miners record how many positive and negative pairs it has chosen."""
    positives, negatives = range(num_positive), range(num_negative)  # which PML asks for their length
    is_of_triplets = isinstance(miner, (miners.BatchHardMiner, miners.TripletMarginMiner))
    miner.output_assertion([positives] * 3 if is_of_triplets else [positives] * 2 + [negatives] * 2)


def mine_by_pml(miner: Any, distances: Distances, pairs: Pairs) -> Pairs:
    """Returns what any miner chooses, without self-pairs."""
    self_pairs = pairs.self_pairs
    rows = distances.rows.read(distances.anchors.dtype)
    # A copy of the labels, which are the memory's own, as a miner may write to what it gets.
    with looks_again():
        lists = miner(distances.anchors, pairs.labels, rows, pairs.row_labels.clone())
    if isinstance(miner, miners.EmbeddingsAlreadyPackagedAsTriplets):  # whose indices are those of the batch
        lists = (
            tuple(x[:0].to(rows.device) for x in lists) if self_pairs is None else mapped(lists, self_pairs)
        )
    if self_pairs is not None:
        lists = drop_self_pairs(lists, self_pairs)
        if isinstance(miner, miners.BaseMiner):
            miners.BaseMiner.output_assertion(miner, lists)  # counts them again
    return pairs.listed(lists)


def pair_margin(miner: miners.PairMarginMiner, mat: Tensor, pairs: Pairs, over_rows: OverRows) -> Pairs:
    """Returns pairs beyond a margin."""
    if miner.collect_stats:
        miner.set_stats(mat[pairs.positive], mat[pairs.negative])
    is_far, is_near = (torch.lt, torch.gt) if miner.distance.is_inverted else (torch.gt, torch.lt)
    return pairs.choose(
        positive=pairs.positive & is_far(mat, miner.pos_margin),
        negative=pairs.negative & is_near(mat, miner.neg_margin),
    )


def multi_similarity(
    miner: miners.MultiSimilarityMiner, mat: Tensor, pairs: Pairs, over_rows: OverRows
) -> Pairs:
    """Returns positives beyond the nearest negative, and negatives within the farthest positive.

    https://arxiv.org/abs/1904.06627
    """
    mat = similarities(miner.distance, mat)
    nearest_negative, farthest_positive = over_rows(Max(mat, pairs.negative), Max(-mat, pairs.positive))
    return pairs.choose(
        positive=pairs.positive & (mat - miner.epsilon < nearest_negative.unsqueeze(1)),
        negative=pairs.negative & (mat + miner.epsilon > -farthest_positive.unsqueeze(1)),
    )


def batch_easy_hard(
    miner: miners.BatchEasyHardMiner, mat: Tensor, pairs: Pairs, over_rows: OverRows
) -> Pairs:
    """Returns of every anchor the nearest or farthest positive and negative (https://arxiv.org/abs/1904.04370)."""
    near = similarities(miner.distance, mat)

    def within(mask: Tensor, bounds: tuple[float, float] | None) -> Tensor:
        return mask if bounds is None else mask & (bounds[0] <= mat) & (mat <= bounds[1])

    positive = within(pairs.positive, miner.allowed_pos_range)
    negative = within(pairs.negative, miner.allowed_neg_range)
    # Easy positives are the nearest, easy negatives the farthest; semihard ones are hard within bounds.
    sign_of_positives = 1 if miner.pos_strategy == miner.EASY else -1
    sign_of_negatives = -1 if miner.neg_strategy == miner.EASY else 1
    if miner.pos_strategy == miner.SEMIHARD:
        (bound,) = over_rows(Max(sign_of_negatives * near, negative))
        positive = positive & (near > sign_of_negatives * bound.unsqueeze(1))
    elif miner.neg_strategy == miner.SEMIHARD:
        (bound,) = over_rows(Max(sign_of_positives * near, positive))
        negative = negative & (near < sign_of_positives * bound.unsqueeze(1))
    positive_row, negative_row = over_rows(
        Largest(sign_of_positives * near, positive, pairs.first_row),
        Largest(sign_of_negatives * near, negative, pairs.first_row),
    )
    if miner.ALL not in (miner.pos_strategy, miner.neg_strategy):
        lacks_one = (positive_row < 0) | (negative_row < 0)
        positive_row, negative_row = (x.masked_fill(lacks_one, -1) for x in (positive_row, negative_row))
    chosen_positive = only(positive_row, pairs.first_row, pairs.positive)
    chosen_negative = only(negative_row, pairs.first_row, pairs.negative)
    if miner.pos_strategy == miner.ALL:
        chosen_positive = pairs.positive
    if miner.neg_strategy == miner.ALL:
        chosen_negative = pairs.negative
    if miner.collect_stats:
        miner.set_stats(mat[chosen_positive], mat[chosen_negative])
    return pairs.choose(chosen_positive, chosen_negative)


def triplet_margin(miner: miners.TripletMarginMiner, mat: Tensor, pairs: Pairs, over_rows: OverRows) -> Pairs:
    """Returns triplets by how much farther away the negative is than the positive."""
    low, high = {
        "hard": (-inf, min(0.0, miner.margin)),
        "semihard": (0.0, miner.margin),
        "easy": (miner.margin, inf),
    }.get(miner.type_of_triplets, (-inf, miner.margin))
    mat = -similarities(miner.distance, mat)
    every = Ranges.all(mat, pairs.positive, pairs.negative, miner.distance)
    start = every.start if high == inf else every.first(mat, mat - high)
    end = every.end if low == -inf else every.first(mat, mat - low)
    triplets = every._replace(start=start, end=end)
    positive, negative = triplets.num_of_pairs()
    return pairs.choose(positive, negative, triplets)


FusedMiner = Callable[[Any, Tensor, Pairs, OverRows], Pairs]
FUSED_MINERS: dict[type, FusedMiner] = {
    miners.BatchEasyHardMiner: batch_easy_hard,
    miners.BatchHardMiner: batch_easy_hard,
    miners.MultiSimilarityMiner: multi_similarity,
    miners.PairMarginMiner: pair_margin,
    miners.TripletMarginMiner: triplet_margin,
}
# Miners that choose each pair by itself or by reductions over its anchor's rows.
SHARDED_MINERS = tuple(kind for kind in FUSED_MINERS if kind is not miners.TripletMarginMiner)
