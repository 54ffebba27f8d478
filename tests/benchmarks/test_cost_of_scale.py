"""The cost of a step as the memory grows."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.cost import scale
from benchmarks.engine.results import read_csv


def test_sizes_are_measured_in_processes_of_their_own(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(scale, "RESULTS", tmp_path)
    scale.main(rows=(100, 100_000), dim=16, batch=16, steps=1, device="cpu")
    few, many = read_csv(tmp_path / "scale_cpu.csv")
    assert [few["rows"], many["rows"]] == ["100", "100000"]
    # 16 numbers of two bytes and a label per row; four matrices of 16 x 100,000, and numbers of every row.
    memory, step = 100_000 * (16 * 2 + 8), 100_000 * 16 * (4 + 4 + 1 + 1) + 100_000 * (4 + 4 + 8)
    assert (many["memory_mb"], many["computed_mb"]) == (f"{memory / 1e6:.0f}", f"{(memory + step) / 1e6:.0f}")
    # On a CPU the gradient is written into the matrix, and a mask is made of some anchors at a time.
    at_least = memory + 100_000 * 16 * (4 + 1)
    assert int(many["peak_mb"]) - int(few["peak_mb"]) >= at_least / 1e6
