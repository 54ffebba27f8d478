"""The page that the experiment's CSV file makes: every number of it is computed here."""

from __future__ import annotations

import math
from pathlib import Path

from benchmarks.engine.intervals import Difference, paired
from benchmarks.engine.results import markdown, read_csv, spread
from benchmarks.two_towers.settings import METHODS

NAME = "two_towers"
BASELINE = "no-memory"
SIDES = {"query_to_document": "query → document", "document_to_query": "document → query"}
_FIGURES = (*SIDES, "last_quarter", "staleness_before", "staleness_after", "minutes", "cpu_minutes")
_COLUMNS = {"staleness_before": 3, "staleness_after": 3, "cpu_minutes": 1}  # and their digits
_TITLES = (
    *("method", "seeds", *SIDES.values(), "to no memory", "last quarter", "staleness before", "after"),
    "minutes",
)
Rows = list[dict[str, str]]
Experiment = tuple[tuple[str, str], ...]


def experiments(folder: Path) -> dict[Experiment, Rows]:
    """Returns the runs by what they share: all settings but the method and the seed."""
    found: dict[Experiment, Rows] = {}
    for row in read_csv(folder / f"{NAME}.csv"):
        found.setdefault(tuple((n, v) for n, v in row.items() if _is_setting(n)), []).append(row)
    return found


def gains(rows: Rows, baseline: str = BASELINE) -> dict[str, Difference]:
    """Returns the mean Recall@1 of both directions, less the baseline's, paired by seed."""
    by_method = {
        method: {int(row["seed"]): both(row) for row in rows if row["method"] == method} for method in METHODS
    }
    found = {m: paired(values, by_method[baseline]) for m, values in by_method.items() if m != baseline}
    return {method: difference for method, difference in found.items() if difference}


def write_report(folder: Path) -> str:
    """Writes the page beside the CSV file, and returns its text."""
    parts = [
        "# Queries and documents, each found by the other",
        "Test Recall@1 in per cent after the last epoch: the mean over seeds and their standard deviation "
        "(sd). *To no memory*: the mean of both directions, paired by seed, ± half the 95 % interval of "
        "these pairs alone (Student's t). *Last quarter*: what the "
        "last quarter of the epochs added to that mean, where it was noted. *Staleness*: mean distance of "
        "stored documents, at unit length, from where the network would put them now, before and after the "
        "adaptation of one step. *Minutes*: of one core, where they were noted. *no-memory-twice* trains "
        "for twice the epochs, which takes no less time than a memory. Methods with a star add the loss "
        "within the batch. Written by `python -m benchmarks.two_towers`.",
    ]
    for experiment, rows in experiments(folder).items():
        values = dict(experiment)
        parts.append(f"## {title(values)}")
        parts.append(
            ", ".join(f"{name} {value}" for name, value in values.items() if value not in ("", "None")) + "."
        )
        parts.append(markdown(_TITLES, _lines(rows), ["method"]))
    text = "\n\n".join(parts)
    (folder / f"{NAME}.md").write_text(text + "\n")
    return text


def title(values: dict[str, str]) -> str:
    return f"{values['data']}, batch {values['batch_size']}, memory {100 * float(values['memory_ratio']):g} %"


def _lines(rows: Rows) -> list[list[str]]:
    to_none = gains(rows)
    lines = []
    for method in METHODS:
        runs = [row for row in rows if row["method"] == method]
        if runs:
            late = [float(row["last_quarter"]) for row in runs if row.get("last_quarter")]
            lines.append(
                [method, str(len({row["seed"] for row in runs})), *(_spread(runs, side, 1) for side in SIDES)]
                + [str(to_none.get(method, "–")), spread(late, "+.1f")]
                + [_spread(runs, name, digits) for name, digits in _COLUMNS.items()]
            )
    return lines


def both(row: dict[str, str]) -> float:
    """Returns the mean Recall@1 of both directions."""
    return sum(float(row[side]) for side in SIDES) / 2


def _is_setting(name: str) -> bool:
    return name not in ("method", "seed", *_FIGURES)


def _spread(runs: Rows, name: str, digits: int) -> str:
    values = [float(row[name] or "nan") for row in runs]
    return "–" if any(map(math.isnan, values)) else spread(values, f".{digits}f")
