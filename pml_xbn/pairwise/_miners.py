"""What five of PML's miners choose, as functions of one matrix, and what others do by their own code."""

from __future__ import annotations

from collections.abc import Callable
from math import inf
from typing import Any

import torch
from pytorch_metric_learning import miners
from torch import Tensor

from ._distances import Distances
from ._index_tensors import IndicesTuple, drop_own_rows, mapped
from ._pairs import Pairs, only, similarities
from ._reductions import Largest, Max, Reducing, of_all_rows, total
from ._runs import Runs

Miner = Callable[[Tensor, Tensor, Tensor, Tensor], IndicesTuple]


def mined(miner: Any, distances: Distances, pairs: Pairs) -> Pairs:
    """Returns those of the pairs that one of the five miners chooses."""
    miner.reset_stats()
    with torch.no_grad():
        mat = distances.measured(miner.distance)
        chosen = of_all_rows(MINERS[type(miner)](miner, mat, pairs))
        if isinstance(miner, miners.BatchHardMiner):  # of every anchor one triplet
            chosen = chosen._replace(triplets=Runs.all(mat, chosen.positive, chosen.negative))
        numbers = torch.stack([total(counts) for counts in chosen[:2]]).tolist()
    tell_numbers(miner, numbers)
    return chosen._replace(num_pairs=numbers)


def tell_numbers(miner: Any, numbers: list[int]) -> None:
    """Tells one of the five miners how many positive and negative pairs it has chosen, for its records."""
    positives, negatives = map(range, numbers)  # which PML asks for their length
    is_of_triplets = isinstance(miner, (miners.BatchHardMiner, miners.TripletMarginMiner))
    miner.output_assertion([positives] * 3 if is_of_triplets else [positives] * 2 + [negatives] * 2)


def mined_by_its_own_code(miner: Any, distances: Distances, pairs: Pairs) -> Pairs:
    """Returns what any miner chooses, without own copies; what it chose in their stead is not known."""
    own_rows = pairs.own_rows
    rows = distances.rows.read(distances.anchors.dtype)
    lists = miner(distances.anchors, pairs.labels, rows, pairs.row_labels)
    if isinstance(miner, miners.EmbeddingsAlreadyPackagedAsTriplets):  # which numbers the batch
        lists = tuple(x[:0].to(rows.device) for x in lists) if own_rows is None else mapped(lists, own_rows)
    if own_rows is not None:
        lists = drop_own_rows(lists, own_rows)
        if isinstance(miner, miners.BaseMiner):
            miners.BaseMiner.output_assertion(miner, lists)  # counts them again
    return pairs.listed(lists)


def pair_margin(miner: miners.PairMarginMiner, mat: Tensor, pairs: Pairs) -> Pairs:
    """Returns pairs beyond a margin."""
    if miner.collect_stats:
        miner.set_stats(mat[pairs.positive], mat[pairs.negative])
    is_far, is_near = (torch.lt, torch.gt) if miner.distance.is_inverted else (torch.gt, torch.lt)
    return pairs._replace(
        positive=pairs.positive & is_far(mat, miner.pos_margin),
        negative=pairs.negative & is_near(mat, miner.neg_margin),
    )


def multi_similarity(miner: miners.MultiSimilarityMiner, mat: Tensor, pairs: Pairs) -> Reducing[Pairs]:
    """Returns pairs beyond the hardest of the other kind (https://arxiv.org/abs/1904.06627)."""
    mat = similarities(miner.distance, mat)
    nearest_negative, farthest_positive = yield [Max(mat, pairs.negative), Max(-mat, pairs.positive)]
    return pairs._replace(
        positive=pairs.positive & (mat - miner.epsilon < nearest_negative.unsqueeze(1)),
        negative=pairs.negative & (mat + miner.epsilon > -farthest_positive.unsqueeze(1)),
    )


def batch_easy_hard(miner: miners.BatchEasyHardMiner, mat: Tensor, pairs: Pairs) -> Reducing[Pairs]:
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
        (bound,) = yield [Max(sign_of_negatives * near, negative)]
        positive = positive & (near > sign_of_negatives * bound.unsqueeze(1))
    elif miner.neg_strategy == miner.SEMIHARD:
        (bound,) = yield [Max(sign_of_positives * near, positive)]
        negative = negative & (near < sign_of_positives * bound.unsqueeze(1))
    positive_row, negative_row = yield [
        Largest(sign_of_positives * near, positive, pairs.first),
        Largest(sign_of_negatives * near, negative, pairs.first),
    ]
    if miner.ALL not in (miner.pos_strategy, miner.neg_strategy):
        has_one = (positive_row < 0) | (negative_row < 0)
        positive_row, negative_row = (x.masked_fill(has_one, -1) for x in (positive_row, negative_row))
    chosen_positive = only(positive_row, pairs.first, pairs.positive)
    chosen_negative = only(negative_row, pairs.first, pairs.negative)
    if miner.pos_strategy == miner.ALL:
        chosen_positive = pairs.positive
    if miner.neg_strategy == miner.ALL:
        chosen_negative = pairs.negative
    if miner.collect_stats:
        miner.set_stats(mat[chosen_positive], mat[chosen_negative])
    return pairs._replace(positive=chosen_positive, negative=chosen_negative)


def triplet_margin(miner: miners.TripletMarginMiner, mat: Tensor, pairs: Pairs) -> Pairs:
    """Returns triplets by how much farther away the negative is than the positive."""
    low, high = {
        "hard": (-inf, min(0.0, miner.margin)),
        "semihard": (0.0, miner.margin),
        "easy": (miner.margin, inf),
    }.get(miner.type_of_triplets, (-inf, miner.margin))
    mat = -similarities(miner.distance, mat)
    every = Runs.all(mat, pairs.positive, pairs.negative)
    start = every.start if high == inf else every.first(mat, mat - high)
    end = every.end if low == -inf else every.first(mat, mat - low)
    triplets = every._replace(start=start, end=end)
    positive, negative = triplets.num_of_pairs()
    return pairs._replace(positive=positive, negative=negative, triplets=triplets)


# Of (miner, mat, pairs), and a generator if it needs reductions.
MINERS: dict[type, Callable[[Any, Tensor, Pairs], Pairs | Reducing[Pairs]]] = {
    miners.BatchEasyHardMiner: batch_easy_hard,
    miners.BatchHardMiner: batch_easy_hard,
    miners.MultiSimilarityMiner: multi_similarity,
    miners.PairMarginMiner: pair_margin,
    miners.TripletMarginMiner: triplet_margin,
}
