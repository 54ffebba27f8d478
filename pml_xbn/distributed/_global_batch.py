"""The batch of all ranks."""

from __future__ import annotations

from collections.abc import Callable
from itertools import accumulate
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch import distributed as dist

from ..memory._batch import Batch
from ._collectives import Exchange, gather_rows


class Report(NamedTuple):
    """What a rank tells the others of its batch."""

    num_refs: int
    num_anchors: int
    is_stored: bool
    has_pairs: bool
    seed: int  # for draws that are the same on all ranks
    can_share: bool  # it can compute the loss of its own anchors apart


def reported(make: Callable[[], Batch], can_share: bool = False, **state: int) -> tuple[Batch, list[Report]]:
    """Returns this rank's batch, and the reports of all ranks on theirs.

    Args:
        make: returns this rank's batch.
        can_share: see :class:`Report`.
        **state: numbers that are to be equal on all ranks.

    Raises:
        Exception: what ``make`` raises on one of the ranks, on all of them.
        ValueError: on all ranks: their states differ, or their batches are of different kinds.
    """
    with Exchange(len(Report._fields) + len(state) + 4) as exchange:
        batch = make()
        seed = int(torch.randint(2**31, ()))
        pairs = batch.user_pairs is not None
        report = Report(len(batch.refs), len(batch.anchors), batch.is_stored, pairs, seed, can_share)
        state |= {
            "embedding_size": batch.refs.shape[1],
            "bits_of_dtype": torch.finfo(batch.refs.dtype).bits,
            "has_enqueue_mask": batch.own is None,
            "has_sample_ids": batch.ids is not None,
        }
        exchange.values = torch.tensor([*report, *state.values()], dtype=torch.float64)
    reports, states = exchange.by_rank.long().tensor_split([len(Report._fields)], dim=1)
    for name, values in zip(state, states.t().tolist(), strict=True):
        if len(set(values)) > 1:
            raise ValueError(
                f"{name} is {values} on ranks 0 to {len(values) - 1}: build, load and call it alike on all"
            )
    return batch, [Report(*values) for values in reports.tolist()]


def with_all_refs(batch: Batch, reports: list[Report]) -> Batch:
    """Returns this rank's batch with the refs of all ranks, of which its own have gradients."""
    sizes, rank = [report.num_refs for report in reports], dist.get_rank()
    first = sum(sizes[:rank])
    return batch._replace(
        refs=_gathered(batch.refs, sizes),
        ref_labels=gather_rows(batch.ref_labels, sizes),
        own=None if batch.own is None else slice(first, first + sizes[rank]),
        ids=None if batch.ids is None else gather_rows(batch.ids, sizes),
    )


def with_all_anchors(batch: Batch, reports: list[Report]) -> Batch:
    """Returns the batch that a single process would have, given this rank's with the refs of all.

    A loss of it is the same on all ranks, and the mean over ranks of its gradients, of embeddings and of the
    loss's own parameters, is the gradient of a single process.
    """
    if batch.own is None:
        sizes = [report.num_anchors for report in reports]
        labels = gather_rows(batch.anchor_labels, sizes)
        return batch._replace(anchors=_gathered(batch.anchors, sizes), anchor_labels=labels)
    pairs = _gathered_pairs(batch, reports) if any(report.has_pairs for report in reports) else None
    whole = slice(0, len(batch.refs))
    return batch._replace(anchors=batch.refs, anchor_labels=batch.ref_labels, own=whole, user_pairs=pairs)


def _gathered(own: Tensor, sizes: list[int]) -> Tensor:
    """Returns the rows of all ranks, with the gradient of this rank's.

    It is multiplied by the number of ranks, since it is the only one of those that are averaged.
    """
    rows, first = gather_rows(own.detach(), sizes), sum(sizes[: dist.get_rank()])
    own = own.detach() + dist.get_world_size() * (own - own.detach())
    return torch.cat([rows[:first], own, rows[first + len(own) :]])


def _gathered_pairs(batch: Batch, reports: list[Report]) -> tuple[Tensor, ...]:
    """Returns the pairs or triplets that are given on all ranks, which number the batch of all."""
    own, by_rank = batch.user_pairs, list[Any]([None] * len(reports))
    dist.all_gather_object(by_rank, None if own is None else [indices.cpu() for indices in own])
    firsts = accumulate((report.num_refs for report in reports), initial=0)
    given = [[x + first for x in pairs] for pairs, first in zip(by_rank, firsts, strict=False) if pairs]
    if len({len(pairs) for pairs in given}) > 1:
        raise ValueError("indices_tuple is of triplets on one rank and of pairs on another: pass one kind")
    return tuple(torch.cat(indices).to(batch.refs.device) for indices in zip(*given, strict=True))
