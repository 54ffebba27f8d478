"""The batch of all ranks."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import reduce
from typing import NamedTuple

import torch
from torch import Tensor

from ..memory._batch import Batch
from ._collectives import first_row, gather_rows
from ._exchange import Exchange

_DTYPES = (torch.float32, torch.float64, torch.float16, torch.bfloat16)


class Report(NamedTuple):
    """What a rank tells the others of its batch."""

    num_refs: int
    num_anchors: int
    dim: int
    dtype: int  # place in _DTYPES
    is_storable: bool
    has_mask: bool
    has_ids: bool
    num_tensors: int  # of its indices_tuple: 3, 4, or 0 for none
    num_positive: int  # entries of the first of these tensors
    num_negative: int  # entries of the last
    seed: int  # for draws that are the same on all ranks

    @property
    def is_empty(self) -> bool:
        return self.num_refs == self.num_anchors == 0


def gathered(make: Callable[[], tuple[Batch, bool]], state: Mapping[str, int]) -> tuple[Batch, list[Report]]:
    """Returns this rank's batch with the rows that all ranks store, and the reports of all ranks.

    Its embeddings are in the most precise of the ranks' dtypes; an empty one has a mask if theirs have.

    Args:
        make: returns this rank's batch, and whether it may be stored.
        state: numbers that are to be equal on all ranks, by name.

    Raises:
        Exception: what ``make`` raises on one of the ranks, on all of them.
        ValueError: on all ranks: their states differ, or their batches are of different kinds.
    """
    num_fields = len(Report._fields)
    exchange = Exchange(num_fields + len(state))
    with exchange.at_end():
        batch, is_storable = make()
        user_pairs = batch.user_pairs or ()
        report = Report(
            num_refs=len(batch.refs),
            num_anchors=len(batch.anchors),
            dim=batch.refs.shape[1],
            dtype=_DTYPES.index(batch.refs.dtype),
            is_storable=is_storable,
            has_mask=not batch.is_own,
            has_ids=batch.ids is not None,
            num_tensors=len(user_pairs),
            num_positive=len(user_pairs[0]) if user_pairs else 0,
            num_negative=len(user_pairs[-1]) if user_pairs else 0,
            seed=int(torch.randint(2**31, ())),
        )
        exchange.values = torch.tensor([*report, *state.values()], dtype=torch.float64)
    values_by_rank = exchange.by_rank.long().tolist()
    reports = [Report(*row[:num_fields]) for row in values_by_rank]
    for name, *values in zip(state, *(row[num_fields:] for row in values_by_rank), strict=True):
        _check_equal(name, values, "build and load the memory alike on all ranks")
    _check_kinds(reports)
    dtype = reduce(torch.promote_types, (_DTYPES[report.dtype] for report in reports))
    refs, sizes, ids = batch.refs.to(dtype), [report.num_refs for report in reports], None
    if any(report.has_ids for report in reports):
        own_ids = torch.full_like(batch.row_labels, -1) if batch.ids is None else batch.ids
        ids = gather_rows(own_ids, sizes)
    batch = batch._replace(
        anchors=refs if batch.anchors is batch.refs else batch.anchors.to(dtype),
        refs=refs,
        is_own=not any(report.has_mask and not report.is_empty for report in reports),
        rows=gather_rows(refs.detach(), sizes),
        row_labels=gather_rows(batch.row_labels, sizes),
        first_row=first_row(sizes),
        ids=ids,
    )
    return batch, reports


def _check_kinds(reports: list[Report]) -> None:
    """Refuses batches that one process could not be given as one."""
    _check_equal("embedding_size", [report.dim for report in reports], "embed alike on all ranks")
    with_rows = [report for report in reports if not report.is_empty]
    if len({report.has_mask for report in with_rows}) > 1:
        masked = [rank for rank, report in enumerate(reports) if report.has_mask]
        raise ValueError(f"enqueue_mask is given on ranks {masked} alone: pass it on all ranks, or on none")
    if len({report.num_tensors for report in reports} - {0}) > 1:
        raise ValueError("indices_tuple holds pairs on one rank and triplets on another: pass one of them")


def _check_equal(name: str, values: list[int], remedy: str) -> None:
    if len(set(values)) > 1:
        raise ValueError(f"{name} is {values} on ranks 0 to {len(values) - 1}: {remedy}")


def batch_of_all_ranks(batch: Batch, reports: list[Report]) -> Batch:
    """Returns the batch that a single process would have, given this rank's gathered one.

    Only this rank's part of it has gradients. A loss of it is the same on all ranks, and the mean over ranks
    of its gradients, of embeddings and of the loss's own parameters, is the gradient of a single process.
    """
    refs = _with_own(batch.rows, batch.refs, batch.first_row)
    anchors, anchor_labels = refs, batch.row_labels
    if not batch.is_own:
        sizes = [report.num_anchors for report in reports]
        anchors = _with_own(gather_rows(batch.anchors.detach(), sizes), batch.anchors, first_row(sizes))
        anchor_labels = gather_rows(batch.anchor_labels, sizes)
    return batch._replace(
        anchors=anchors,
        anchor_labels=anchor_labels,
        refs=refs,
        ref_labels=batch.row_labels,
        user_pairs=_gathered_indices(batch, reports),
        first_row=0,
    )


def _with_own(rows: Tensor, own: Tensor, first: int) -> Tensor:
    """Returns ``rows`` with this rank's in their place.

    Their gradient is multiplied by the number of ranks, since it is the only one of those that are averaged.
    """
    own = own.detach() + torch.distributed.get_world_size() * (own - own.detach())
    return torch.cat([rows[:first], own, rows[first + len(own) :]])


def _gathered_indices(batch: Batch, reports: list[Report]) -> tuple[Tensor, ...] | None:
    """Returns the pairs or triplets that are given on all ranks, which number the batch of all."""
    num_tensors = max(report.num_tensors for report in reports)
    if num_tensors == 0:
        return None
    none = batch.row_labels.new_zeros(0)
    user_pairs = batch.user_pairs or (none,) * num_tensors
    num_positive = [report.num_positive for report in reports]
    num_negative = [report.num_negative for report in reports]
    # Of pairs (anchor, positive, anchor, negative) the two halves have lengths of their own.
    sizes = [num_positive] * 2 + [num_negative] * 2 if num_tensors == 4 else [num_positive] * 3
    return tuple(
        gather_rows(indices.to(none) + batch.first_row, by_rank)
        for indices, by_rank in zip(user_pairs, sizes, strict=True)
    )
