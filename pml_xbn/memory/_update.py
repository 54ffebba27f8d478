"""What becomes of a stored row when its sample comes again, and when a loss has been computed."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import normalize

from .._number_checks import check_non_negative, check_one_of
from ._rows import Rows


class Update(NamedTuple):
    """The memory updates of Cross-Batch Memory, supplement §2.

    Attributes:
        kind: ``"queue"``, ``"average"`` or ``"gradient"``.
        momentum: m.
        learning_rate: α.
    """

    kind: str = "queue"
    momentum: float = 0.0
    learning_rate: float = 0.0

    def check(self) -> None:
        """Refuses numbers out of range, or without effect."""
        check_one_of("update", self.kind, ("queue", "average", "gradient"))
        if not 0 <= self.momentum < 1:
            raise ValueError(f"update_momentum={self.momentum!r}: pass a number from 0 to below 1")
        check_non_negative("update_learning_rate", self.learning_rate)
        if self.is_by_gradient and not self.learning_rate:
            raise ValueError(
                f"update_learning_rate={self.learning_rate!r} has no effect with update='gradient': pass a "
                "positive number, or update='average'"
            )
        if self.momentum and self.kind == "queue":
            raise ValueError(
                f"update_momentum={self.momentum!r} has no effect with update='queue', which replaces rows: "
                "pass update='average', or 'gradient'"
            )
        if self.learning_rate and not self.is_by_gradient:
            raise ValueError(
                f"update_learning_rate={self.learning_rate!r} has no effect with update={self.kind!r}: pass "
                "update='gradient'"
            )

    def check_ids(self, ids: Tensor | None) -> None:
        """Refuses a batch without samples if stored rows are to be averaged with theirs."""
        if ids is None and (self.kind == "average" or self.momentum):
            raise ValueError(
                f"update={self.kind!r} with update_momentum={self.momentum!r} averages the rows of a sample: "
                "pass sample_ids, of every image its number in the data set, or -1"
            )

    @property
    def is_by_gradient(self) -> bool:
        """Whether all rows take a step after the loss."""
        return self.kind == "gradient"

    def averaged(self, rows: Tensor, returning: Tensor, stored: Tensor) -> Tensor:
        """The rows ``(b, d)`` that are to be stored of a batch.

        Args:
            returning: numbers of those whose sample is stored, ``(r,)``.
            stored: these samples' rows as they are now, ``(r, d)``.
        """
        if self.kind != "average" and not self.momentum:
            return rows
        new = rows[returning]
        if self.momentum:
            new = torch.lerp(new, stored, self.momentum)
        return rows.index_copy(0, returning, normalize(new))

    def descended(self, rows: Rows, gradient: Tensor, nonfinite: str) -> Rows:
        """All rows after a step against the gradient ``(n, d)`` of the loss, at unit length.

        Args:
            nonfinite: what to do with a gradient of NaN or inf; to ``"skip"`` it leaves the rows.

        Raises:
            ValueError: the gradient holds NaN or inf, and that is to ``"raise"``.
        """
        if nonfinite != "ignore" and not torch.isfinite(gradient).all():
            if nonfinite == "skip":
                return rows
            raise ValueError(
                "the loss has a gradient of NaN or inf with respect to the stored rows: give it margins or a "
                "temperature that keep it finite, or pass nonfinite='skip' to leave the rows as they are"
            )
        values = rows.read(gradient.dtype).sub_(gradient, alpha=self.learning_rate)
        return rows.given(normalize(values))
