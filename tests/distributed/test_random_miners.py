from __future__ import annotations

import random_miner_worker
from on_ranks import on_ranks


def test_ranks_draw_alike_where_all_see_all_anchors() -> None:
    on_ranks(random_miner_worker.check)
