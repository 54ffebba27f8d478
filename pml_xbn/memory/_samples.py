"""Samples that are stored already: where their new rows go, and what becomes of the old ones."""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import normalize

from .._number_checks import check_one_of
from ._queue import Contents


class Update(NamedTuple):
    """The memory updates of Cross-Batch Memory, supplement §2, with their momentum m."""

    kind: str = "queue"  # or "average"
    momentum: float = 0.0

    def check(self) -> None:
        """Refuses numbers out of range, or without effect."""
        check_one_of("update", self.kind, ("queue", "average"))
        if not 0 <= self.momentum < 1:
            raise ValueError(f"update_momentum={self.momentum!r}: pass a number from 0 to below 1")
        if self.momentum and self.kind == "queue":
            raise ValueError(
                f"update_momentum={self.momentum!r} has no effect with update='queue', which replaces rows: "
                "pass update='average'"
            )

    def check_ids(self, ids: Tensor | None) -> None:
        """Refuses a batch without samples if stored rows are to be averaged with theirs."""
        if ids is None and self.kind == "average":
            raise ValueError(
                f"update={self.kind!r} with update_momentum={self.momentum!r} averages the rows of a sample: "
                "pass sample_ids, of every image its number in the data set, or -1"
            )

    def averaged(self, rows: Tensor, returning: Tensor, stored: Tensor) -> Tensor:
        """The rows ``(b, d)`` that are to be stored of a batch.

        Args:
            returning: numbers of those whose sample is stored, ``(r,)``.
            stored: these samples' rows as they are now, ``(r, d)``.
        """
        return rows.index_copy(0, returning, normalize(rows[returning].lerp(stored, self.momentum)))


class Placement(NamedTuple):
    """Where a batch goes. Of a sample that it holds more than once, the last row counts.

    A row whose sample is stored takes the place of the sample's row. Where the queue's new rows are to
    overwrite that place, it is one of them instead. All others go to the next places of the queue.
    """

    places: Tensor  # of every row of the batch its sample's place afterwards, (b,)
    staying: Tensor  # numbers of the rows that replace others in their places, (s,)
    coming: Tensor  # numbers of the rows that go to the next places of the queue, (k,), in order
    returning: Tensor  # numbers of the rows whose sample is stored, (r,)
    stored_at: Tensor  # where these samples are stored before the step, (r,)


def placement_of(contents: Contents, ids: Tensor, labels: Tensor) -> Placement:
    """Places of a batch, at most M rows.

    Args:
        ids: samples of the rows, ``(b,)``, int64; a negative one is that of no sample.
        labels: of the rows, ``(b,)``.

    Raises:
        ValueError: rows of one sample have different labels.
    """
    kept, last = _last_rows(ids)
    if not torch.equal(labels, labels[last]):
        rows = (labels != labels[last]).nonzero().flatten().tolist()
        raise ValueError(
            f"sample_ids names samples in rows {rows} of the batch that have another label further behind: "
            "give every sample one label, or every view of it an id of its own"
        )
    stored_at = contents.rows.everywhere(_places(contents.ids, ids))
    num_places, is_stored = contents.rows.num_places, stored_at >= 0
    # How many rows come to the queue until it gets there; those that it does get to come to it too.
    ahead = (stored_at - contents.position) % num_places
    waiting = ahead[kept & is_stored].sort().values
    num_new = int((kept & ~is_stored).sum())
    in_turn = torch.arange(num_new, num_new + len(waiting), device=ids.device)
    num_coming = num_new + int((waiting < in_turn).cumprod(dim=0).sum())
    is_coming = kept & (~is_stored | (ahead < num_coming))
    places = stored_at.clone()
    places[is_coming] = (contents.position + torch.arange(num_coming, device=ids.device)) % num_places
    staying, coming, returning = (
        flags.nonzero().squeeze(1) for flags in (kept & ~is_coming, is_coming, kept & is_stored)
    )
    return Placement(places[last], staying, coming, returning, stored_at[returning])


def with_samples(
    contents: Contents, placement: Placement, rows: Tensor, labels: Tensor, ids: Tensor
) -> Contents:
    """Returns the contents with a batch ``(b, d)`` in the places that it has."""
    staying, coming = placement.staying, placement.coming
    at, num_replaced = placement.places[staying], contents.num_replaced + len(staying)
    stored = contents.rows.put(at, rows[staying], len(contents.rows))
    if num_replaced >= stored.num_places:  # as in a turn
        stored, num_replaced = replace(stored, is_due=True), 0
    new_labels = contents.labels.index_copy(0, *contents.rows.held(at, labels[staying]))
    contents = contents._replace(rows=stored, labels=new_labels, num_replaced=num_replaced)
    return contents.put(rows[coming], labels[coming], ids[coming])._replace(newest=placement.places)


def _last_rows(ids: Tensor) -> tuple[Tensor, Tensor]:
    """Whether a row is the last of its sample, ``(b,)`` bool, and the number of that one, ``(b,)``."""
    in_order, order = ids.sort(stable=True)
    is_last = torch.ones_like(ids, dtype=torch.bool)
    is_last[:-1] = (in_order[1:] != in_order[:-1]) | (in_order[1:] < 0)
    kept, last = torch.empty_like(is_last), torch.empty_like(order)
    kept[order] = is_last
    last[order] = order[is_last][is_last.cumsum(dim=0) - is_last.long()]
    return kept, last


def _places(stored: Tensor | None, ids: Tensor) -> Tensor:
    """Where the samples are stored, ``(b,)``; -1 where they are not."""
    found = torch.full_like(ids, -1)
    if stored is None or len(ids) == 0:
        return found
    in_order = ids.sort().values
    slots = torch.searchsorted(in_order, stored).clamp_max_(len(ids) - 1)
    places = ((in_order[slots] == stored) & (stored >= 0)).nonzero().squeeze(1)
    found[slots[places]] = places
    return found[torch.searchsorted(in_order, ids)]
