"""What steps have found on a device, of which the host need not wait to hear."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from .._tracing import is_tracing


class Found(NamedTuple):
    """Why a batch was not stored, and whether the rows have to be stored anew."""

    has_bad_numbers: bool  # NaN or inf, or numbers that are too large
    has_bad_labels: bool  # an adapter refused them
    is_out_of_range: bool  # the stored rows are, or have drifted


class Findings:
    """Remembers on the device what steps have found, until the host looks.

    A step adds to it. A GPU copies it to the host when it comes to that, and the host looks at the copy in
    the next call, if it is there by then. In a graph nothing is copied: the host looks when it reads the
    memory.
    """

    def __init__(self, device: torch.device) -> None:
        with torch.inference_mode(False):
            self.flags = torch.zeros(3, dtype=torch.bool, device=device)  # as in Found
        self.may_be_set = False
        self._copy: Tensor | None = None
        self._is_copied: torch.cuda.Event | None = None

    def add_(self, name: str, is_found: Tensor) -> None:
        """Adds whether a step has found something, 0-d bool, by its name in ``Found``."""
        self.flags[Found._fields.index(name)].logical_or_(is_found)
        self.may_be_set = True
        if not is_tracing():
            self._copy_to_host()

    def _copy_to_host(self) -> None:
        """Has a GPU copy the findings to the host, which does not wait."""
        if self.flags.device.type != "cuda":
            return
        if self._copy is None:
            # The default device may be a GPU, whose memory is not to be pinned.
            self._copy = torch.zeros(3, dtype=torch.bool, device="cpu").pin_memory()
            self._is_copied = torch.cuda.Event()
        self._copy.copy_(self.flags, non_blocking=True)
        assert self._is_copied is not None
        self._is_copied.record()

    def take_over_(self, others: Findings) -> None:
        """Takes what another object has found on another device, which nobody has looked at."""
        self.flags.copy_(others.flags)
        self.may_be_set = others.may_be_set
        self._copy_to_host()

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_copy": None, "_is_copied": None}  # an event belongs to its process

    def take_(self, *, waits: bool) -> Found:
        """Returns what was found since the last time, and forgets it.

        Args:
            waits: whether to wait for the device. If not, what it has not come to is told the next time.
        """
        if not self.may_be_set:
            return Found(False, False, False)
        if self._is_copied is not None and self._copy is not None and not waits:
            found = self._copy.tolist() if self._is_copied.query() else [False] * 3
        elif waits or self.flags.device.type != "cuda":
            found = self.flags.tolist()
        else:  # all of it was in a graph, or before a copy of this object was made
            found = [False] * 3
        if any(found):
            self.flags.zero_()
            if self._copy is not None:
                self._copy.zero_()
        return Found(*found)
