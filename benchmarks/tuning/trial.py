"""What a run of the search is known by; apart from training, so that reports do without its libraries."""

from __future__ import annotations

from typing import NamedTuple

SEARCH, AGAIN, FINAL = "search", "again", "final"


class Trial(NamedTuple):
    """A run: ``stage`` says how long and on which classes; the others what and with which seed."""

    stage: str
    method: str
    number: int
    seed: int
