"""The demo's task on two ranks, whose batch normalization sees both, is the demo's task on one process."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import glyphs_rank_worker
import pytest
import torch
from torchrun import ENVIRONMENT, torchrun

# Each step of it is a promise of tests/distributed.
pytestmark = pytest.mark.skipif(glyphs_rank_worker.STEPS == 0, reason="minutes: tox -e thorough")
WORKER = Path(glyphs_rank_worker.__file__)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("weights")
    command = [sys.executable, str(WORKER), str(folder)]
    alone = subprocess.Popen(command, env={**os.environ, **ENVIRONMENT})
    try:
        ranks = torchrun(WORKER, str(folder), timeout=400)
        assert ranks.returncode == 0, ranks.stderr
        assert alone.wait(timeout=400) == 0
    finally:
        alone.kill()
    return folder


@pytest.mark.parametrize("method", glyphs_rank_worker.MEMORIES)
def test_two_ranks_end_with_the_weights_of_one_process(folder: Path, method: str) -> None:
    alone, *ranks = (
        torch.load(folder / f"{name}.pt", weights_only=True)[method] for name in ("alone", "0", "1")
    )
    for weights in ranks:
        assert weights.keys() == alone.keys()
        for name, expected in alone.items():
            torch.testing.assert_close(weights[name], expected, rtol=1e-8, atol=1e-8)
