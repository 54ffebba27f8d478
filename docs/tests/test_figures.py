"""Figures in sentences: each is what the table says that the sentence is about."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest

from benchmarks.study.data import Study

DOCS = Path(__file__).parents[1]
RESULTS = DOCS.parent / "benchmarks" / "results"

Row = dict[str, str]


def rows_of(name: str, **values: str) -> list[Row]:
    """Those of a table of results that have these values."""
    with (RESULTS / name).open(encoding="utf-8", newline="") as file:
        found = [row for row in csv.DictReader(file) if values.items() <= row.items()]
    assert found, f"{name} has no row of {values}"
    return found


def words_of(page: Path) -> str:
    return " ".join(page.read_text(encoding="utf-8").split())


@pytest.fixture(scope="module")
def readme() -> str:
    return words_of(DOCS.parent / "README.md")


def step(rows: int, method: str, column: str) -> float:
    table = "step_cost_cpu.csv"
    (row,) = rows_of(table, rows=str(rows), method=method, miner="none", loss="supcon", dim="512")
    return float(row[column])


def test_what_a_step_costs(readme: str) -> None:
    shares = {
        name: f"{step(60_000, method, 'ratio'):.2f} ({name})"
        for name, method in {
            "XBN": "xbn",
            "AXBN": "axbn",
            "PC-XBN": "per-class",
            "SC-XBN": "super-class",
        }.items()
    }
    *first, last = shares.values()
    assert f"a step takes {', '.join(first)} and {last} of the time of PML's" in readme
    pml, ours = (step(1_024, "xbn", column) for column in ("pml_ms", "ours_ms"))
    assert f"{pml:.1f} ms against XBN's {ours:.1f} " in readme
    assert step(1_000_000, "xbn", "adaptation_ms") <= 0.55


@pytest.mark.parametrize("page", ["README.md", "docs/which_variant.md"])
def test_what_xbn_gains_in_long_runs(page: str) -> None:
    study = Study(RESULTS)
    gaps = [
        study.difference("xbn", other, (64, 0.5, "batch", "converged"), "recall_at_1")
        for other in ("no-xbm", "xbm", "xbm+warm-up")
    ]
    to_none, to_stale, to_published = (f"{gap.mean:.1f} ± {gap.half_width:.1f}" for gap in gaps if gap)
    words = words_of(DOCS.parent / page)
    assert f"{to_none} points of Recall@1 above no memory, {to_stale} above a stale one" in words
    assert f"{to_published} above " in words


def test_what_every_loss_costs(readme: str) -> None:
    cases = {"rows": "60000", "classes": "n/10"}
    ours = rows_of("loss_cost_cpu.csv", memory="XBNWrapper", **cases)
    pml = rows_of("loss_cost_cpu.csv", memory="CrossBatchMemory", **cases)
    assert {row["outcome"] for row in ours} == {"fits"}
    longest = max(float(row["ms"]) for row in ours) / 1000
    assert f"each of {len(ours)} cases takes {longest:.2f} s or less" in readme
    of_ours = {(row["loss"], row["miner"]): float(row["ms"]) for row in ours}
    times = [float(row["ms"]) / of_ours[row["loss"], row["miner"]] for row in pml if row["outcome"] == "fits"]
    limits = f"{ours[0]['memory_limit_gb']} GB and {float(ours[0]['time_limit_s']):g} s"
    fitting = f"of PML's, {len(times)} fit in {limits}, and take {min(times):.1f} to {max(times):.1f} times"
    assert fitting in readme


def test_which_losses_are_slow() -> None:
    def times_supcon(classes: str, **values: str) -> list[Row]:
        table = "loss_cost_cpu.csv"
        return rows_of(table, memory="XBNWrapper", rows="60000", classes=classes, **values)

    (loss,) = times_supcon("n/10", loss="AngularLoss", miner="none")
    (miner,) = times_supcon("n/10", miner="AngularMiner")
    times = " and ".join(f"{float(row['times_supcon']):.1f}" for row in (loss, miner))
    assert f"with ten rows to a class they take {times} times a step of `SupConLoss`" in words_of(
        DOCS / "faq.md"
    )
    assert {row["outcome"] for row in times_supcon("10", loss="AngularLoss")} == {"over 8 s"}
