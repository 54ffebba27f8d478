"""The result of one or several runs, beside the paper's."""

from __future__ import annotations

from collections.abc import Sequence

from benchmarks.engine.results import markdown, spread

NAMES = {"map_at_r": "MAP@R", "nmi": "NMI", "separability_criterion": "class separability"}


def metric_name(key: str) -> str:
    """recall_at_1 -> Recall@1."""
    return NAMES.get(key) or key.replace("recall_at_", "Recall@").replace("superclass_within_", "superclass@")


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
    lines = [
        [metric_name(key), spread([row[key] for row in results], ".2f"), paper.get(key, "–")]
        for key in results[0]
        if key != "epoch"
    ]
    epochs = ", ".join(str(int(row["epoch"])) for row in results)
    lines += [["best epoch", epochs, "–"], ["pretrained weights", *weights]]
    return markdown(["metric", "result", source if paper else "paper"], lines, ["metric"])
