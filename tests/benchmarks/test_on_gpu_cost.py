"""The cost part of the command for a GPU, on a CPU and on small cases."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from benchmarks.engine.results import read_csv
from benchmarks.on_gpu.cost import run as cost
from benchmarks.on_gpu.cost.case import PML, PRODUCTS, Case
from benchmarks.on_gpu.cost.subject import Batch
from benchmarks.on_gpu.deadline import Deadline

CPU = torch.device("cpu")
CASE = Case("SupConLoss", "none", 64, 10, 16, "float32", (PRODUCTS, "XBN"))


@pytest.fixture
def one_case(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cost, "cases", lambda is_tiny: [CASE])


@pytest.mark.usefixtures("one_case")
def test_every_method_has_a_row_and_none_is_measured_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps: list[str] = []
    build_step = cost.build_step

    def build(case: Case, method: str, *rest: object) -> object:
        step = build_step(case, method, *rest)

        def noted(batch: Batch) -> None:
            steps.append(method)
            step(batch)

        return noted

    monkeypatch.setattr(cost, "build_step", build)
    assert cost.run(tmp_path, CPU, Deadline(1.0), is_tiny=True) == 0
    rows = read_csv(tmp_path / cost.FILE)
    assert [row["method"] for row in rows] == [PML, PRODUCTS, "XBN"]
    assert all(float(row["ms"]) > 0 for row in rows)
    assert all(float(row["ratio"]) > 0 for row in rows[1:])
    # By turns, on the same tensors: none has a warmer machine.
    assert steps[-2:] == [PML, "XBN"]
    steps.clear()
    assert cost.run(tmp_path, CPU, Deadline(1.0), is_tiny=True) == 0
    assert not steps
    assert len(read_csv(tmp_path / cost.FILE)) == 3
    assert cost.run(tmp_path / "late", CPU, Deadline(0.01), is_tiny=True) == 0  # no time is left to begin
    assert not steps


@pytest.mark.usefixtures("one_case")
@pytest.mark.parametrize(
    ("method", "error", "num_failed"),
    [(PML, torch.OutOfMemoryError("24 GiB"), 0), (PML, ValueError("no"), 1), ("XBN", ValueError("no"), 1)],
    ids=str,
)
def test_a_row_says_why_a_method_was_not_measured_and_the_others_go_on(
    method: str, error: Exception, num_failed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    build_step = cost.build_step

    def build(case: Case, name: str, *rest: object) -> object:
        if name == method:
            raise error
        return build_step(case, name, *rest)

    monkeypatch.setattr(cost, "build_step", build)
    assert cost.run(tmp_path, CPU, Deadline(1.0), is_tiny=True) == num_failed
    rows = {row["method"]: row for row in read_csv(tmp_path / cost.FILE)}
    assert rows[method]["message"] == f"{type(error).__name__}: {error}"
    assert not rows[method]["ms"]
    assert all(row["ms"] for name, row in rows.items() if name != method)
