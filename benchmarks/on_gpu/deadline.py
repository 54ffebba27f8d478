"""The moment at which the command has to be over."""

from __future__ import annotations

import time


class Deadline:
    """So many minutes from now.

    Example:
        >>> Deadline(minutes=1.0).allows(seconds=2.0)
        True
        >>> Deadline(minutes=1.0).share(0.5).allows(seconds=31.0)
        False
    """

    def __init__(self, minutes: float) -> None:
        self._ends = time.monotonic() + 60 * minutes

    @property
    def seconds_left(self) -> float:
        return self._ends - time.monotonic()

    def allows(self, seconds: float) -> bool:
        """Returns whether something that takes so long would be done in time."""
        return seconds < self.seconds_left

    def share(self, part: float) -> Deadline:
        """Returns the deadline of something that may take this part of the time that is left."""
        return Deadline(part * self.seconds_left / 60)
