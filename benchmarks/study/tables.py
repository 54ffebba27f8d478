"""What the cells of the study's tables say."""

from __future__ import annotations

from collections.abc import Iterable
from statistics import fmean

from benchmarks.engine import results
from benchmarks.study.data import Difference, Setting, Study


def spread(study: Study, name: str, setting: Setting, figure: str) -> str:
    return results.spread(list(study.values(name, setting, figure).values()))


def mean(study: Study, name: str, setting: Setting, figure: str, digits: int) -> str:
    values = list(study.values(name, setting, figure).values())
    return f"{fmean(values):.{digits}f}" if values else "–"


def text(difference: Difference | None) -> str:
    return "–" if difference is None else str(difference)


def table(columns: list[str], lines: Iterable[list[str]]) -> str:
    lines = list(lines)
    has_numbers = [any(c.isdigit() for line in lines for c in line[i]) for i in range(len(columns))]
    sides = ["--:" if i and numbers else ":--" for i, numbers in enumerate(has_numbers)]
    rows = [columns, sides, *lines]
    return "\n".join("| " + " | ".join(row) + " |" for row in rows)
