"""The pages show what was measured on a GPU, and of what was not they say so."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from benchmarks.on_gpu.cost import run as cost
from benchmarks.on_gpu.cost.case import PML, PRODUCTS
from benchmarks.on_gpu.network import run as network
from benchmarks.on_gpu.steps import run as steps
from benchmarks.on_gpu.table import Table
from docs.pictures.on_gpu import gpu_report
from docs.pictures.on_gpu_before import earlier_report

GPU = {"device": "a GPU", "driver": "550", "torch": "2.13"}
CPU = {"device": "a CPU", "driver": "none", "torch": "2.13"}
JUNIT = """\
<testsuites><testsuite name="pytest"><properties><property name="device" value="a GPU"/>
<property name="driver" value="{driver}"/><property name="torch" value="2.13"/></properties>
<testcase classname="tests.losses.test_waits" name="a" time="0.25"/>
<testcase classname="tests.losses.test_waits" name="b" time="0.5"><failure message="no"/></testcase>
<testcase classname="tests.losses.test_waits" name="c" time="0"><skipped message="no"/></testcase>
</testsuite></testsuites>
"""


def test_what_was_not_measured_is_said_in_a_line_and_a_cpu_has_no_figures(tmp_path: Path) -> None:
    nothing = "This version has not been measured on a GPU, and its tests have not been run on one.\n"
    assert gpu_report(tmp_path) == nothing
    table = Table(tmp_path / network.FILE, network.COLUMNS, network.KEY)
    row = {"network": "N", "precision": "bfloat16", "batch": 64, "rows": 9, "method": "eager", "ms": 3.0}
    table.append(row | CPU)
    (tmp_path / "tests.xml").write_text(JUNIT.format(driver="none"))
    assert gpu_report(tmp_path) == nothing
    table.append(row | GPU)
    report = gpu_report(tmp_path)
    assert "**a GPU**, driver 550, torch 2.13" in report
    assert "a CPU" not in report
    assert "A step of the loss of this version has not been measured on a GPU." in report
    assert "A run of the tests" in report


def test_a_share_is_of_the_step_beside_the_one_without_memory(tmp_path: Path) -> None:
    table = Table(tmp_path / network.FILE, network.COLUMNS, network.KEY)
    for precision, method, ms, peak in (
        ("bfloat16", "no memory", 30.0, 5000.0),
        ("float16", "no memory", 10.0, 5000.0),
        ("bfloat16", "eager", 40.0, 6250.0),
        ("bfloat16", "GradCache", 90.0, 5000.0),
    ):
        row: dict[str, Any] = {"network": "N", "precision": precision, "batch": 64, "rows": 9}
        table.append(row | {"method": method, "ms": ms, "peak_mb": peak} | GPU)
    failed = {"network": "N", "precision": "float16", "batch": 64, "rows": 9, "method": "PML"}
    table.append(failed | {"message": "OutOfMemoryError: 24 GiB"} | GPU)
    report = gpu_report(tmp_path)
    assert "| N | bfloat16 | 64 | eager | 40.00 | 25.0 % | 6.2 |" in report
    assert "| N | bfloat16 | 256 | GradCache | 90.00 | – | 5.0 |" in report
    assert "| N | float16 | 64 | PML | OutOfMemoryError | – | – |" in report


def test_a_step_stands_beside_pmls_and_the_products_of_its_size_and_miner(tmp_path: Path) -> None:
    table = Table(tmp_path / steps.FILE, steps.COLUMNS, steps.KEY)
    for rows, dtype, miner, method, ms in (
        (1024, "float32", "none", "PML", 8.0),
        (64, "float32", "none", "PML", 16.0),
        (64, "float32", "none", "two products", 2.0),
        (64, "float32", "PairMarginMiner", "PML", 32.0),
        (64, "float32", "none", "eager", 4.0),
        (64, "bfloat16", "none", "two products", 1.0),
        (64, "bfloat16", "none", "eager", 5.0),
        (64, "float32", "PairMarginMiner", "captured", 3.0),
    ):
        case = {"rows": rows, "batch": 16, "dtype": dtype, "miner": miner, "nonfinite": "raise"}
        figures = {"method": method, "ms": ms, "host_ms": 0.5, "reads": 0}
        table.append(case | figures | GPU)
    report = gpu_report(tmp_path)
    assert (
        "| 64 | 16 | float32 | none | raise | eager | 4.00 | 0.25 | 2.00 | 0.50 | – | – | – | 0 | – |"
        in report
    )
    assert "| bfloat16 | none | raise | eager | 5.00 | 0.31 | 5.00 |" in report
    assert "| PairMarginMiner | raise | captured | 3.00 | 0.09 | 1.50 |" in report
    assert "| float32 | none | – | two products | 2.00 | 0.12 | – |" in report


def test_tests_are_counted_file_by_file(tmp_path: Path) -> None:
    (tmp_path / "tests.xml").write_text(JUNIT.format(driver="550"))
    assert "| `tests/losses/test_waits.py` | 1 | 1 | 1 | 0.8 |" in gpu_report(tmp_path)


def test_costs_of_an_earlier_version_are_those_of_a_gpu_alone(tmp_path: Path) -> None:
    table = Table(tmp_path / cost.FILE, cost.COLUMNS, cost._KEY)
    row = {"loss": "SupConLoss", "miner": "none", "rows": 64, "classes": 10, "batch": 16, "dtype": "float32"}
    row |= {**GPU, "launches": 90, "peak_mb": 7.5}
    table.append({**row, "method": PML, "ms": 8.0})
    table.append({**row, "method": PRODUCTS, "ms": 2.0, "ratio": 0.25})
    table.append({**row, "method": "XBN", "ms": 3.0, "ratio": 0.375})
    table.append({**row, "method": "AXBN", "message": "OutOfMemoryError: 24 GiB"})
    table.append({**row, "method": "XBN", "ms": 9.0, "ratio": 1.5, **CPU})
    report = earlier_report(tmp_path)
    assert "| 16 | 8.00 | 0.38 | OutOfMemoryError | – | – | 0.25 | 90 | 90 | 8 | 8 |" in report
    assert "1.50" not in report


def test_what_was_added_behind_a_network_is_in_order_of_size(tmp_path: Path) -> None:
    columns = ["rows", "batch", "method", "nonfinite", "added_ms", "kernel_ms", "message", *GPU]
    table = Table(tmp_path / "gpu_behind.csv", columns, columns)
    for size, factor in ((2048, 2), (64, 1)):
        case = {**GPU, "rows": size, "batch": 16}
        of_pml = {"added_ms": 4.0 * factor, "kernel_ms": 1.5 * factor}
        table.append({**case, "method": PML, "nonfinite": "", "message": "", **of_pml})
        of_xbn = {"added_ms": 0.25 * factor, "kernel_ms": 0.125 * factor}
        table.append({**case, "method": "XBN", "nonfinite": "ignore", "message": "", **of_xbn})
    lines = [line for line in earlier_report(tmp_path).splitlines() if "| 16 |" in line]
    assert lines == [
        "| 64 | 16 | 4.00 | – | 0.25 | – | – | – | 1.50 | 0.12 |",
        "| 2,048 | 16 | 8.00 | – | 0.50 | – | – | – | 3.00 | 0.25 |",
    ]


def test_a_run_on_a_gpu_stands_beside_the_same_seeds_on_a_cpu(tmp_path: Path) -> None:
    columns = ["method", "refresh_every", "batch_size", "memory_ratio", "norm", "regime", "seed"]
    columns += ["recall_at_1", "device", "driver", "torch"]
    table = Table(tmp_path / "study_runs.csv", columns, columns)
    for method, seed, recall, device, driver in (
        ("xbn", 1, 40.0, "a GPU", "550"),
        ("xbn", 2, 50.0, "a GPU", "550"),
        ("xbn", 1, 44.0, "a CPU", "none"),
        ("xbn", 2, 48.0, "a CPU", "none"),
        ("xbn", 3, 10.0, "a CPU", "none"),
        ("centre", 1, 30.0, "a GPU", "550"),
    ):
        values = [method, 0, 16, 0.5, "frozen", "pretrained", seed, recall, device, driver, "2.13"]
        table.append(dict(zip(columns, values, strict=True)))
    report = earlier_report(tmp_path)
    assert "| xbn | 45.0 | 46.0 | 2 |" in report
    assert "| centre | 30.0 | – | 1 |" in report
