"""What becomes of a stored row when its sample comes again."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import normalize

from .._number_checks import check_one_of


class Update(NamedTuple):
    """The memory updates of Cross-Batch Memory, supplement §2.

    Attributes:
        kind: ``"queue"`` or ``"average"``.
        momentum: m.
    """

    kind: str = "queue"
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
        new = rows[returning]
        if self.momentum:
            new = torch.lerp(new, stored, self.momentum)
        return rows.index_copy(0, returning, normalize(new))
