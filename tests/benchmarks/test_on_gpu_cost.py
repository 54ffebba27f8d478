"""The cost part of the command for a GPU, on a CPU and on small cases."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks.engine.results import read_csv
from benchmarks.on_gpu.cost import behind
from benchmarks.on_gpu.cost import run as cost
from benchmarks.on_gpu.cost.case import PML, PRODUCTS, Case, cases
from benchmarks.on_gpu.cost.subject import Batch
from benchmarks.on_gpu.deadline import Deadline
from docs.pictures.on_gpu import gpu_report

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


def test_nothing_is_begun_for_which_no_time_is_left(tmp_path: Path) -> None:
    assert cost.run(tmp_path, CPU, Deadline(0.01), is_tiny=True) == 0
    assert not (tmp_path / cost.FILE).exists()


def test_the_size_that_is_asked_about_most_comes_first() -> None:
    first = next(cases(is_tiny=False))
    assert (first.rows, first.batch, first.precision, first.miner) == (60_000, 64, "float32", "none")


@pytest.fixture
def one_case_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(behind, "cases_behind", lambda is_tiny: [CASE._replace(methods=(PML, "XBN"))])


@pytest.mark.usefixtures("one_case_behind")
def test_behind_a_network_the_step_comes_after_its_work_and_every_row_is_measured_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    done: list[str] = []

    def build(case: Case, method: str, data: object, device: object, nonfinite: str) -> object:
        return lambda batch: done.append(f"{method} {nonfinite}")

    monkeypatch.setattr(behind, "build_step", build)
    monkeypatch.setattr(behind, "_made_up_network", lambda side, device: lambda: done.append("network"))
    assert behind.run(tmp_path, CPU, Deadline(1.0), is_tiny=True) == 0
    rows = read_csv(tmp_path / behind.FILE)
    assert [(row["method"], row["nonfinite"]) for row in rows] == [
        (PML, ""),
        ("XBN", "raise"),
        ("XBN", "ignore"),
    ]
    # Of every pair of measurements: the step alone, the network alone, and both.
    assert done[-4:] == ["XBN ignore", "network", "network", "XBN ignore"]
    done.clear()
    assert behind.run(tmp_path, CPU, Deadline(1.0), is_tiny=True) == 0
    assert not done


@pytest.mark.usefixtures("one_case_behind")
def test_an_error_behind_a_network_is_a_row_and_the_others_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    build_step = behind.build_step

    def build(case: Case, method: str, *rest: Any) -> object:
        if method == PML:
            raise ValueError("no")
        return build_step(case, method, *rest)

    monkeypatch.setattr(behind, "build_step", build)
    assert behind.run(tmp_path, CPU, Deadline(1.0), is_tiny=True) == 1
    first, *others = read_csv(tmp_path / behind.FILE)
    assert (first["message"], first["added_ms"]) == ("ValueError: no", "")
    assert len(others) == 2
    assert all(float(row["busy_ms"]) > 0 for row in others)


def test_the_page_shows_costs_of_a_gpu_alone(tmp_path: Path) -> None:
    table = cost.Table(tmp_path / cost.FILE, cost.COLUMNS, cost._KEY)
    row = {"loss": "SupConLoss", "miner": "none", "rows": 64, "classes": 10, "batch": 16, "dtype": "float32"}
    row |= {"driver": "550", "torch": "2.13", "launches": 90, "peak_mb": 7.5, "device": "a GPU"}
    table.append({**row, "method": PML, "ms": 8.0})
    table.append({**row, "method": PRODUCTS, "ms": 2.0, "ratio": 0.25})
    table.append({**row, "method": "XBN", "ms": 3.0, "ratio": 0.375})
    table.append({**row, "method": "AXBN", "message": "OutOfMemoryError: 24 GiB"})
    table.append({**row, "method": "XBN", "ms": 9.0, "ratio": 1.5, "device": "a CPU", "driver": "none"})
    report = gpu_report(tmp_path)
    assert "| 16 | 8.00 | 0.38 | OutOfMemoryError | – | – | 0.25 | 90 | 90 | 8 | 8 |" in report
    assert "1.50" not in report


def test_the_page_shows_what_is_added_behind_a_network_in_order_of_size(tmp_path: Path) -> None:
    table = cost.Table(tmp_path / behind.FILE, behind.COLUMNS, behind._KEY)
    machine = {"device": "a GPU", "driver": "550", "torch": "2.13", "batch": 16}
    for size, factor in ((2048, 2), (64, 1)):
        times = {"added_ms": 4.0 * factor, "kernel_ms": 1.5 * factor}
        table.append({**machine, "rows": size, "method": PML, "nonfinite": "", **times})
        times = {"added_ms": 0.25 * factor, "kernel_ms": 0.125 * factor}
        table.append({**machine, "rows": size, "method": "XBN", "nonfinite": "ignore", **times})
    lines = [line for line in gpu_report(tmp_path).splitlines() if "| 16 |" in line]
    assert lines == [
        "| 64 | 16 | 4.00 | – | 0.25 | – | – | – | 1.50 | 0.12 |",
        "| 2,048 | 16 | 8.00 | – | 0.50 | – | – | – | 3.00 | 0.25 |",
    ]
