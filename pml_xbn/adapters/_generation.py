"""The coordinates that rows are stored in, of those that were stored in the same turn of a queue."""

from __future__ import annotations

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
    """Sums over stored rows u and over u², ``(d,)`` each, float64."""

    first: Tensor
    second: Tensor

    @classmethod
    def of(cls, stored: Tensor) -> Sums:
        wide = widest(stored)  # rows that are stored as they are may be far from zero
        second = wide.square().sum(dim=0)
        if stored.dtype != torch.float64:  # what is left of an infinite number, which says nothing
            second = torch.where(second > torch.finfo(torch.float32).max, torch.inf, second)
        return cls(wide.sum(dim=0), second)

    def plus(self, other: Sums, sign: int = 1) -> Sums:
        return Sums(*(x.add(y, alpha=sign) for x, y in zip(self, other, strict=True)))

    def are_lost(self) -> bool:
        """Whether a NaN is in them, which would stay when its row goes; no GPU waits for the answer."""
        return self.first.device.type == "cpu" and not torch.isfinite(self.second).all()


class Generation(NamedTuple):
    r"""A generation's coordinates: :math:`\hat z = a \circ u + b`.

    Attributes:
        scale, shift: a and b, ``(d,)`` each, float64.
        origin: the scale with which the generation began, ``(d,)``, float64.
        is_as_stored: a = 1 and b = 0.
        sums: over its stored rows; None where nobody has measured them.
    """

    scale: Tensor
    shift: Tensor
    origin: Tensor
    is_as_stored: bool
    sums: Sums | None

    @classmethod
    def beginning(cls, rows: Tensor, is_whitened: bool, dtype: torch.dtype) -> Generation:
        """One without rows yet, to store them in ``dtype``.

        Args:
            rows: ``(n, d)``, whose moments are the origin; a dimension without spread is only shifted.
            is_whitened: False if rows are to be stored as they are, unless in half precision.
        """
        wide = widest(rows)
        ones = wide.new_ones(wide.shape[1])
        if len(rows) == 0 or not (is_whitened or dtype.itemsize < 4):
            return cls(ones, torch.zeros_like(ones), ones, True, None)
        mean, std = moments(wide) if len(wide) > 1 else (wide[0], ones * 0)
        is_finite = torch.isfinite(std)
        if dtype == torch.float16:  # where these are nearly equal, rows to come have to fit in its range, too
            rms = torch.where(is_finite, mean.square() + std.square(), 0.0).mean().sqrt()
            std = torch.where(std > _LEAST_ORIGIN, torch.maximum(std, _LEAST_OF_RMS * rms), std)
        scale = torch.where(is_finite & (std > _LEAST_ORIGIN), std, 1.0)
        return cls(scale, torch.where(is_finite, mean, 0.0), scale, False, Sums.of(wide[:0]))

    @staticmethod
    def sums_of(stored: Tensor) -> Sums:
        """What moments follow from, of stored rows ``(k, d)``."""
        return Sums.of(stored)

    @property
    def map(self) -> Any:
        """From stored rows to rows as they are now: an :class:`Affine`, or a :class:`Linear`."""
        return Affine(self.scale, self.shift)

    @property
    def size(self) -> Tensor:
        """How far a stored row of ones may lie from the shift, ``(d,)``."""
        return self.scale.abs()

    def adapted(self, affine: Affine | Linear) -> Generation:
        """After a map of its rows."""
        assert isinstance(affine, Affine), "a matrix needs coordinates with a matrix"
        scale, shift = affine.after(self.map)
        return self._replace(scale=scale, shift=shift, is_as_stored=False)

    def is_spent(self, dtype: torch.dtype) -> Tensor:
        """Dimensions in which the rows, stored in ``dtype``, have become equal, ``(d,)``."""
        return self.size < _LEAST_SCALE.get(dtype, 2.0**-60) * self.origin

    def renewed(self, is_spent: Tensor) -> Generation:
        """As it began in dimensions in which all its rows are stored as zeros."""
        sums = self.sums and Sums(*(x.masked_fill(is_spent, 0.0) for x in self.sums))
        return self._replace(scale=torch.where(is_spent, self.origin, self.scale), sums=sums)

    def bounded(self, dtype: torch.dtype) -> Generation:
        """With the least scale where it is spent, whatever is stored there."""
        least = _LEAST_SCALE.get(dtype, 2.0**-60) * self.origin
        return self._replace(scale=torch.where(self.is_spent(dtype), least, self.scale))

    def near(self, of_rows: Moments, dtype: torch.dtype) -> Generation:
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

    def to_store(self, rows: Tensor, dtype: torch.dtype) -> Tensor:
        """u in ``dtype`` of rows ``(k, d)``."""
        if self.is_as_stored:
            return rows.to(dtype)
        stored = (widest(rows) - self.shift) / self.scale
        return stored.clamp(torch.finfo(dtype).min, torch.finfo(dtype).max).to(dtype)

    def to(self, dtype: torch.dtype) -> Generation:
        """To read rows in ``dtype``."""
        return self._replace(scale=self.scale.to(dtype), shift=self.shift.to(dtype))

    def column(self, stored: Tensor, dimension: int) -> Tensor:
        """One coordinate of the rows of u ``(k, d)`` as they are now, ``(k,)``."""
        chosen = slice(dimension, dimension + 1)
        one = self._replace(scale=self.scale[chosen], shift=self.shift[chosen])
        return one.read(stored[:, chosen]).squeeze(1)

    def read(self, stored: Tensor, out: Tensor | None = None) -> Tensor:
        """The rows of u ``(k, d)`` as they are now, in the dtype of the coordinates; maybe u itself."""
        stored = stored.to(self.scale.dtype)
        return stored if self.is_as_stored else self.map.map(stored, out)

    def of_sums(self, weighted: Tensor, shares: Tensor) -> Tensor:
        """Weighted sums ``(a, d)`` of rows as they are now: of those of u, and sums of weights ``(a, 1)``."""
        return (self.scale * weighted).addcmul(self.shift, shares)

    def with_rows(self, stored: Tensor, sign: int = 1) -> Generation:
        """After stored rows ``(k, d)`` have come, or with ``sign=-1`` gone."""
        if self.sums is None or len(stored) == 0:
            return self
        return self._replace(sums=self.sums.plus(self.sums_of(stored), sign))

    def mean_and_squares(self, count: int) -> tuple[Tensor, Tensor]:
        """Mean, and sum of squared deviations from it, of its ``count`` rows as they are now, one or more."""
        assert self.sums is not None, "to be measured first"
        mean = self.sums.first / count
        squares = (self.sums.second - count * mean.square()).clamp(min=0)
        return self.scale * mean + self.shift, self.scale.square() * squares

    def least_std(self, dtype: torch.dtype) -> Tensor:
        """The largest spread that may be left of rows, stored in ``dtype``, which have become equal."""
        return _LEAST_STD.get(dtype, 2.0**-50) * self.origin
