"""The result of one or several runs, beside the paper's."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from benchmarks.engine.results import markdown, spread

NAMES = {
    "map_at_r": "MAP@R",
    "nmi": "NMI",
    "separability_criterion": "class separability",
    "separability_between": "scatter between classes",
    "separability_within": "scatter within classes",
}


def metric_name(key: str) -> str:
    """Returns the name in print: recall_at_1 is Recall@1."""
    return NAMES.get(key) or key.replace("recall_at_", "Recall@").replace("superclass_within_", "superclass@")


def result_table(
    results: Sequence[dict[str, float]],
    paper: Mapping[str, str],
    source: str,
    settings: Mapping[str, tuple[str, str]],
) -> str:
    """Returns a Markdown table with one row per metric, then the epoch and settings.

    Args:
        results: one per run, of equal keys; percentages by metric.
        paper: the paper's figures by metric; empty where it has none.
        source: the paper's table.
        settings: by name, here and in the paper.
    """
    lines = [
        [metric_name(key), spread([row[key] for row in results if key in row], ".2f"), paper.get(key, "–")]
        for key in {**results[0], **paper}
        if key != "epoch"
    ]
    epochs = ", ".join(str(int(row["epoch"])) for row in results)
    lines += [["epoch", epochs, "–"], *([name, *values] for name, values in settings.items())]
    return markdown(["metric", "result", source if paper else "paper"], lines, ["metric"])
