"""Where a run is."""

from __future__ import annotations

from typing import NamedTuple


class Step(NamedTuple):
    """Where a run is: epoch from 0, step in it, step over all epochs, and whether the log gets a row."""

    epoch: int
    number: int
    total: int
    is_logged: bool
