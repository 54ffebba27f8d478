"""The demo's task on two ranks, with group normalization, is the demo's task on one process."""

from __future__ import annotations

from pathlib import Path

import glyphs_rank_worker
import pytest
import torch
from on_ranks import on_ranks

from benchmarks.demo.task import GlyphsData


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("weights")
    on_ranks(glyphs_rank_worker.main, folder, timeout=400)
    return folder


@pytest.mark.parametrize("method", glyphs_rank_worker.MEMORIES)
def test_two_ranks_end_with_the_weights_of_one_process(folder: Path, method: str) -> None:
    alone = glyphs_rank_worker.train(GlyphsData(glyphs_rank_worker.SETTINGS), method)
    for rank in (0, 1):
        weights = torch.load(folder / f"{rank}.pt", weights_only=True)[method]
        assert weights.keys() == alone.keys()
        for name, expected in alone.items():
            torch.testing.assert_close(weights[name], expected, rtol=1e-8, atol=1e-8)
