"""Ctrl-C, and a scheduler's SIGTERM, as a wish to stop after the current step."""

from __future__ import annotations

import signal
from types import FrameType, TracebackType


class Interruption:
    """While it is entered, SIGTERM and the first Ctrl-C only set ``wanted``; the second stops at once.

    Not so under torchrun, which passes on the Ctrl-C that its processes have had from the terminal already.
    """

    def __init__(self, *, second_stops: bool) -> None:
        self.wanted, self.second_stops = False, second_stops

    def __enter__(self) -> Interruption:
        self._previous = signal.signal(signal.SIGINT, self._note)
        self._terminate = signal.signal(signal.SIGTERM, self._note)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        signal.signal(signal.SIGINT, self._previous)
        signal.signal(signal.SIGTERM, self._terminate)

    def _note(self, number: int, frame: FrameType | None) -> None:
        self.wanted = True
        if self.second_stops and number == signal.SIGINT:
            signal.signal(signal.SIGINT, self._previous)
