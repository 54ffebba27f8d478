"""A miner of PML as a function of one matrix."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from .._choice import Choice
from .candidates import Candidates


class Chooser(NamedTuple):
    """
    Attributes:
        choose: the choice of ``(miner, candidates)``.
        is_by_anchor: what is chosen for an anchor does not depend on the others.
        applies: whether a miner chooses so, in the state that it is in.
    """

    choose: Callable[[Any, Candidates], Choice]
    is_by_anchor: bool = True
    applies: Callable[[Any], bool] = lambda _: True
