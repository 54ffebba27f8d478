"""Two ranks hold the samples of one process."""

from __future__ import annotations

import sample_worker
from on_ranks import on_ranks


def test_two_ranks_store_and_average_the_rows_of_one_process() -> None:
    on_ranks(sample_worker.check)
