"""The study's section on whether a run's first few hundred steps tell what a memory will do.

python -m benchmarks.study.meter    (prints the coefficients for pml_xbn.diagnostics.memory_meter)
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import NamedTuple

import numpy as np
from sklearn.linear_model import LogisticRegression

from benchmarks.engine.results import RESULTS
from benchmarks.study.cases import METHODS, WITH_PROXIES, Case
from benchmarks.study.data import Study
from benchmarks.study.figures import name_of
from benchmarks.study.tables import table
from benchmarks.tuning.results import Tuning
from pml_xbn.diagnostics.memory_meter import EFFECTS, MEASUREMENTS, Coefficients, means_of, memory_outlook

_POINTS = 1.0  # of Recall@1, from which on a difference counts
_NAMES = (
    *("push_share", "push_displacement"),
    *("valid_positives_from_memory", "valid_positives_from_batch"),
)


class Cell(NamedTuple):
    """What was measured of a run's first steps, and what the memory did to it."""

    measured: tuple[float, float, float]  # push share, displacement, positives from memory per one from batch
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


def tuned_cells(tuning: Tuning) -> list[Cell]:
    """The same of the search, where a method is compared with none in the same configuration."""
    without = {row["number"]: float(row["recall_at_1"]) for row in tuning.found("no-xbm")}
    return [
        Cell(
            (float(row["push_share"]), float(row["displacement"]), float(row["positives"])),
            _effect(float(row["recall_at_1"]) - without[row["number"]]),
        )
        for row in tuning.search
        if row.get("push_share") and row["number"] in without
    ]


def _effect(gain: float) -> str:
    return EFFECTS[(gain > -_POINTS) + (gain > _POINTS)]


def is_fitted_on(case: Case) -> bool:
    """Runs from the warm starts whose rows nobody re-embeds; all others are for the test."""
    return case.regime != "converged" and not case.refresh_every and case.method in METHODS


def fit(cells: Iterable[Cell]) -> Coefficients:
    """A logistic regression: for every effect the intercept and the weights, of two decimals."""
    cells = list(cells)
    x, effects = np.array([cell.measured for cell in cells]), [cell.effect for cell in cells]
    x[:, 2] = np.log1p(x[:, 2])
    mean, std = x.mean(axis=0), x.std(axis=0)
    model = LogisticRegression(max_iter=10_000, tol=1e-8).fit((x - mean) / std, effects)
    coefficients = []
    for effect in EFFECTS:
        number = list(model.classes_).index(effect)
        weights = model.coef_[number] / std
        numbers = model.intercept_[number] - weights @ mean, *weights
        coefficients.append(tuple(round(float(number), 2) for number in numbers))
    return tuple(coefficients)


def meter(study: Study, tuning: Tuning) -> str:
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
        told[what] = _tell(tested, list(fitted.values()))
    hits = [[what, str(len(of)), *_shares(of)] for what, of in told.items() if of]
    confusion = [
        [effect, *(str(sum(one[:2] == (effect, guess) for one in left_out)) for guess in EFFECTS)]
        for effect in EFFECTS
    ]
    return "\n\n".join(
        [
            "## Do the first steps tell?",
            "A logistic regression of what a memory does to Recall@1 (help: more than "
            f"{_POINTS:g} point above No-XBM of the same seed and losses; harm: as much below) on three "
            f"numbers from the first {MEASUREMENTS} measurements with rows in "
            "memory: the push's share, the displacement, and valid positives from memory per one from the "
            "batch. "
            "`pml_xbn.diagnostics.MemoryMeter` takes them in any loop. The three were chosen with these runs "
            "in sight, but no run below had a part in the fit that judged it. The majority vote is for the "
            "effect that is the most frequent among the runs of the fit.",
            table(["runs", "number", "hits", "majority vote"], hits),
            f"All settings of the first kind together: {_hits(left_out)}. Runs by what the memory did (rows) "
            "and what the first steps said (columns):",
            table(["", *EFFECTS], confusion),
        ]
    )


class Told(NamedTuple):
    """What a memory did, and what was said of it."""

    effect: str
    by_meter: str
    by_majority: str


def _tell(tested: list[Cell], fitted: list[Cell]) -> list[Told]:
    coefficients, votes = fit(fitted), Counter(cell.effect for cell in fitted)
    majority = votes.most_common(1)[0][0]
    return [
        Told(effect, memory_outlook(*measured, coefficients=coefficients).effect, majority)
        for measured, effect in tested
    ]


def _never_fitted(known: dict[Case, Cell], tuning: Tuning) -> dict[str, list[Cell]]:
    kinds: dict[str, list[Cell]] = {"rows re-embedded": [], "other methods": [], "trained to the end": []}
    for case, cell in known.items():
        if not is_fitted_on(case):
            kind = "rows re-embedded" if case.refresh_every else "other methods"
            kinds["trained to the end" if case.regime == "converged" else kind].append(cell)
    return kinds | {"other losses and learning rates": tuned_cells(tuning)}


def _shares(told: list[Told]) -> list[str]:
    by_meter = sum(one.effect == one.by_meter for one in told)
    by_majority = sum(one.effect == one.by_majority for one in told)
    return [f"{100 * hits / len(told):.0f} %" for hits in (by_meter, by_majority)]


def _hits(told: list[Told]) -> str:
    by_meter, by_majority = _shares(told)
    return f"{by_meter} hits, and {by_majority} by majority vote"


if __name__ == "__main__":
    for numbers in fit(cell for case, cell in cells(Study(RESULTS)).items() if is_fitted_on(case)):
        print(f"    {numbers},")
