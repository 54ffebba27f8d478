"""Ranks that do not hold the same rows raise together, at the first call after a load or an edit."""

from __future__ import annotations

import other_rows_worker
from on_ranks import on_ranks


def test_ranks_that_do_not_hold_the_same_memory_all_raise() -> None:
    on_ranks(other_rows_worker.check)
