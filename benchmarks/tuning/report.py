"""The study's section on one random search for all methods."""

from __future__ import annotations

from statistics import quantiles, stdev

from benchmarks.engine.results import markdown, spread
from benchmarks.tuning.results import METHODS, PARTS, Row, Tuning
from benchmarks.tuning.space import CHOICES, LOGARITHMIC, RANGES

_NEAR = 2.0  # points of MAP@R


def tuned(tuning: Tuning) -> str:
    """The section; empty before the first run."""
    found = {method: rows for method in METHODS if (rows := tuning.found(method))}
    if not found:
        return ""
    numbers = " to ".join(map(str, sorted({len(rows) for rows in found.values()})))
    tests = [_tested(tuning, method) for method in found if tuning.tested(method, "map_at_r")]
    minutes = sum(float(row["minutes"]) for row in (*tuning.search, *tuning.tests))
    parts = [
        "## One random search for all",
        f"The same {numbers} random configurations for every method: {_space()}. Batch 64; distortions, and "
        "the shares of the epochs after which the learning rate falls, as in the long runs. Each was "
        "trained with a third of the epochs on two thirds of the training classes, and judged by MAP@R on "
        "the rest: the best, the median, the middle half and the standard deviation of a method's "
        f"configurations, how many are within {_NEAR:g} points of the best of all methods, and the "
        "difference to No-XBM, paired by configuration. " + _warning(found),
        markdown(
            [
                *("method", "best", "median", "middle half", "deviation", "near the best", "to No-XBM"),
                *(f"to No-XBM, {part}" for part in PARTS),
            ],
            [_searched(tuning, found, method) for method in found],
            ["method"],
        ),
        "The best of each:",
        markdown(
            ["method", *CHOICES, *RANGES],
            [_best(method, rows[0]) for method, rows in found.items()],
            ["method", "loss"],
        ),
    ]
    if tests:
        seeds = ", ".join(map(str, sorted({int(row["seed"]) for row in tuning.tests})))
        columns = [
            f"{of}{what}"
            for of in ("Recall@1", "MAP@R")
            for what in ("", " of each seed", ", to No-XBM", ", to XBM")
        ]
        parts += [
            f"Trained for three times as long on all training classes with the new seeds {seeds}, and tested "
            "once, on classes that the search has not seen; other runs of the study were scored on them:",
            markdown(["method", *columns], tests, ["method"]),
        ]
    return "\n\n".join([*parts, f"These runs took {minutes / 60:.1f} hours of training, each on one core."])


def _warning(found: dict[str, list[Row]]) -> str:
    """What the search cannot tell."""
    rows = max(found.values(), key=len)
    suited = [row for row in rows if row["loss"] == "supcon"]
    full = sum(float(row["memory_share"]) == 1 for row in suited)
    return (
        f"{len(suited)} of {len(rows)} draws have SupConLoss, {full} of them with the full memory; the "
        "defaults are not among the draws and do better. Read it as a search, not as methods that are "
        "tuned alike. The parts by learning rate were chosen after it."
    )


def _space() -> str:
    words = [f"{_words(name)} {' or '.join(map(_shown, choices))}" for name, choices in CHOICES.items()]
    words += [
        f"{_words(name)} {low:g} to {high:g}" + (" (logarithmic)" if name in LOGARITHMIC else "")
        for name, (low, high) in RANGES.items()
    ]
    return ", ".join(words)


def _words(name: str) -> str:
    return name.replace("_", " ")


def _shown(value: str | float) -> str:
    return value if isinstance(value, str) else f"{value:g}"


def _validated(rows: list[Row]) -> list[float]:
    return [float(row["map_at_r"]) for row in rows]


def _searched(tuning: Tuning, found: dict[str, list[Row]], method: str) -> list[str]:
    values = _validated(found[method])
    best = max(_validated(rows)[0] for rows in found.values())
    low, middle, high = quantiles(values, n=4, method="inclusive") if len(values) > 1 else values * 3
    return [
        method,
        f"{values[0]:.1f}",
        f"{middle:.1f}",
        f"{low:.1f} to {high:.1f}",
        f"{stdev(values):.1f}" if len(values) > 1 else "–",
        f"{sum(value >= best - _NEAR for value in values)} of {len(values)}",
        *(
            "" if method == "no-xbm" else str(tuning.of_configurations(method, "no-xbm", *part) or "–")
            for part in ((), *((is_part,) for is_part in PARTS.values()))
        ),
    ]


def _best(method: str, row: Row) -> list[str]:
    """Its values, but for those that its method or loss does not have."""
    unused = {"memory_share", "warmup"} if method == "no-xbm" else set()
    unused |= {"temperature"} if row["loss"] == "contrastive" else {"positive_margin", "negative_margin"}
    return [
        method,
        *(
            "" if name in unused else row["loss"] if name == "loss" else f"{float(row[name]):.2g}"
            for name in (*CHOICES, *RANGES)
        ),
    ]


def _tested(tuning: Tuning, method: str) -> list[str]:
    cells = [method]
    for figure in ("recall_at_1", "map_at_r"):
        of_seeds = [value for _, value in sorted(tuning.tested(method, figure).items())]
        cells += [spread(of_seeds), ", ".join(f"{value:.1f}" for value in of_seeds)]
        cells += [
            "" if method == other else str(tuning.difference(method, other, figure) or "–")
            for other in ("no-xbm", "xbm")
        ]
    return cells
