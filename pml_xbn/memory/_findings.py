"""What a step has found on a device, which the host sees later, without waiting for it."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from .._tracing import is_tracing


class Found(NamedTuple):
    """Why a batch was not stored, and whether the rows have to be stored anew."""

    numbers: bool  # it held NaN or inf, or numbers that are too large
    labels: bool  # an adapter refused its labels
    is_out_of_range: bool  # the stored rows are


class Findings:
    """Remembers on the device what steps have found, until the host looks.

    A step adds to it. A GPU copies it to the host when it comes to that, and the host looks at the copy in
    the next call, if it is there by then. In a graph nothing is copied: the host looks when it reads the
    memory.
    """

    def __init__(self, device: torch.device) -> None:
        self.flags = torch.zeros(3, dtype=torch.bool, device=device)  # as in Found
        self._may_be_set = False
        self._copy: Tensor | None = None
        self._is_copied: torch.cuda.Event | None = None

    def add_(self, found: Tensor) -> None:
        """Adds what a step has found, ``(3,)`` bool."""
        self.flags.logical_or_(found)
        self._may_be_set = True
        if self.flags.device.type == "cuda" and not is_tracing():
            if self._copy is None:
                self._copy, self._is_copied = (
                    torch.zeros(3, dtype=torch.bool).pin_memory(),
                    torch.cuda.Event(),
                )
            self._copy.copy_(self.flags, non_blocking=True)
            assert self._is_copied is not None
            self._is_copied.record()

    def take_(self, *, waits: bool) -> Found:
        """Returns what was found since the last time, and forgets it.

        Args:
            waits: whether to wait for the device. If not, what it has not come to is told the next time.
        """
        if not self._may_be_set:
            return Found(False, False, False)
        if self._is_copied is not None and self._copy is not None and not waits:
            found = self._copy.tolist() if self._is_copied.query() else [False] * 3
        elif waits or self.flags.device.type == "cpu":
            found = self.flags.tolist()
        else:  # all of it was in a graph
            found = [False] * 3
        if any(found):
            self.flags.zero_()
            if self._copy is not None:
                self._copy.zero_()
        return Found(*found)
