from __future__ import annotations

from pathlib import Path

from torchrun import torchrun

WORKER = Path(__file__).parents[1] / "random_miner_worker.py"


def test_ranks_draw_alike_where_all_see_all_anchors() -> None:
    finished = torchrun(WORKER)
    assert finished.returncode == 0, finished.stderr
    assert "draws agree" in finished.stdout
