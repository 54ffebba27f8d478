"""The study's section on one random search for all methods."""

from __future__ import annotations

from statistics import median

from benchmarks.engine.intervals import paired
from benchmarks.engine.results import markdown, spread
from benchmarks.tuning.results import AGAIN, FIGURE, METHODS, SUBGROUPS, Tuning
from benchmarks.tuning.space import CHOICES, DEFAULTS, LOGARITHMIC, RANGES, draw


def tuned(tuning: Tuning) -> str:
    """Returns the section; empty before the first run."""
    found = {method: rows for method in METHODS if (rows := tuning.searched(method))}
    if not found:
        return ""
    draws = min(map(len, found.values()))
    minutes = sum(float(row["minutes"]) for row in tuning.runs.values())
    parts = [
        "## One random search for all",
        f"Emoji, batch 64, MAP@R. {draws} draws, the same for every method; the first two are the defaults, "
        f"without and with a warm-up: {_space()}. XBM has no loss of the batch, XBM* has it, of XBN it is "
        "drawn; no memory is filled. Each draw is trained on two thirds of the training classes and judged "
        "on the rest; the five best of a method again with three more seeds; the best of these for longer "
        "on all training classes, and tested once, on classes that no run of the study was scored on. "
        "Differences of the search are paired by draw. The subgroups stand in "
        "`benchmarks/tuning/subgroups.json`, written before the first run.",
        markdown(
            ["method", "defaults", "median", "best", "best again", "XBN to it, all", *SUBGROUPS],
            [_searched(tuning, method) for method in found],
            ["method"],
        ),
    ]
    tested = [method for method in found if tuning.tested(method, FIGURE)]
    if tested:
        parts += [
            "The best of each, and the one last test:",
            markdown(
                ["method", "draw", *(name.replace("_", " ") for name in (*CHOICES, *RANGES))],
                [_best(tuning, method) for method in tested],
                ["method", "loss"],
            ),
            markdown(
                ["method", "seeds", "Recall@1", "XBN to it", "MAP@R", "XBN to it"],
                [_tested(tuning, method) for method in tested],
                ["method"],
            ),
        ]
    return "\n\n".join([*parts, f"These runs took {minutes / 60:.1f} hours of training, each on one core."])


def _space() -> str:
    words = [f"{name.replace('_', ' ')} {' or '.join(map(str, of))}" for name, of in CHOICES.items()]
    words += [
        f"{name.replace('_', ' ')} {low:g} to {high:g}" + " (logarithmic)" * (name in LOGARITHMIC)
        for name, (low, high) in RANGES.items()
    ]
    return ", ".join(words)


def _searched(tuning: Tuning, method: str) -> list[str]:
    rows = tuning.searched(method)
    values = {number: float(row[FIGURE]) for number, row in rows.items()}
    defaults = ", ".join(f"{values[one.number]:.1f}" for one in DEFAULTS if one.number in values)
    again = list(tuning.seeds(AGAIN, method, tuning.best(method)).values())
    cells = [method, defaults, f"{median(values.values()):.1f}", f"{max(values.values()):.1f}", spread(again)]
    parts = [lambda row: True, *SUBGROUPS.values()]
    return cells + [
        "" if method == "xbn" else str(tuning.draw_difference("xbn", method, p) or "–") for p in parts
    ]


def _best(tuning: Tuning, method: str) -> list[str]:
    """Returns its values, but for those that its method or loss does not have."""
    best = draw(tuning.best(method) or 0)
    unused = {"memory_share", "warmup"} if method == "no-xbm" else set()
    unused |= {"temperature"} if best.loss == "contrastive" else {"positive_margin", "negative_margin"}
    unused |= set() if method == "xbn" else {"batch_loss_weight"}
    cells = ["" if n in unused else getattr(best, n) for n in (*CHOICES, *RANGES)]
    return [method, str(best.number), *(c if isinstance(c, str) else f"{c:.2g}" for c in cells)]


def _tested(tuning: Tuning, method: str) -> list[str]:
    cells = [method, str(len(tuning.tested(method, FIGURE)))]
    for figure in ("recall_at_1", FIGURE):
        ours = tuning.tested(method, figure)
        cells += [spread(list(ours.values()))]
        cells += ["" if method == "xbn" else str(paired(tuning.tested("xbn", figure), ours) or "–")]
    return cells
