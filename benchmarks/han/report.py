"""What the runs on Han say: tables of the CSV files.

python -m benchmarks.han.report    (writes benchmarks/results/han.md)
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import fmean
from typing import Any

import tyro

from benchmarks.engine.intervals import Difference, paired
from benchmarks.engine.results import RESULTS, markdown, read_runs
from benchmarks.han import cases as plan
from benchmarks.han.cases import Case, best_rates

RUNS, LOG, PAGE = "han_runs.csv", "han_log.csv", "han.md"
CHOICE = 0  # the seed that chooses
FIGURES = {"recall_at_1": "Recall@1", "map_at_r": "MAP@R"}
CLASSES = 9992  # to train on
_SEEDS_OF_SWEEP = 3  # that its table waits for
_LATE = 2 / 3  # of a run, from where its noise is looked at
_INTRODUCTION = """\
Declared in `benchmarks/study/declared_han.md`; made by `python -m benchmarks.han.report` of
`han_runs.csv` and `han_log.csv`. Figures are of the classes that confirm, in per cent. Differences are in
points, paired by seed, with the 95 % interval of their own pairs. Where *the choice's* stands for the seeds,
there is only the one that chose the rate: such a figure is a first look, without an interval. Minutes are
means over rates and seeds. Those of the front table and of equal minutes compare; others were made on another
machine, or beside other work, which took up to half as long again."""
_MINUTES = f"""\
Here no memory trains for {plan.EPOCHS_IN_EQUAL_TIME} epochs, which take about as many minutes as six with a
memory, and differences are to it. The memories of {plan.EPOCHS_IN_EQUAL_TIME} epochs were added once these
runs were known: they see as many images, and take longer."""
_NOISE = """\
Of the last third of the runs, at chosen rates. *Shift* is the squared mean of what 512 rows are away from
fresh ones, before and after the memory adapts them, in multiples of the sampling noise of one batch's mean.
That noise is in per cent of the embeddings' total variance. Distances are of unit vectors."""

Row = dict[str, str]


class Runs:
    """The runs so far.

    Attributes:
        rows: by case.
        log: rows of each case, in order of steps.
        best: the rate chosen for each setting with all classes.
    """

    def __init__(self, folder: Path) -> None:
        self.rows = dict(read_runs(Case, folder / RUNS))
        self.best = best_rates([*self.rows.values()])
        self.log: dict[Case, list[Row]] = {}
        for case, entry in read_runs(Case, folder / LOG):
            self.log.setdefault(case, []).append(entry)

    def chosen(self, setting: Case) -> Case | None:
        """Returns the setting at its chosen rate, with seed 0."""
        rate = self.best.get(setting.setting)
        return None if rate is None else replace(setting, rate=rate, seed=CHOICE)

    def values(self, setting: Case, figure: str) -> dict[int, float]:
        """Returns the figure by seed at the chosen rate, without the choice's seed unless it is alone."""
        case = self.chosen(setting)
        if case is None:
            return {}
        found = {one.seed: row for one, row in self.rows.items() if replace(one, seed=CHOICE) == case}
        if len(found) > 1:
            found.pop(CHOICE, None)
        return {seed: float(row[figure]) for seed, row in found.items() if row[figure]}

    def minutes(self, setting: Case) -> float:
        """Returns minutes of a core, the mean over rates and seeds."""
        return fmean(
            float(row["cpu_minutes"]) for one, row in self.rows.items() if one.setting == setting.setting
        )

    def difference(self, ours: Case, theirs: Case, figure: str) -> Difference | None:
        """Returns ours minus theirs, paired by seed."""
        return paired(self.values(ours, figure), self.values(theirs, figure))


def label(case: Case) -> str:
    """Says a setting in words."""
    names = {"none": "no memory", "xbm": "XBM", "xbn": "XBN", "axbn": "AXBN", "centre": "centring"}
    name = names.get(case.method, case.method.replace("xbm", "XBM").replace("xbn", "XBN"))
    parts = [f"{name}, batch {case.batch_size}"]
    has_memory = case.method not in ("none", *plan.PROXY_RATES)
    if has_memory:
        parts.append("from the first step" if case.begins == "first" else "warmed up, filled")
        parts += {"0": [], "ramp": ["weight ramped"]}.get(case.batch_loss, ["batch's own loss beside"])
        parts += [f"memory {100 * case.memory:g} %"] * (case.memory != 1)
    parts += [case.loss] * (case.loss != "supcon") + ["pretrained"] * (case.weights != "random")
    epochs = case.steps * case.batch_size / (plan.EPOCH * 64)
    parts += [f"{epochs:.0f} epochs"] * (abs(epochs - 6) > 0.1)
    return ", ".join(parts)


def front_table(runs: Runs, settings: Iterable[Case], epochs: float = 6) -> str:
    """Returns a table of settings at their chosen rates, with costs and differences to no memory.

    Args:
        epochs: of no memory with which the settings are compared.
    """
    columns = ["Setting", "Rate", "Seeds", *FIGURES.values()]
    columns += [f"{name} to no memory at {size}" for size in (64, 256) for name in FIGURES.values()]
    columns += ["Images", "Steps", "Minutes of a core"]
    lines = []
    for setting in settings:
        case = runs.chosen(setting)
        if case is None:
            continue
        seeds = runs.values(setting, "recall_at_1")
        line = [label(setting), f"{case.rate:g}", "the choice's" if [*seeds] == [CHOICE] else str(len(seeds))]
        line += [_mean(runs.values(setting, figure)) for figure in FIGURES]
        for size in (64, 256):
            baseline = replace(plan.none(size, epochs), loss=setting.loss, weights=setting.weights)
            is_itself = setting.setting == baseline.setting
            gaps = [None if is_itself else runs.difference(setting, baseline, name) for name in FIGURES]
            line += [str(gap or "–") for gap in gaps]
        line += [f"{case.steps * case.batch_size:,}", f"{case.steps:,}", f"{runs.minutes(setting):.1f}"]
        lines.append(line)
    return markdown(columns, lines, ["Setting"])


def trials_table(runs: Runs, settings: Iterable[Case]) -> str:
    """Returns MAP@R on the classes that choose, by rate, of seed 0."""
    lines = []
    for setting in settings:
        found = {
            case.rate: row["map_at_r_validation"]
            for case, row in runs.rows.items()
            if case.setting == setting.setting and case.seed == CHOICE
        }
        if found:
            told = [
                f"{rate:g}: {float(value):.1f}" if value else f"{rate:g}: failed"
                for rate, value in sorted(found.items())
            ]
            lines.append([label(setting), "; ".join(told)])
    return markdown(
        ["Setting", "Rate: MAP@R on the classes that choose"],
        lines,
        ["Setting", "Rate: MAP@R on the classes that choose"],
    )


def sweep_rows(runs: Runs, setting: Case, classes: int) -> dict[int, Row]:
    """Returns rows by seed with so many classes, with fewer than all at the better of the two rates."""
    case = runs.chosen(setting)
    if case is None:
        return {}
    rows = {
        part: {
            one.seed: row
            for one, row in runs.rows.items()
            if one == replace(case, classes=classes, rate=part * case.rate, seed=one.seed)
        }
        for part in ((1, 0.5) if classes else (1,))
    }
    with_choice = [of_seeds for of_seeds in rows.values() if CHOICE in of_seeds]
    return max(
        with_choice, key=lambda of_seeds: float(of_seeds[CHOICE]["map_at_r_validation"] or 0), default={}
    )


def sweep_seeds(runs: Runs) -> list[int]:
    """Returns the seeds, besides the one that chooses, that are there in all of the sweep."""
    found = [
        sweep_rows(runs, setting, classes).keys()
        for classes in (*plan.SWEEP, 0)
        for setting in plan.WITHOUT_FIRST_STEP
    ]
    return sorted(set.intersection(*map(set, found)) - {CHOICE})


def sweep_values(runs: Runs, setting: Case, classes: int, figure: str) -> dict[int, float]:
    """Returns the figure by seed, without the choice's seed once all of the sweep has three others."""
    seeds = sweep_seeds(runs)
    rows = sweep_rows(runs, setting, classes)
    wanted = seeds if len(seeds) >= _SEEDS_OF_SWEEP else [CHOICE]
    return {seed: float(rows[seed][figure]) for seed in wanted if seed in rows and rows[seed][figure]}


def sweep_table(runs: Runs) -> str:
    """Returns the figures by number of training classes, with the gain to no memory."""
    columns = ["Classes", "Of them in a batch of 64", "Setting", *FIGURES.values()]
    columns += [f"{name} to no memory at {size}" for size in (64, 256) for name in FIGURES.values()]
    lines = []
    for classes in (*plan.SWEEP, 0):
        for setting in plan.WITHOUT_FIRST_STEP:
            values = {figure: sweep_values(runs, setting, classes, figure) for figure in FIGURES}
            if not values["recall_at_1"]:
                continue
            number = classes or CLASSES
            line = [f"{number:,}", f"{100 * 32 / number:.2g} %", label(setting), *map(_mean, values.values())]
            for size in (64, 256):
                baseline = plan.none(size)
                for figure in FIGURES:
                    theirs = {} if setting == baseline else sweep_values(runs, baseline, classes, figure)
                    line.append(str(paired(values[figure], theirs) or "–"))
            lines.append(line)
    return markdown(columns, lines, ["Setting"])


def late(entries: Sequence[Row], steps: int, name: str) -> float | None:
    """Returns the mean of a measured number in the last third of a run."""
    found = [float(e[name]) for e in entries if e.get(name) and int(e["step"]) > _LATE * steps]
    return fmean(found) if found else None


def noise_table(runs: Runs) -> str:
    """Returns, of each setting with a memory, what its rows share in the last third of the runs."""
    names = {
        "noise": "Sampling noise of a batch's mean, %",
        "shift_before": "Shift before, of it",
        "shift_after": "Shift after, of it",
        "gap": "Difference of means, of it",
        "before": "Squared distance before",
        "after": "after",
        "floor": "of two fresh ones",
    }
    lines = []
    for setting in _in_order(runs):
        case = runs.chosen(setting)
        entries = [
            runs.log.get(one, [])
            for one in runs.rows
            if case is not None and replace(one, seed=CHOICE) == case
        ]
        found: dict[str, Any] = {
            name: [x for of_run in entries if (x := late(of_run, setting.steps, name)) is not None]
            for name in names
        }
        if not found["noise"]:
            continue
        means = {name: fmean(values) for name, values in found.items()}
        line = [label(setting), f"{100 * means['noise']:.2f}"]
        line += [f"{means[name] / means['noise']:.2f}" for name in ("shift_before", "shift_after", "gap")]
        line += [f"{means[name]:.3f}" for name in ("before", "after", "floor")]
        lines.append(line)
    return markdown(["Setting", *names.values()], lines, ["Setting"])


def drift_table(runs: Runs) -> str:
    """Returns Recall@1 by rate, of XBM and XBN from the first step and warmed up, seed 0."""
    settings = (Case("xbm"), Case("xbn"), plan.memory("xbm"), plan.memory("xbn"))
    rates = sorted({case.rate for case in runs.rows if case.setting in [x.setting for x in settings]})
    lines = []
    for setting in settings:
        rows = [runs.rows.get(replace(setting, rate=rate)) for rate in rates]
        lines.append(
            [
                label(setting),
                *(f"{float(r['recall_at_1']):.1f}" if r and r["recall_at_1"] else "–" for r in rows),
            ]
        )
    return markdown(["Setting", *(f"{rate:g}" for rate in rates)], lines, ["Setting"])


def _in_order(runs: Runs) -> Iterator[Case]:
    """Yields the settings with all classes, in the order in which they were first run."""
    yield from dict.fromkeys(case.setting for case in runs.rows if not case.classes)


def _mean(values: dict[int, float]) -> str:
    return f"{fmean(values.values()):.1f}" if values else "–"


def report(folder: Path) -> str:
    """Returns the page."""
    runs = Runs(folder)
    every = list(_in_order(runs))
    long = [case.setting for case in (*plan.EQUAL, *plan.LONG, plan.EQUAL_PRETRAINED)]
    memories = [case for case in plan.FRONT if case.method != "none"]
    parts = [
        "# What a memory is worth with ten thousand classes",
        _INTRODUCTION,
        "## Settings at their chosen rates",
        front_table(runs, [case for case in every if case not in long]),
        "## In equal minutes",
        _MINUTES,
        front_table(runs, (*plan.EQUAL, *memories, *plan.LONG), plan.EPOCHS_IN_EQUAL_TIME),
        "From the weights of another task:",
        front_table(
            runs,
            [plan.EQUAL_PRETRAINED, *(case for case in plan.PRETRAINED if case.method != "none")],
            plan.EPOCHS_IN_EQUAL_TIME,
        ),
        "## By number of training classes",
        sweep_table(runs),
        "## What rows share, and noise",
        _NOISE,
        noise_table(runs),
        "## By rate",
        "Recall@1, seed 0.",
        drift_table(runs),
        "## All trials that chose",
        trials_table(runs, every),
    ]
    return "\n\n".join(parts) + "\n"


def main(output: Path = RESULTS) -> None:
    """Writes the page.

    Args:
        output: folder of the CSV files.
    """
    (output / PAGE).write_text(report(output), encoding="utf-8")
    print(f"{output / PAGE} is written")


if __name__ == "__main__":
    tyro.cli(main, prog="python -m benchmarks.han.report", description=__doc__)
