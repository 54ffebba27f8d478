"""What one rank raises, all raise; and what ranks may bring unlike each other."""

from __future__ import annotations

import error_worker
from on_ranks import on_ranks


def test_an_error_of_one_rank_is_raised_on_all() -> None:
    on_ranks(error_worker.check)
