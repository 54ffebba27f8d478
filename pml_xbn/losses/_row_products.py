"""Products of stored rows with all stored rows."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from .._dtypes import at_least_float32
from ..memory._rows import Rows
from ._sums import num_vectors_at_once

_ROWS_KEPT_PER_ANCHOR = 4


class RowProducts:
    """Those of the positives of anchors; where these are few, they are multiplied once for miner and loss.

    Attributes:
        anchors: ``(a, d)``, in float32 at least.
        origin: their mean, ``(d,)``. Of vectors from there to where others are, rounding takes least.
    """

    def __init__(self, anchors: Tensor, rows: Rows) -> None:
        self.anchors = at_least_float32(anchors.detach())
        self.origin = self.anchors.mean(dim=0)
        self._rows = rows
        self._kept = self._rows.stored.new_zeros(0, dtype=torch.int64), self.anchors[:0]  # places, products

    def at(self, places: Tensor) -> Tensor:
        """The rows at these places ``(k,)``, ``(k, d)``."""
        return self._rows.at(places, self.anchors.dtype)

    def of_positives(self, positive: Tensor, labels: Tensor) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        """Some positives at a time, class by class.

        Args:
            positive: those of every anchor, ``(a, n)``, bool or integers.
            labels: of the anchors, ``(a,)``; those of a class have their positives in common.

        Yields:
            The numbers of the class's anchors; places of k rows that are positives of any of them; and
            :meth:`of_rows` of these.
        """
        classes = labels.unique()
        of_class = torch.stack([positive[labels == label].any(dim=0) for label in classes])
        which, places = of_class.nonzero(as_tuple=True)
        if not len(self._kept[0]) and len(places) <= _ROWS_KEPT_PER_ANCHOR * len(labels):
            kept = places.unique()
            self._kept = kept, self._multiplied(kept)
        at_once = num_vectors_at_once(len(self._rows))
        for classes_of_part, part in zip(which.split(at_once), places.split(at_once), strict=True):
            numbers, sizes = classes_of_part.unique_consecutive(return_counts=True)
            places_of_each, slots = part.split(sizes.tolist()), self._slots(part)
            if slots is None:
                products = iter(self._multiplied(part).split(sizes.tolist()))
            else:
                products = (self._kept[1][own] for own in slots.split(sizes.tolist()))
            for number, of_one, own in zip(numbers, places_of_each, products, strict=True):
                yield (labels == classes[number]).nonzero().squeeze(1), of_one, own

    def of_rows(self, places: Tensor) -> Tensor:
        """Rows at these places ``(k,)``, less the origin, times all rows as they are, ``(k, n)``."""
        slots = self._slots(places)
        return self._multiplied(places) if slots is None else self._kept[1][slots]

    @torch.no_grad()
    def nearness(self, shift: float) -> Tensor:
        """n·(a - o) - |n - o + shift|² of anchors a, all rows n and the origin o, ``(a, n)``."""
        vectors = self.anchors - self.origin
        products = vectors.new_empty(len(vectors), len(self._rows))
        for places, part in self._rows.parts(vectors.dtype):
            of_part = torch.mm(vectors, part.t(), out=products[:, places])
            of_part -= torch.linalg.vector_norm(part + (shift - self.origin), dim=1).square()
        return products

    def _slots(self, places: Tensor) -> Tensor | None:
        """Which rows of what is kept are theirs, ``(k,)``; None: it has not all."""
        kept = self._kept[0]
        if not len(kept):
            return None
        slots = torch.searchsorted(kept, places).clamp_max_(len(kept) - 1)
        return slots if torch.equal(kept[slots], places) else None

    @torch.no_grad()
    def _multiplied(self, places: Tensor) -> Tensor:
        vectors = self.at(places) - self.origin
        products = vectors.new_empty(len(vectors), len(self._rows))
        with torch.autocast(vectors.device.type, enabled=False):
            for part_places, part in self._rows.parts(vectors.dtype):
                torch.mm(vectors, part.t(), out=products[:, part_places])
        return products
