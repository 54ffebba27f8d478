"""The demo over several seeds as a table."""

from __future__ import annotations

import csv
from pathlib import Path
from statistics import fmean


def demo_table(path: Path) -> str:
    """Recall@1 after the last epoch, a column for every seed, from ``method,seed,recall_at_1``."""
    with path.open(newline="") as file:
        rows = list(csv.DictReader(file))
    seeds = sorted({row["seed"] for row in rows}, key=int)
    recalls: dict[str, dict[str, float]] = {}
    for row in rows:
        recalls.setdefault(row["method"], {})[row["seed"]] = float(row["recall_at_1"])
    lines = [
        "| method | " + " | ".join(f"seed {seed}" for seed in seeds) + " | mean |",
        "|:--|" + "--:|" * (len(seeds) + 1),
    ]
    for method, of_seed in recalls.items():
        cells = [f"{of_seed[seed]:.1f}" for seed in seeds]
        lines.append(f"| `{method}` | " + " | ".join(cells) + f" | {fmean(of_seed.values()):.1f} |")
    return "\n".join(lines) + "\n"
