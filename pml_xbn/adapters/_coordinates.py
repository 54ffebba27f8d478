"""The coordinates that rows are stored in: those of two generations, which a turn of a queue divides."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch
from torch import Tensor

from .._dtypes import widest
from .affine import Affine
from .linear import Linear
from .moments import Moments, moments

# At how much of its first scale a coordinate is spent: its rows are taken for equal, and those to come would
# be too many times the scale. And what spread is taken for none.
_LEAST_SCALE = {torch.float16: 2.0**-13}
_LEAST_STD = {torch.float16: 2.0**-9}

_LEAST_OF_RMS = 2.0**-8
# Of a smaller spread rows to come may be too many times.
_LEAST_ORIGIN = 2.0**-60


class Sums(NamedTuple):
    """Sums over stored rows u and over u², ``(..., d)`` each, float64."""

    first: Tensor
    second: Tensor

    @classmethod
    def of(cls, stored: Tensor) -> Sums:
        """Of stored rows ``(..., k, d)``."""
        wide = widest(stored)  # rows that are stored as they are may be far from zero
        second = wide.square().sum(dim=-2)
        if stored.dtype != torch.float64:  # what is left of an infinite number, which says nothing
            second.masked_fill_(second > torch.finfo(torch.float32).max, torch.inf)
        return cls(wide.sum(dim=-2), second)

    def plus(self, other: Sums, sign: int = 1) -> Sums:
        return Sums(*(x.add(y, alpha=sign) for x, y in zip(self, other, strict=True)))

    def are_lost(self) -> bool:
        """Whether a NaN is in them, which would stay when its row goes; no GPU waits for the answer."""
        return self.first.device.type == "cpu" and not math.isfinite(self.second.sum().item())


class Coordinates(NamedTuple):
    r"""Of the rows of two generations, the newer and the older: :math:`\hat z = a \circ u + b`.

    Attributes:
        scale, shift: a and b, ``(2, d)`` each, float64.
        origin: the scales with which the generations began, ``(2, d)``, float64.
        is_as_stored: a = 1 and b = 0 in both.
        sums: over the stored rows of each, zeros where there are none; None where nobody has measured them.
    """

    scale: Tensor
    shift: Tensor
    origin: Tensor
    is_as_stored: bool
    sums: Sums | None

    @classmethod
    def beginning(cls, rows: Tensor, is_whitened: bool, dtype: torch.dtype) -> Coordinates:
        """Of two generations alike, to store rows in ``dtype``.

        Args:
            rows: ``(n, d)``, whose moments are the origin; a dimension without spread is only shifted.
            is_whitened: False if rows are to be stored as they are, unless in half precision.
        """
        wide = widest(rows)
        ones = wide.new_ones(2, wide.shape[1])
        if len(rows) == 0 or not (is_whitened or dtype.itemsize < 4):
            return cls(ones, torch.zeros_like(ones), ones, True, None)
        mean, std = moments(wide) if len(wide) > 1 else (wide[0], ones[0] * 0)
        is_finite = torch.isfinite(std)
        if dtype == torch.float16:  # where these are nearly equal, rows to come have to fit in its range, too
            rms = torch.where(is_finite, mean.square() + std.square(), 0.0).mean().sqrt()
            std = torch.where(std > _LEAST_ORIGIN, torch.maximum(std, _LEAST_OF_RMS * rms), std)
        scale = torch.where(is_finite & (std > _LEAST_ORIGIN), std, ones)
        shift = torch.where(is_finite, mean, 0.0).expand_as(ones).clone()
        return cls(scale, shift, scale, False, None)

    def after_turn(self, begun: Coordinates) -> Coordinates:
        """What has ``begun`` for the newer generation, whose place the older one takes."""
        scale, shift, origin = (
            torch.stack([new[0], old[0]]) for new, old in zip(begun[:3], self[:3], strict=True)
        )
        is_as_stored = begun.is_as_stored and self.is_as_stored
        sums = self.sums and Sums(*(torch.stack([torch.zeros_like(x[0]), x[0]]) for x in self.sums))
        return type(self)(scale, shift, origin, is_as_stored, sums)

    @staticmethod
    def sums_of(stored: Tensor) -> Sums:
        """What moments follow from, of stored rows ``(..., k, d)``."""
        return Sums.of(stored)

    @property
    def map(self) -> Any:
        """From stored rows to rows as they are now: an :class:`Affine`, or a :class:`Linear`, of two."""
        return Affine(self.scale, self.shift)

    @property
    def size(self) -> Tensor:
        """How far a stored row of ones may lie from the shift, ``(2, d)``."""
        return self.scale.abs()

    def maps(self, dtype: torch.dtype) -> list[Any]:
        """:attr:`map` of the newer and of the older generation, to read rows in ``dtype``."""
        kind, pairs = type(self.map), zip(self.scale.to(dtype), self.shift.to(dtype), strict=True)
        return [kind(scale, shift) for scale, shift in pairs]

    def adapted(self, affine: Affine | Linear) -> Coordinates:
        """After a map of the rows."""
        assert isinstance(affine, Affine), "a matrix needs coordinates with a matrix"
        scale, shift = affine.after(self.map)
        return self._replace(scale=scale, shift=shift, is_as_stored=False)

    def are_spent(self, dtype: torch.dtype) -> Tensor:
        """Where the rows of a generation, stored in ``dtype``, have become equal, ``(2, d)``."""
        return self.size < self._least_scale(dtype)

    def renewed(self, are_spent: Tensor) -> Coordinates:
        """As they began where zeros are stored."""
        sums = self.sums and Sums(*(x.masked_fill(are_spent, 0.0) for x in self.sums))
        return self._replace(scale=torch.where(are_spent, self.origin, self.scale), sums=sums)

    def bounded(self, dtype: torch.dtype) -> Coordinates:
        """With the least scale where they are spent, whatever is stored there."""
        scale = torch.where(self.are_spent(dtype), self._least_scale(dtype), self.scale)
        return self._replace(scale=scale)

    def near(self, of_rows: Moments, dtype: torch.dtype) -> Coordinates:
        """With other coordinates in dimensions in which these are far from rows with such moments.

        For rows that are stored anew in ``dtype``, in which numbers of the order of 1 are rounded best.
        """
        mean, std = of_rows
        size = self.scale.abs()
        is_near = (size < 4 * std) & (std < 4 * size) & ((self.shift - mean).abs() < 4 * size)
        has_spread = (std > _LEAST_ORIGIN) & torch.isfinite(std) & torch.isfinite(mean)
        is_far = ~is_near & has_spread & (std > self.least_std(dtype))
        scale, shift, origin = (
            torch.where(is_far, new, old)
            for new, old in ((std, self.scale), (mean, self.shift), (std, self.origin))
        )
        return self._replace(scale=scale, shift=shift, origin=origin, is_as_stored=False)

    def to_store(self, rows: Tensor, dtype: torch.dtype, generation: int = 0) -> Tensor:
        """u in ``dtype`` of rows ``(k, d)`` of the newer generation, 0, or of the older one, 1."""
        if self.is_as_stored:
            return rows.to(dtype)
        stored = self._stored(widest(rows) - self.shift[generation], self.scale[generation])
        return stored.clamp_(torch.finfo(dtype).min, torch.finfo(dtype).max).to(dtype)

    @staticmethod
    def _stored(offsets: Tensor, scale: Tensor) -> Tensor:
        """u of offsets from the shift ``(k, d)``, which are written over."""
        return offsets.div_(scale)

    def with_rows(self, come: Tensor, gone: Tensor) -> Coordinates:
        """After stored rows ``(k, d)`` have come to the newer generation, and as many gone from the older."""
        if self.sums is None:
            return self
        changes = self.sums_of(torch.stack([come, gone]))
        for of_generations in changes:
            of_generations[1].neg_()
        return self._replace(sums=self.sums.plus(changes))

    def with_replaced(self, come: Tensor, gone: Tensor, is_newer: Tensor) -> Coordinates:
        """After stored rows ``(k, d)`` have come in the place of others of their own generation.

        Args:
            is_newer: whether that is the newer one, ``(k,)`` bool.
        """
        if self.sums is None:
            return self
        of_others = torch.stack([~is_newer, is_newer])[:, None, :, None]
        changes = self.sums_of(torch.stack([come, gone]).masked_fill(of_others, 0))  # (2, 2, ...)
        return self._replace(sums=self.sums.plus(Sums(*(x[:, 0] - x[:, 1] for x in changes))))

    def means_and_squares(self, counts: Tensor) -> tuple[Tensor, Tensor]:
        """Means, and sums of squared deviations from them, of the rows as they are now, ``(2, d)`` each.

        Args:
            counts: numbers of rows, ``(2, 1)``; 1 where there are none.
        """
        assert self.sums is not None, "to be measured first"
        first, second = self.sums
        means = first / counts
        squares = second.addcmul(first, means, value=-1).clamp_(min=0)
        return self.map.map(means), squares.mul_(self.scale.square())

    def least_std(self, dtype: torch.dtype) -> Tensor:
        """The largest spread that may be left of rows, stored in ``dtype``, which have become equal."""
        return _LEAST_STD.get(dtype, 2.0**-50) * self.origin

    def _least_scale(self, dtype: torch.dtype) -> Tensor:
        return _LEAST_SCALE.get(dtype, 2.0**-60) * self.origin
