"""The demo's task on two ranks, whose batch normalization sees both, is the demo's task on one process."""

from __future__ import annotations

import subprocess
from pathlib import Path

import glyphs_rank_worker
import pytest
import torch
from forked import run_ranks

from benchmarks.demo.task import GlyphsData

WORKER = Path(glyphs_rank_worker.__file__)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("weights")


@pytest.fixture(scope="module")
def ranks(folder: Path) -> subprocess.CompletedProcess[str]:
    finished = run_ranks(WORKER, str(folder), timeout=400)
    assert finished.returncode == 0, finished.stderr
    return finished


def test_two_ranks_normalize_by_the_batch_of_both(ranks: subprocess.CompletedProcess[str]) -> None:
    assert "outputs, gradients and statistics agree" in ranks.stdout


@pytest.mark.usefixtures("ranks")
@pytest.mark.parametrize("method", glyphs_rank_worker.MEMORIES)
def test_two_ranks_end_with_the_weights_of_one_process(folder: Path, method: str) -> None:
    alone = glyphs_rank_worker.train(GlyphsData(glyphs_rank_worker.SETTINGS), method)
    for rank in (0, 1):
        weights = torch.load(folder / f"{rank}.pt", weights_only=True)[method]
        assert weights.keys() == alone.keys()
        for name, expected in alone.items():
            torch.testing.assert_close(weights[name], expected, rtol=1e-8, atol=1e-8)
