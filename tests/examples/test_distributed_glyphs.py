from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

SCRIPT = Path(__file__).parents[2] / "examples" / "distributed_glyphs.py"


def test_two_processes_train_and_hold_the_same_memory() -> None:
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--nproc_per_node=2"]
    address = ["--standalone", "--local-addr=127.0.0.1"]  # takes a free port and keeps it
    options = ["--epochs", "1", "--classes", "40", "--batch-size", "8"]
    finished = subprocess.run(
        [*torchrun, *address, str(SCRIPT), *options],
        capture_output=True,
        text=True,
        check=False,
        timeout=180,
        env={**os.environ, "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""},
    )
    assert finished.returncode == 0, finished.stderr
    assert "epoch 2: Recall@1" in finished.stdout
    checksums = re.search(r"memory of every rank: (\w+), (\w+)", finished.stdout)
    assert checksums, finished.stdout
    assert checksums[1] == checksums[2]
