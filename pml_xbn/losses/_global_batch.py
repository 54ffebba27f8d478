"""The batch of all ranks."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from . import _ranks as ranks
from ._batch import Batch
from ..pairwise import IndicesTuple


class Report(NamedTuple):
    """What a rank tells the others of its batch; all zero if it has failed."""

    num_refs: int = 0
    num_anchors: int = 0
    is_storable: bool = False
    len_given: int = 0  # tensors in its indices_tuple: 3, 4, or 0 for none
    num_positive: int = 0  # entries of the first of them
    num_negative: int = 0  # entries of the last
    has_ids: bool = False
    seed: int = 0  # for draws that are to be the same on all ranks


def report_of(batch: Batch, is_storable: bool) -> Tensor:
    """This rank's report as numbers."""
    given = batch.given or ()
    lengths = (len(given[0]), len(given[-1])) if given else (0, 0)
    seed = int(torch.randint(2**31, ()))
    has_ids = batch.ids is not None
    report = Report(len(batch.refs), len(batch.anchors), is_storable, len(given), *lengths, has_ids, seed)
    return torch.tensor(report, dtype=torch.float64)


def shared(make: Callable[[], tuple[Batch, bool]]) -> tuple[Batch, list[Report]]:
    """The batch of this rank, with what all ranks store, and what they report of theirs.

    Args:
        make: returns this rank's batch, and whether it may be stored. What it raises is raised on all ranks.
    """
    exchange = ranks.Exchange(torch.zeros(len(Report())))
    with exchange.at_end():
        exchange.mine = report_of(*(made := make()))
    reports = [Report(*numbers) for numbers in exchange.of_ranks.long().tolist()]
    batch, sizes = made[0], [report.num_refs for report in reports]
    ids = None
    if any(report.has_ids for report in reports):
        own_ids = torch.full_like(batch.row_labels, -1) if batch.ids is None else batch.ids
        ids = ranks.gather_rows(own_ids, sizes)
    gathered = batch._replace(
        rows=ranks.gather_rows(batch.rows, sizes),
        row_labels=ranks.gather_rows(batch.row_labels, sizes),
        first_row=_first(sizes),
        ids=ids,
    )
    return gathered, reports


def of_all_ranks(batch: Batch, reports: list[Report]) -> Batch:
    """The batch that a single process would have, given this rank's gathered one.

    Only this rank's part of it has gradients. A loss of it is the same on all ranks, and the mean over ranks
    of its gradients, of embeddings and of the loss's own parameters, is the gradient of a single process.
    """
    refs = _with_own(batch.rows, batch.refs, batch.first_row)
    anchors, anchor_labels = refs, batch.row_labels
    if not batch.is_own:
        sizes = [report.num_anchors for report in reports]
        anchors = _with_own(ranks.gather_rows(batch.anchors.detach(), sizes), batch.anchors, _first(sizes))
        anchor_labels = ranks.gather_rows(batch.anchor_labels, sizes)
    return batch._replace(
        anchors=anchors,
        anchor_labels=anchor_labels,
        refs=refs,
        ref_labels=batch.row_labels,
        given=_gathered_indices(batch, reports),
        first_row=0,
    )


def _with_own(rows: Tensor, own: Tensor, first: int) -> Tensor:
    """``rows`` with this rank's in their place. Their gradient is multiplied by the number of ranks, since
    theirs is the only one among those of which the mean is taken."""
    own = own.detach() + torch.distributed.get_world_size() * (own - own.detach())
    return torch.cat([rows[:first], own, rows[first + len(own) :]])


def _gathered_indices(batch: Batch, reports: list[Report]) -> IndicesTuple | None:
    """The pairs or triplets that are given on all ranks, which number the batch of all."""
    lengths = {report.len_given for report in reports} - {0}
    if not lengths:
        return None
    if len(lengths) > 1:
        raise ValueError("indices_tuple holds pairs on one rank and triplets on another: pass one of them")
    (length,) = lengths
    none = batch.row_labels.new_zeros(0)
    given = batch.given or (none,) * length
    of_positives = [report.num_positive for report in reports]
    of_negatives = [report.num_negative for report in reports]
    # Of pairs (anchor, positive, anchor, negative) the two halves have lengths of their own.
    sizes = [of_positives] * 2 + [of_negatives] * 2 if length == 4 else [of_positives] * 3
    return tuple(
        ranks.gather_rows(numbers.to(none) + batch.first_row, of_ranks)
        for numbers, of_ranks in zip(given, sizes, strict=True)
    )


def _first(sizes: list[int]) -> int:
    """Where this rank's rows begin among those of all."""
    return sum(sizes[: torch.distributed.get_rank()])
