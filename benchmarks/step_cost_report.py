"""The results of ``step_cost.py`` as CSV, table and picture."""

from __future__ import annotations

import csv
import platform
from importlib.metadata import version
from pathlib import Path

import torch
from matplotlib.figure import Figure

_KEY = ("rows", "dim", "batch", "loss", "miner", "method")
_COLUMNS = {
    "method": "class",
    "rows": "M",
    "dim": "d",
    "batch": "batch",
    "loss": "loss",
    "miner": "miner",
    "pml_ms": "PML (ms)",
    "ours_ms": "ours (ms)",
    "ratio": "ours / PML",
    "adaptation_ms": "adaptation (ms)",
    "peak_in_memories": "our peak (memories)",
    "extra_peak_in_memories": "over PML's (memories)",
}
# Okabe and Ito's palette, which colour-blind readers can tell apart.
_COLOURS = ("#0072B2", "#009E73", "#D55E00", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#7F7F7F")

Results = dict[tuple[str, ...], dict[str, str]]


def key_of(result: dict[str, object]) -> tuple[str, ...]:
    return tuple(str(result[name]) for name in _KEY)


def read_csv(path: Path) -> Results:
    if not path.exists():
        return {}
    with path.open(newline="") as file:
        return {key_of(dict(row)): row for row in csv.DictReader(file)}


def write_report(results: Results, path: Path, device: torch.device) -> None:
    """Writes the CSV, and the table and the picture beside it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    rows = sorted(results.values(), key=lambda r: (int(r["rows"]), *(r[name] for name in _KEY[1:])))
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, fieldnames=list(dict.fromkeys(name for row in rows for name in row)))
        writer.writeheader()
        writer.writerows(rows)
    path.with_suffix(".md").write_text(_table(rows, device))
    _picture(rows, path.with_suffix(".png"))


def _table(rows: list[dict[str, str]], device: torch.device) -> str:
    is_cuda = device.type == "cuda"
    name = torch.cuda.get_device_name(device) if is_cuda else f"{platform.machine()} CPU"
    columns = dict(_COLUMNS)
    if is_cuda:
        columns |= {"pml_waits": "PML's host waits", "ours_waits": "our host waits"}
    lines = [
        "# Cost of a step, forward and backward, against PML's CrossBatchMemory",
        "",
        f"{name}, {torch.get_num_threads()} threads, torch {torch.__version__}, "
        f"pytorch-metric-learning {version('pytorch-metric-learning')}, Python {platform.python_version()}; "
        f"medians of {rows[0]['pairs']} interleaved pairs. Written by `benchmarks.step_cost`.",
        "",
        "| " + " | ".join(columns.values()) + " |",
        "|" + "|".join(":--" if name in ("method", "loss", "miner") else "--:" for name in columns) + "|",
    ]
    for row in rows:
        lines.append("| " + " | ".join(_cell(name, row[name]) for name in columns) + " |")
    return "\n".join(lines) + "\n"


def _cell(name: str, value: str) -> str:
    if name in ("pml_ms", "ours_ms"):
        return f"{float(value):.1f}"
    return f"{float(value):.2f}" if "." in value else value


def _picture(rows: list[dict[str, str]], path: Path) -> None:
    """Does the ratio grow with the memory?"""
    figure = Figure(figsize=(9, 4.2), layout="constrained")
    panels = figure.subplots(1, 2, sharey=True)
    sizes_of: dict[str, set[str]] = {}
    for row in rows:
        sizes_of.setdefault(row["method"], set()).add(row["rows"])
    # Options are measured at one size, of which nothing is to be seen here.
    methods = [m for m, sizes in sizes_of.items() if len(sizes) > 1] or list(sizes_of)
    for panel, miner in zip(panels, ("none", "pair-margin"), strict=True):
        for number, method in enumerate(methods):
            of_method = [
                (int(row["rows"]), float(row["ratio"]))
                for row in rows
                if (row["method"], row["miner"], row["loss"], row["batch"]) == (method, miner, "supcon", "64")
                and row["dim"] == max((r["dim"] for r in rows), key=int)
            ]
            colour = _COLOURS[number % len(_COLOURS)]
            if of_method:
                panel.plot(*zip(*of_method, strict=True), "o-", color=colour, label=method, linewidth=2)
        panel.axhline(1, color="0.4", linestyle="--", linewidth=1)
        panel.text(0.01, 1, "PML", transform=panel.get_yaxis_transform(), va="bottom", color="0.4")
        panel.set(xscale="log", xlabel="rows in memory", ylim=(0, None))
        panel.set_title("without miner" if miner == "none" else "with PairMarginMiner")
        panel.grid(axis="y", color="0.88")
        panel.spines[["top", "right"]].set_visible(False)
    panels[0].set_ylabel("time of a step, ours / PML's")
    if panels[0].lines:
        panels[0].legend(frameon=False)
    figure.savefig(path, dpi=150)
