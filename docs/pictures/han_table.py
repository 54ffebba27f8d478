"""The first table of the page on thousands of classes, from the runs on Han."""

from __future__ import annotations

from pathlib import Path
from statistics import fmean

from benchmarks.engine.results import markdown
from benchmarks.han.cases import EQUAL, FRONT, LONG
from benchmarks.han.report import CHOICE, Runs, label


def han_table(results: Path) -> str:
    """Returns the first settings at their best rates; *one* seed is the one that chose the rate.

    All of six epochs stand before those of more, which no memory has in equal minutes.
    """
    runs, lines = Runs(results), []
    for setting in (*FRONT, *EQUAL, *LONG):
        case = runs.chosen(setting)
        if case is None:
            continue
        found = runs.values(setting, "recall_at_1")
        figures = [f"{fmean(runs.values(setting, x).values()):.1f}" for x in ("recall_at_1", "map_at_r")]
        seeds = "one" if [*found] == [CHOICE] else str(len(found))
        lines.append([label(setting), f"{case.rate:g}", seeds, *figures, f"{runs.minutes(setting):.1f}"])
    return markdown(
        ["Setting", "Rate", "Seeds", "Recall@1", "MAP@R", "Minutes of a core"], lines, ["Setting"]
    )
