"""Products of stored rows with all stored rows."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from .._dtypes import at_least_float32
from ..adapters._rows import Rows
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
        self._kept: tuple[Tensor, Tensor] | None = None

    def at(self, places: Tensor) -> Tensor:
        """The rows at these places ``(k,)``, ``(k, d)``."""
        return self._rows.as_they_were().at(places, self.anchors.dtype)

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
        if self._kept is None and len(places) <= _ROWS_KEPT_PER_ANCHOR * len(labels):
            kept = places.unique()
            self._kept = kept, self._of_rows(kept)
        at_once = num_vectors_at_once(len(self._rows))
        for classes_of_part, part in zip(which.split(at_once), places.split(at_once), strict=True):
            products, slots = self._found(part)
            numbers, sizes = classes_of_part.unique_consecutive(return_counts=True)
            of_each = (x.split(sizes.tolist()) for x in (part, slots))
            for number, of_one, own_slots in zip(numbers, *of_each, strict=True):
                yield (labels == classes[number]).nonzero().squeeze(1), of_one, products[own_slots]

    def of_rows(self, places: Tensor) -> Tensor:
        """Rows at these places ``(k,)``, less the origin, times all rows as they are, ``(k, n)``."""
        products, slots = self._found(places)
        return products[slots]

    @torch.no_grad()
    def nearness(self, shift: float) -> Tensor:
        """n·(a - o) - |n - o + shift|² of anchors a, all rows n and the origin o, ``(a, n)``."""
        vectors = self.anchors - self.origin
        products = vectors.new_empty(len(vectors), len(self._rows))
        with torch.autocast(vectors.device.type, enabled=False):
            for places, part in self._rows.parts(vectors.dtype):
                of_part = torch.mm(vectors, part.t(), out=products[:, places])
                of_part -= torch.linalg.vector_norm(part + (shift - self.origin), dim=1).square()
        return products

    def _found(self, places: Tensor) -> tuple[Tensor, Tensor]:
        """A matrix that has what :meth:`of_rows` returns, and in which of its rows."""
        if self._kept is not None:
            kept, products = self._kept
            slots = torch.searchsorted(kept, places).clamp_max_(len(kept) - 1)
            if torch.equal(kept[slots], places):
                return products, slots
        return self._of_rows(places), torch.arange(len(places), device=places.device)

    @torch.no_grad()
    def _of_rows(self, places: Tensor) -> Tensor:
        vectors = self.at(places) - self.origin
        products = vectors.new_empty(len(vectors), len(self._rows))
        with torch.autocast(vectors.device.type, enabled=False):
            for part_places, part in self._rows.as_they_were().parts(vectors.dtype):
                torch.mm(vectors, part.t(), out=products[:, part_places])
        return products
