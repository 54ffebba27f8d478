from __future__ import annotations

import re

from torchrun import ROOT, torchrun

SCRIPT = ROOT / "benchmarks" / "demo" / "distributed.py"


def test_two_processes_train_and_hold_the_same_memory() -> None:
    finished = torchrun(SCRIPT, "--epochs", "1", "--classes", "40", "--batch-size", "8")
    assert finished.returncode == 0, finished.stderr
    assert "epoch 2: Recall@1" in finished.stdout
    checksums = re.search(r"memory of every rank: (\w+), (\w+)", finished.stdout)
    assert checksums, finished.stdout
    assert checksums[1] == checksums[2]
