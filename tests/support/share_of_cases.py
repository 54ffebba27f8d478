"""How many of very many cases are run."""

from __future__ import annotations

import os
from collections.abc import Iterable
from itertools import islice
from typing import TypeVar

T = TypeVar("T")

# A prime, so that all values of all parameters are among the cases.
SHARE = int(os.environ.get("PML_XBN_RANK_CASES_SHARE", "61"))
IS_THOROUGH = SHARE == 1


def share_of(cases: Iterable[T], at_most: int = SHARE, first: int = 0) -> list[T]:
    """Returns every n-th case, where n is the share or less."""
    return list(islice(cases, first, None, min(SHARE, at_most)))
