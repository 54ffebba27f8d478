"""The table that the experiment's CSV file makes: every number of it is computed here."""

from __future__ import annotations

import math
from pathlib import Path

from benchmarks.engine.results import markdown, read_csv, spread
from benchmarks.two_towers.settings import METHODS

NAME = "two_towers_glyphs"
_COLUMNS = {
    "image_to_name": ("image → name", 1),
    "name_to_image": ("name → image", 1),
    "staleness_before": ("staleness before", 3),
    "staleness_after": ("after adaptation", 3),
}
_BASELINE = "no-memory"


def write_report(folder: Path) -> str:
    """Writes the page beside the CSV file, and returns its text.

    Raises:
        ValueError: the CSV file holds runs of different settings.
    """
    rows = read_csv(folder / f"{NAME}.csv")
    experiments = {tuple((name, row[name]) for name in _settings(row)) for row in rows}
    if len(experiments) != 1:
        raise ValueError(
            f"{folder / NAME}.csv holds runs of {len(experiments)} settings: delete those of others"
        )
    by_method = {m: {row["seed"]: row for row in rows if row["method"] == m} for m in METHODS}
    lines = [
        [method, str(len(runs)), *(_spread(runs, name, digits) for name, (_, digits) in _COLUMNS.items())]
        + [_gain(runs, by_method[_BASELINE], name) for name in list(_COLUMNS)[:2]]
        for method, runs in by_method.items()
        if runs
    ]
    titles = ["method", "seeds", *(title for title, _ in _COLUMNS.values())]
    titles += [f"{title}, gain" for title, _ in list(_COLUMNS.values())[:2]]
    (experiment,) = experiments
    text = "\n\n".join(
        [
            "# Images of characters and their Unicode names, each found by the other",
            "Test Recall@1 in per cent on Glyphs after the last epoch, mean ± standard deviation over seeds. "
            "*Gain* is over no memory, paired by seed. *Staleness* is the mean distance of stored names, at "
            "unit length, from where the network would put them now, before and after adaptation. Methods "
            "with a star add the loss within the batch. Settings: "
            + ", ".join(f"{name} {value}" for name, value in experiment if value != "None")
            + ". Written by `benchmarks.two_towers`.",
            markdown(titles, lines, ["method"]),
        ]
    )
    (folder / f"{NAME}.md").write_text(text + "\n")
    return text


def _settings(row: dict[str, str]) -> list[str]:
    return [name for name in row if name not in ("method", "seed", "minutes", *_COLUMNS)]


def _spread(runs: dict[str, dict[str, str]], name: str, digits: int) -> str:
    values = [float(row[name]) for row in runs.values()]
    return "–" if any(map(math.isnan, values)) else spread(values, f".{digits}f")


def _gain(runs: dict[str, dict[str, str]], baseline: dict[str, dict[str, str]], name: str) -> str:
    both = [seed for seed in runs if seed in baseline]
    if runs is baseline or not both:
        return "–"
    return spread([float(runs[seed][name]) - float(baseline[seed][name]) for seed in both], "+.1f")
