"""The study's section on whether a run's first few hundred steps tell what a memory will do."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from benchmarks.study.cases import METHODS, WITH_PROXIES, Case
from benchmarks.study.data import Study
from benchmarks.study.figures import name_of
from benchmarks.study.first_steps import MEASUREMENTS, FirstSteps, means_of
from benchmarks.study.tables import table
from benchmarks.tuning.results import Tuning

EFFECTS = ("harm", "do nothing", "help")
_POINTS = 1.0  # of Recall@1, from which on a difference counts
_TUNED = "other losses and learning rates"
_NAMES = (
    *("push_share", "push_displacement"),
    *("valid_positives_from_memory", "valid_positives_from_batch"),
)


class Cell(NamedTuple):
    """What was measured of a run's first steps, and what the memory did to it."""

    measured: FirstSteps
    effect: str


def cells(study: Study) -> dict[Case, Cell]:
    """All runs with a memory that have one without it beside them."""
    found = {}
    for case, run in study.runs.items():
        beside = WITH_PROXIES if case.method.endswith(WITH_PROXIES) else ""
        without = study.values(f"no-xbm{beside}", case.setting, "recall_at_1").get(case.seed)
        measured = study.curves.get(case, [])[1 : 1 + MEASUREMENTS]  # the first is of an empty memory
        if case.memory_ratio and measured and without is not None:
            numbers = means_of([float(row[name]) for name in _NAMES] for row in measured)
            found[case] = Cell(numbers, _effect(float(run["recall_at_1"]) - without))
    return found


def tuned_cells(tuning: Tuning) -> list[tuple[int, Cell]]:
    """The same of the search, each with its configuration, in which the method is compared with none."""
    without = {row["number"]: float(row["recall_at_1"]) for row in tuning.found("no-xbm")}
    return [
        (
            int(row["number"]),
            Cell(
                FirstSteps(*(float(row[name]) for name in FirstSteps._fields)),
                _effect(float(row["recall_at_1"]) - without[row["number"]]),
            ),
        )
        for row in tuning.search
        if row.get("push_share") and row["number"] in without
    ]


def _effect(gain: float) -> str:
    return EFFECTS[(gain > -_POINTS) + (gain > _POINTS)]


def is_fitted_on(case: Case) -> bool:
    """Runs from the warm starts whose rows nobody re-embeds; all others are for the test."""
    return case.regime != "converged" and not case.refresh_every and case.method in METHODS


def predicted(tested: Iterable[Cell], fitted: Iterable[Cell]) -> list[str]:
    """Effects by a logistic regression on other runs."""
    fitted = list(fitted)
    model = make_pipeline(StandardScaler(), LogisticRegression(max_iter=10_000, tol=1e-8))
    model.fit(_features(fitted), [cell.effect for cell in fitted])
    return list(model.predict(_features(tested)))


def _features(cells: Iterable[Cell]) -> Any:
    return [
        (cell.measured.push_share, cell.measured.displacement, np.log1p(cell.measured.positives))
        for cell in cells
    ]


def prediction(study: Study, tuning: Tuning) -> str:
    """The section; empty before there are settings to tell apart, with every effect among the others."""
    known = cells(study)
    fitted = {case: cell for case, cell in known.items() if is_fitted_on(case)}
    settings = list(dict.fromkeys(case.setting for case in fitted))
    others = {s: [cell for case, cell in fitted.items() if case.setting != s] for s in settings}
    if not settings or any({cell.effect for cell in rest} < set(EFFECTS) for rest in others.values()):
        return ""
    told = {
        f"{name_of(s)}: fitted on the others": _tell(
            [cell for case, cell in fitted.items() if case.setting == s], rest
        )
        for s, rest in others.items()
    }
    left_out = [one for tellings in told.values() for one in tellings]
    for what, tested in _never_fitted(known, tuning).items():
        told[what] = _tell(tested, fitted.values())
    odd, even = ([cell for number, cell in tuned_cells(tuning) if number % 2 == rest] for rest in (1, 0))
    told[f"{_TUNED}, odd configurations: fitted on the even ones too"] = _tell(odd, [*fitted.values(), *even])
    hits = [[what, str(len(of)), *_shares(of)] for what, of in told.items() if of]
    confusion = [
        [effect, *(str(sum(one == (effect, guess) for one in left_out)) for guess in EFFECTS)]
        for effect in EFFECTS
    ]
    return "\n\n".join(
        [
            "## Do the first steps tell?",
            "A logistic regression of what a memory does to Recall@1 (help: more than "
            f"{_POINTS:g} point above No-XBM of the same seed and losses; harm: as much below) on three "
            f"numbers from the first {MEASUREMENTS} measurements with rows in memory: the push's share, the "
            "displacement, and valid positives from memory per one from the batch. The three were chosen "
            "with the short runs in sight, but no run below had a part in the fit that judged it. Beside its "
            "hits stands what the best constant answer would hit: the most frequent effect of the very runs "
            "that are judged.",
            table(["runs", "number", "hits", "constant answer"], hits),
            *_verdict(left_out, told[_TUNED]),
            "Short runs by what the memory did (rows) and what the first steps said (columns):",
            table(["", *EFFECTS], confusion),
        ]
    )


class Told(NamedTuple):
    """What a memory did, and what was said of it."""

    effect: str
    said: str


def _tell(tested: Iterable[Cell], fitted: Iterable[Cell]) -> list[Told]:
    tested = list(tested)
    said = predicted(tested, fitted) if tested else []
    return [Told(cell.effect, guess) for cell, guess in zip(tested, said, strict=True)]


def _never_fitted(known: dict[Case, Cell], tuning: Tuning) -> dict[str, list[Cell]]:
    kinds: dict[str, list[Cell]] = {"rows re-embedded": [], "other methods": [], "long runs": []}
    for case, cell in known.items():
        if not is_fitted_on(case):
            kind = "rows re-embedded" if case.refresh_every else "other methods"
            kinds["long runs" if case.regime == "converged" else kind].append(cell)
    return kinds | {_TUNED: [cell for _, cell in tuned_cells(tuning)]}


def _hits(told: list[Told]) -> tuple[float, float]:
    """Shares of runs, of the regression and of the best constant answer."""
    (_, number), *_ = Counter(one.effect for one in told).most_common(1)
    return sum(one.effect == one.said for one in told) / len(told), number / len(told)


def _shares(told: list[Told]) -> list[str]:
    return [f"{100 * share:.0f} %" for share in _hits(told)]


def _verdict(short: list[Told], tuned: list[Told]) -> list[str]:
    if not tuned:
        return []
    (in_short, _), (elsewhere, constant) = _hits(short), _hits(tuned)
    is_good = elsewhere > constant
    return [
        f"In short runs that differ in batch, memory and normalization it is right in {100 * in_short:.0f} "
        f"%, with other losses and learning rates in {100 * elsewhere:.0f} %, where one answer for all would "
        f"be right in {100 * constant:.0f} %. "
        + (
            "It holds beyond the runs that it was fitted on."
            if is_good
            else "**It does not hold for training that is set up otherwise, so the package has no such "
            "meter:** train with and without the memory."
        )
    ]
