"""Where the rows of samples go: samples that are stored already take the places that they have."""

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

    A row of a new sample goes to the next place of the queue. A row of a stored sample takes the place of the
    old row, unless the queue is about to overwrite that place in this very step: then it is queued as well.
    For instance, of M = 8 places the next is 2, and a batch holds two new samples and those stored in places
    3 and 6. The new ones go to places 2 and 3. The old row in place 3 would be overwritten, so its sample is
    queued too, and goes to place 4. The sample in place 6 stays there.
    """

    places: Tensor  # of every row of the batch its sample's place afterwards, (b,)
    kept: Tensor  # numbers of the rows that are stored, (k,)
    num_queued: int  # how many of these go to the next places of the queue
    returning: Tensor  # numbers of the rows whose sample is stored, (r,)
    stored_at: Tensor  # where these samples are stored before the step, (r,)


def placement_of(queue: Queue, contents: Contents, ids: Tensor, labels: Tensor) -> Placement:
    """Returns the places of a batch of these samples ``(b,)``, not empty; a negative one is of no sample."""
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
    stored_at = queue.holding.global_indices(_places(contents.ids, samples)[sample_of])
    num_places, is_stored, kept = queue.num_places, stored_at >= 0, last == numbers
    # How far each stored sample is from the head of the queue, nearest first. The first is queued too if the
    # new rows reach it, the second if these and the first do, and so on to the first that is not reached.
    distance = (stored_at - contents.position) % num_places
    nearest = distance[kept & is_stored].sort().values
    num_new = int((kept & ~is_stored).sum())
    reach = torch.arange(num_new, num_new + len(nearest), device=ids.device)
    num_queued = num_new + int((nearest < reach).cumprod(dim=0).sum())
    places = stored_at.clone()
    places[kept & (~is_stored | (distance < num_queued))] = queue.next_indices(contents, num_queued)
    stored, returning = (flags.nonzero().squeeze(1) for flags in (kept, kept & is_stored))
    return Placement(places[last], stored, num_queued, returning, stored_at[returning])


def average_rows(rows: Tensor, stored: Rows, placement: Placement, momentum: float) -> Tensor:
    """Returns the rows ``(b, d)`` that are to be stored of a batch, some of whose samples are stored."""
    new = normalize(rows[placement.returning].lerp(stored.at(placement.stored_at), momentum))
    return rows.index_copy(0, placement.returning, new)


def _places(stored: Tensor, samples: Tensor) -> Tensor:
    """Where the samples ``(s,)``, in ascending order, are stored; -1 where they are not."""
    slots = torch.searchsorted(samples, stored).clamp_max_(len(samples) - 1)
    places = ((samples[slots] == stored) & (stored >= 0)).nonzero().squeeze(1)
    found = torch.full_like(samples, -1)
    found[slots[places]] = places
    return found
