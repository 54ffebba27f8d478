"""The result of one or several runs, beside the paper's."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean, stdev

NAMES = {"map_at_r": "MAP@R", "nmi": "NMI", "separability_criterion": "class separability"}


def metric_name(key: str) -> str:
    """recall_at_1 -> Recall@1."""
    return NAMES.get(key) or key.replace("recall_at_", "Recall@").replace("superclass_within_", "superclass@")


def with_deviation(values: Sequence[float]) -> str:
    """The mean, and of several values the standard deviation (with n - 1)."""
    if len(values) == 1:
        return f"{values[0]:.2f}"
    return f"{fmean(values):.2f} ± {stdev(values):.2f}"


def result_table(
    results: Sequence[dict[str, float]], paper: dict[str, str], source: str, weights: tuple[str, str]
) -> str:
    """A Markdown table with one row per metric.

    Args:
        results: one per run, of equal keys; percentages by metric.
        paper: the paper's figures by metric; empty where it has none.
        source: the paper's table.
        weights: what the backbone started from, here and in the paper.
    """
    metrics = [key for key in results[0] if key != "epoch"]
    title = source if paper else "paper"
    lines = [f"| metric | result | {title} |", "|:--|--:|--:|"]
    for key in metrics:
        result = with_deviation([row[key] for row in results])
        lines.append(f"| {metric_name(key)} | {result} | {paper.get(key, '–')} |")
    epochs = ", ".join(str(int(row["epoch"])) for row in results)
    lines.append(f"| best epoch | {epochs} | – |")
    lines.append(f"| pretrained weights | {weights[0]} | {weights[1]} |")
    return "\n".join(lines)
