"""Where the rows of samples go: a sample that is stored already keeps its index."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import normalize

from .._checks import check_one_of
from ._queue import Contents, Queue
from ._rows import Rows


def check_update(update: str, momentum: float) -> None:
    """Refuses a memory update of Cross-Batch Memory, supplement §2, out of range or without effect."""
    check_one_of("update", update, ("queue", "average"))
    if not 0 <= momentum < 1:
        raise ValueError(f"update_momentum={momentum!r}: pass a number from 0 to below 1")
    if momentum and update == "queue":
        found = f"update_momentum={momentum!r} has no effect with update='queue', which replaces rows"
        raise ValueError(f"{found}: pass update='average'")


class Placement(NamedTuple):
    """Where a batch goes. Of a sample that it holds more than once, the last row counts.

    A row of a new sample goes to the next index of the queue. A row of a stored sample replaces the old row,
    unless the queue is about to overwrite that one in this very step: then the new row is queued as well.
    Rows are queued in the order of the batch. For instance, of M = 8 rows the next to be overwritten is row
    2, and a batch holds, in this order, two new samples and those of rows 3 and 6. The new ones go to indices
    2 and 3. The old row 3 is overwritten so, hence its sample is queued too, and goes to index 4. The sample
    of row 6 stays there.
    """

    indices: Tensor  # for every row of the batch, the index of its sample after the step, (b,)
    kept: Tensor  # positions in the batch of the rows that are stored, (k,)
    num_queued: int  # how many of these go to the next indices of the queue
    returning: Tensor  # positions in the batch of the rows whose sample is stored, (r,)
    stored_at: Tensor  # where these samples are stored before the step, (r,)


def placement_of(queue: Queue, contents: Contents, ids: Tensor, labels: Tensor) -> Placement:
    """Returns where a batch of these samples ``(b,)``, b ≥ 1, goes; a negative id is of no sample."""
    numbers = torch.arange(len(ids), device=ids.device)
    samples, sample_of = ids.unique(return_inverse=True)
    last = torch.zeros_like(samples).scatter_reduce_(0, sample_of, numbers, "amax")[sample_of]
    last = torch.where(ids < 0, numbers, last)
    if not torch.equal(labels, labels[last]):
        rows = (labels != labels[last]).nonzero().flatten().tolist()
        raise ValueError(
            f"sample_ids names samples in rows {rows} of the batch that have another label further behind: "
            "give every sample one label, or every view of it an id of its own"
        )
    stored_at = queue.holding.global_indices(_indices_of(samples, contents.ids)[sample_of])
    memory_size, was_stored, is_last = queue.memory_size, stored_at >= 0, last == numbers
    # How far each stored sample is from the head of the queue, nearest first. The first is queued too if the
    # new rows reach it, the second if these and the first do, and so on to the first that is not reached.
    distance = (stored_at - contents.position) % memory_size
    nearest = distance[is_last & was_stored].sort().values
    num_new = int((is_last & ~was_stored).sum())
    num_queued_before = torch.arange(num_new, num_new + len(nearest), device=ids.device)
    num_queued = num_new + int((nearest < num_queued_before).cumprod(dim=0).sum())
    indices = stored_at.clone()
    indices[is_last & (~was_stored | (distance < num_queued))] = queue.next_indices(contents, num_queued)
    kept, returning = (flags.nonzero().squeeze(1) for flags in (is_last, is_last & was_stored))
    return Placement(indices[last], kept, num_queued, returning, stored_at[returning])


def average_rows(rows: Tensor, stored: Rows, placement: Placement, momentum: float) -> Tensor:
    """Returns the rows ``(b, d)`` that are to be stored of a batch, some of whose samples are stored."""
    new = normalize(rows[placement.returning].lerp(stored.at(placement.stored_at), momentum))
    return rows.index_copy(0, placement.returning, new)


def _indices_of(samples: Tensor, stored: Tensor) -> Tensor:
    """Returns the rows' indices of samples ``(s,)``, in ascending order; -1 where one is not stored."""
    nearest = torch.searchsorted(samples, stored).clamp_max_(len(samples) - 1)  # sample of every stored row
    indices = ((samples[nearest] == stored) & (stored >= 0)).nonzero().squeeze(1)
    found = torch.full_like(samples, -1)
    found[nearest[indices]] = indices
    return found
