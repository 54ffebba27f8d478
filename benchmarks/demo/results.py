"""The final figures of a comparison, as a table and as CSV files."""

import csv
from collections.abc import Mapping
from pathlib import Path
from statistics import fmean, median

from benchmarks.demo.training import History

COLUMNS = {
    "recall_at_1": "Recall@1",
    "recall_at_10": "Recall@10",
    "map_at_r": "MAP@R",
    "step_ms": "step (ms)",
    "drift": "drift",
}


def summary(history: History, warmup_epochs: int) -> dict[str, float]:
    """Accuracy after the last epoch; median step time and mean drift since the warm start."""
    last = history.epochs[-1]
    return {
        **{name: last[name] for name in ("recall_at_1", "recall_at_10", "map_at_r")},
        "step_ms": 1000 * median(history.step_times),
        "drift": fmean(row["drift"] for row in history.epochs[warmup_epochs:]),
    }


def table(rows: dict[str, dict[str, float]], columns: Mapping[str, str] = COLUMNS) -> str:
    """A Markdown table with one row per method.

    Args:
        rows: the figures of each method.
        columns: which of them, with titles of up to 9 letters.
    """
    lines = ["| method      | " + " | ".join(f"{title:>9}" for title in columns.values()) + " |"]
    lines.append("|:------------|" + "|".join(["----------:"] * len(columns)) + "|")
    for method, row in rows.items():
        cells = [f"{row[name]:9.{3 if name in ('drift', 'loss') else 1}f}" for name in columns]
        lines.append(f"| {method:<11} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def write_csv(rows: list[dict[str, object]], path: Path) -> None:
    """Writes rows with equal keys, the keys as the header."""
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, fieldnames=list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
