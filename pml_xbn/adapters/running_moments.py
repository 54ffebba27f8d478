"""Moments of rows that come and go, without reading the rows that stay."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from .moments import Affine, Moments, at_least_float32, widest
from .parts import buffer_for_part, parts_of


class Sums(NamedTuple):
    """Row count, mean, and sum of squared deviations from the mean; of all rows, or of g groups.

    Attributes:
        count: a number, or ``(g, 1)``.
        mean: ``(d,)`` or ``(g, d)``.
        squares: of the shape of ``mean``.
    """

    count: Any
    mean: Tensor
    squares: Tensor

    def mapped(self, affine: Affine) -> Sums:
        scale, shift = widest(affine.scale), widest(affine.shift)
        return Sums(self.count, self.mean * scale + shift, self.squares * scale.square())


class RunningMoments:
    """Moments of the rows of a memory, kept up in O(b · d) as b rows are replaced.

    After an adaptation the moments of the memory follow from those before it, and rows that come and go
    change them by their own. All in float64; but the rows are rounded to their dtype after every
    adaptation, which nobody reports, and such an error stays when the rows have gone that had it. In
    small memories it even grows, by a factor of about 1 + 1/n per call. So the moments are measured anew
    whenever ``TURNOVERS`` times as many rows have come as there are: one more read of the memory in 2n/b
    calls.

    Example:
        >>> running = RunningMoments()
        >>> rows = torch.tensor([[1.0], [3.0], [5.0]])
        >>> running.moments_of(rows)
        Moments(mean=tensor([3.], dtype=torch.float64), std=tensor([2.], dtype=torch.float64))
        >>> running.replace(torch.tensor([[5.0]]), torch.tensor([[2.0]]))
        >>> running.moments_of(torch.tensor([[1.0], [3.0], [2.0]]))
        Moments(mean=tensor([2.], dtype=torch.float64), std=tensor([1.], dtype=torch.float64))
    """

    TURNOVERS = 2

    def __init__(self) -> None:
        self.sums: Sums | None = None
        self.num_come = 0  # rows since all were read

    def moments_of(self, rows: Tensor) -> Moments:
        """Moments of ``rows``, which are those that were reported, or have to be read."""
        self._follow(rows.device)
        is_due = self.num_come >= self.TURNOVERS * len(rows)
        if self.sums is None or self.sums.count != len(rows) or is_due:
            self.sums, self.num_come = _sums(rows), 0
        return Moments(self.sums.mean, (self.sums.squares / (len(rows) - 1)).sqrt())

    def map(self, affine: Affine) -> None:
        """All rows have been mapped."""
        if self.sums is not None:
            self.sums = self.sums.mapped(affine)

    def replace(self, removed: Tensor, added: Tensor) -> None:
        """Rows ``(r, d)`` have gone and rows ``(b, d)`` have come."""
        self._follow(added.device)
        self.num_come += len(added)
        if self.sums is not None:
            self.sums = _merged(_merged(self.sums, _sums(added), 1), _sums(removed), -1)

    def regroup(self, before: Sums, after: Sums) -> None:
        """Groups of rows have moved: the same rows, so that only means and squares have changed."""
        if self.sums is None:
            return
        count, mean, squares = self.sums
        new_mean = mean + (before.count * (after.mean - before.mean)).sum(dim=0) / count
        for part, sign in ((before, -1), (after, 1)):
            about_mean = part.squares + part.count * (part.mean - mean).square()
            squares = squares + sign * about_mean.sum(dim=0)
        squares = (squares - count * (new_mean - mean).square()).clamp(min=0)
        self.sums = Sums(count, new_mean, squares)

    def forget(self) -> None:
        """Rows have changed in a way that was not reported."""
        self.sums = None

    def _follow(self, device: torch.device) -> None:
        """A checkpoint may come from another device."""
        if self.sums is not None and self.sums.mean.device != device:
            self.sums = Sums(self.sums.count, self.sums.mean.to(device), self.sums.squares.to(device))

    def state(self) -> dict[str, Any]:
        return {"sums": None if self.sums is None else tuple(self.sums), "num_come": self.num_come}

    def load(self, state: dict[str, Any]) -> None:
        self.sums = None if state["sums"] is None else Sums(*state["sums"])
        self.num_come = state["num_come"]


def _sums(rows: Tensor) -> Sums:
    """Of rows ``(n, d)``, in one pass over them."""
    rows = at_least_float32(rows)
    sums = widest(rows.new_zeros(2, rows.shape[1]))
    if len(rows) == 0:
        return Sums(0, *sums)
    centre = rows[0]  # what squares are taken from, lest a far mean swamp the spread
    buffer = buffer_for_part(rows)
    for (part,) in parts_of(rows):
        # Short sums in the rows' own dtype, of which float64 keeps the total.
        offsets = torch.sub(part, centre, out=buffer[: len(part)])
        sums[0] += offsets.sum(dim=0)
        sums[1] += offsets.square_().sum(dim=0)
    offset = sums[0] / len(rows)
    squares = (sums[1] - len(rows) * offset.square()).clamp(min=0)
    return Sums(len(rows), offset + widest(centre), squares)


def _merged(total: Sums, part: Sums, sign: int) -> Sums:
    """Chan, Golub and LeVeque's update of mean and squares, forth and back."""
    if part.count == 0:
        return total
    if total.count == 0:
        return part
    count = total.count + sign * part.count
    if count == 0:
        return Sums(0, torch.zeros_like(total.mean), torch.zeros_like(total.squares))
    delta = part.mean - total.mean
    mean = total.mean + sign * delta * (part.count / count)
    squares = total.squares + sign * (part.squares + delta.square() * (total.count * part.count / count))
    return Sums(count, mean, squares.clamp(min=0))
