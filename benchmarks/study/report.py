"""The page that the study's CSV files make: every number of it is computed here."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from statistics import fmean

from benchmarks.demo.settings import Settings
from benchmarks.study.cases import EPOCHS, REFRESH_EVERY, REFRESHED, SLOW_RATE
from benchmarks.study.converged import converged
from benchmarks.study.data import Difference, Setting, Study
from benchmarks.study.emoji import emoji
from benchmarks.study.figures import draw_accuracy, draw_ages, draw_along_the_way, name_of
from benchmarks.study.prediction import prediction
from benchmarks.study.proposed import memories, proposed
from benchmarks.study.tables import mean, spread, table, text
from benchmarks.study.takeaways import losses, takeaways
from benchmarks.tuning.report import tuned
from benchmarks.tuning.results import Tuning

_REFERENCES = tuple(REFRESHED.values())
_BASELINES = ("no-xbm", "xbm")
_NEARLY_ALL = 0.8
# Columns of the runs' file, what they are called in tables, and digits.
_DIAGNOSTICS = {
    "drift": ("drift", 3),
    "staleness_after": ("staleness", 3),
    "push_displacement": ("displacement", 3),
    "push_share": ("push's share", 2),
    "valid_positives_from_batch": ("positives, batch", 0),
    "valid_positives_from_memory": ("positives, memory", 0),
    "valid_negatives_from_batch": ("negatives, batch", 0),
    "valid_negatives_from_memory": ("negatives, memory", 0),
    "separability_criterion": ("separability", 2),
    "superclass_nearest": ("superclass nearest", 2),
}


def write_report(folder: Path) -> None:
    """Writes ``study.md`` and its pictures beside the CSV files."""
    study, tuning = Study(folder), Tuning(folder)
    fast = study.settings("fast", "batch")
    draw_accuracy(study, fast + study.settings("slow"), folder / "study_accuracy.png")
    draw_along_the_way(study, fast[-1], folder / "study_diagnostics.png")
    draw_ages(study, fast[0], folder / "study_ages.png")
    sections = [
        _head(study, tuning),
        _measured(study),
        emoji(study),
        converged(study, folder),
        tuned(tuning, folder),
        _cost_of_staleness(study),
        _age_or_displacement(study, fast),
        _repair(study, fast),
        _worth_having(study),
        _choice(study, fast),
        _losses(study),
        proposed(study),
        _slow(study),
        prediction(study, tuning),
    ]
    (folder / "study.md").write_text("\n\n".join(filter(None, sections)) + "\n")


def _head(study: Study, tuning: Tuning) -> str:
    done, planned = len(study.runs), len(study.planned)
    missing = "" if done == planned else f" **Unfinished: {done} of {planned} runs have been made.**"
    rows = (*study.runs.values(), *tuning.search, *tuning.tests)
    minutes = [float(row["minutes"]) for row in rows if row.get("minutes")]
    return f"""# When a memory helps: the study

Written by `python -m benchmarks.study --report` from the CSV files beside it, which
`python -m benchmarks.study` and `python -m benchmarks.tuning` write. On Glyphs where nothing else is said,
on a CPU. The
{len(minutes)} of {len(rows)} runs that noted it took {sum(minutes) / 60:.1f} hours of one core.{missing}

## In short

{takeaways(study, tuning)}"""


def _measured(study: Study) -> str:
    seeds = sorted({case.seed for case in study.runs if not case.is_from_random_weights})
    epochs = ", ".join(
        f"{without} + {with_memory} epochs at batch {batch_size}"
        for (regime, batch_size), (without, with_memory) in EPOCHS.items()
        if regime == "fast"
    )
    refreshes = ", ".join(
        f"{_every(steps)} with a memory of {100 * ratio:g} %" for ratio, steps in REFRESH_EVERY.items()
    )
    return f"""## How it was measured

Seeds {", ".join(map(str, seeds))}. AdamW at {Settings.learning_rate:g}, and the loss, miner and small
convolutional network of the demo. Recall@1 and MAP@R, in per cent, are those after the last epoch, as
mean ± standard deviation over seeds. Differences are paired by seed; ± there is half the 95 % interval of
the mean by Student's t, which is wide with few seeds. But for the long runs and those of the search, all
methods of a setting and seed start from one shared warm start without memory and see the same batches:
{epochs}, the learning rate times
{Settings.decay:g} every second epoch. *Always-fresh* is XBM whose rows are re-embedded by the current model,
in training mode and in the batches they came in: {refreshes}.
*Always-fresh + matching* puts XBN's matching on top. *Ema* is XBN with a momentum of 0.5 (the best that the
AXBN paper found is 0.1), *centre* with `match_std=False`, *unit-norm* with `normalize_memory=True`, and
*delayed* with a `delay` of one epoch."""


def _cost_of_staleness(study: Study) -> str:
    settings = study.settings("fast")
    lines = [
        [
            name_of(setting),
            *(spread(study, name, setting, "recall_at_1") for name in _BASELINES),
            text(study.difference("xbm", "no-xbm", setting, "recall_at_1")),
            text(study.difference("xbm", "no-xbm", setting, "map_at_r")),
        ]
        for setting in settings
    ]
    costs = [study.difference("xbm", "no-xbm", setting, "recall_at_1") for setting in settings]
    known = [cost.mean for cost in costs if cost is not None]
    below = sum(cost < 0 for cost in known)
    return "\n\n".join(
        [
            "## What does a stale memory cost?",
            f"XBM ends below No-XBM in {below} of {len(known)} settings; the difference in Recall@1 goes "
            f"from {min(known):+.1f} to {max(known):+.1f} points.",
            table(
                ["setting", "No-XBM, Recall@1", "XBM, Recall@1", "difference", "difference in MAP@R"], lines
            ),
            "![Recall@1 of every method, setting by setting](study_accuracy.png)",
        ]
    )


def _age_or_displacement(study: Study, settings: list[Setting]) -> str:
    names = ("xbm", "centre", "xbn", *_REFERENCES)
    lines = [
        [
            name_of(setting),
            name,
            spread(study, name, setting, "recall_at_1"),
            *(
                mean(study, name, setting, column, digits)
                for column, digits in (
                    ("staleness_before", 3),
                    ("staleness_after", 3),
                    ("push_displacement", 3),
                    ("push_cosine", 2),
                    ("push_share", 2),
                )
            ),
        ]
        for setting in settings
        for name in names
        if name in study.methods(setting)
    ]
    return "\n\n".join(
        [
            "## Is it age or displacement?",
            "If age alone did the harm, rows nearer to their fresh embeddings would train better. If the "
            "common displacement of the memory did it, taking that away would do, whatever it does to "
            "single rows.",
            "\n".join(f"* {clue}" for clue in _clues(study, settings)),
            _verdict(study, settings),
            "Means over the measured steps with memory. Staleness is the distance of a row to the fresh "
            "embedding of its image, the displacement that of the means of memory and batch, all of unit "
            "vectors and the latter as the loss sees them. The push's cosine is that of the mean gradient "
            "and the displacement (positive: a step moves the anchors further from the memory); its share is "
            "the mean gradient's length over the root mean square.",
            table(
                [
                    *(
                        "setting",
                        "method",
                        "Recall@1",
                        "staleness before",
                        "after adaptation",
                        "displacement",
                    ),
                    *("push: cosine", "share"),
                ],
                lines,
            ),
            "![Staleness, push and displacement along the way](study_diagnostics.png)",
            "![Staleness by the age of rows](study_ages.png)",
        ]
    )


def _clues(study: Study, settings: list[Setting]) -> Iterator[str]:
    for norm in ("batch", "group"):
        of_norm = [s for s in study.settings("fast", norm) if s[0] == 64]
        if len(of_norm) < 2:
            continue
        old, young = of_norm
        change = study.change("xbm", young, old, "recall_at_1")
        distances = [mean(study, "xbm", s, "staleness_before", 3) for s in (young, old)]
        yield (
            f"{name_of(young)}: against a memory of {100 * old[1]:g} %, younger rows change XBM's Recall@1 "
            f"by {text(change)}. They are {distances[0]} from their fresh embeddings, the older "
            f"{distances[1]}."
        )
    for setting in settings:
        fresh, centre = _repairs(study, setting)
        if fresh is None or centre is None:
            continue
        steps = REFRESH_EVERY[setting[1]]
        distances = [mean(study, "centre", setting, f"staleness_{when}", 3) for when in ("before", "after")]
        yield (
            f"{name_of(setting)}: rows that are fresh {_every(steps)} change XBM's Recall@1 by {fresh}, "
            f"shifting the means alone by {centre}. A shift takes the distance of a row to its fresh "
            f"embedding from {distances[0]} to {distances[1]}."
        )
        if steps == 1:
            displacement = mean(study, "always-fresh", setting, "push_displacement", 3)
            to_none = study.difference("always-fresh", "no-xbm", setting, "recall_at_1")
            yield (
                f"{name_of(setting)}: sampling alone puts the mean of fresh rows {displacement} from the "
                f"batch's, and Recall@1 with them differs from No-XBM's by {text(to_none)}."
            )
    for name in ("xbm", "always-fresh"):
        cosines = [fmean(c.values()) for s in settings if (c := study.values(name, s, "push_cosine"))]
        shares = [fmean(c.values()) for s in settings if (c := study.values(name, s, "push_share"))]
        if cosines:
            away = sum(cosine > 0 for cosine in cosines)
            yield (
                f"{name}: the push on the anchors points away from the memory in {away} of {len(cosines)} "
                f"settings, and is {min(shares):.2f} to {max(shares):.2f} of the gradient."
            )


def _verdict(study: Study, settings: list[Setting]) -> str:
    """Judged where rows were fresh at every step."""
    shares, distances, gains = [], [], []
    for setting in settings:
        fresh, centre = _repairs(study, setting)
        if REFRESH_EVERY[setting[1]] == 1 and fresh is not None and centre is not None:
            shares.append(centre.mean / fresh.mean)
            distances.append(fmean(study.values("centre", setting, "staleness_after").values()))
            gains.append(study.difference("always-fresh", "no-xbm", setting, "recall_at_1"))
    if not shares:
        return "No setting has been measured yet that could tell."
    told = (
        f"Shifting the means alone brings {100 * min(shares):.0f} to {100 * max(shares):.0f} % of what rows "
        f"bring that are fresh at every step, with rows that stay {min(distances):.3f} to "
        f"{max(distances):.3f} from their fresh embeddings."
    )
    if min(shares) < _NEARLY_ALL:
        return f"{told} **Displacement alone does not explain the harm.**"
    verdict = f"{told} **It is the displacement, not the age of single rows.**"
    if all(gain is not None and gain.mean > 0 for gain in gains):
        verdict += (
            " But not every displacement harms, nor every push: fresh rows, which sampling displaces, train "
            "better than no memory. What harms must come of the model's own drift."
        )
    return verdict


def _repairs(study: Study, setting: Setting) -> list[Difference | None]:
    """What fresh rows, and shifted means, add to XBM's Recall@1."""
    return [study.difference(name, "xbm", setting, "recall_at_1") for name in ("always-fresh", "centre")]


def _every(steps: int) -> str:
    return "at every step" if steps == 1 else f"every {steps} steps"


def _repair(study: Study, settings: list[Setting]) -> str:
    parts = [
        "## How much does each variant repair?",
        "Under the results of each setting, what the diagnostics say. Means over the measured steps: drift "
        "per step, staleness after adaptation, displacement and push as above, and valid pairs per batch, "
        "from the batch and from memory (XBM, Fig. 4). Of test embeddings after the last epoch: the class "
        "separability criterion (SGSL, Eq. 9; between classes over within), and the share whose nearest "
        "superclass mean is that of their own.",
    ]
    for setting in (*settings, *study.settings("fast", "group")):
        parts += [f"### {name_of(setting)}", _comparison(study, setting), _diagnostics(study, setting)]
    return "\n\n".join(parts)


def _comparison(study: Study, setting: Setting) -> str:
    lines = []
    for name in study.methods(setting):
        differences = [
            "" if name == other else text(study.difference(name, other, setting, figure))
            for figure in ("recall_at_1", "map_at_r")
            for other in reversed(_BASELINES)
        ]
        lines.append(
            [
                name,
                spread(study, name, setting, "recall_at_1"),
                *differences[:2],
                spread(study, name, setting, "map_at_r"),
                *differences[2:],
            ]
        )
    columns = ["method"]
    for figure in ("Recall@1", "MAP@R"):
        columns += [figure, "to XBM", "to No-XBM"]
    return table(columns, lines)


def _diagnostics(study: Study, setting: Setting) -> str:
    lines = [
        [name, *(mean(study, name, setting, column, digits) for column, (_, digits) in _DIAGNOSTICS.items())]
        for name in study.methods(setting)
    ]
    return table(["method", *(label for label, _ in _DIAGNOSTICS.values())], lines)


def _worth_having(study: Study) -> str:
    lines = []
    for setting in (s for regime in ("fast", "slow", "converged") for s in study.settings(regime)):
        candidates = [n for n in memories(study, setting) if n not in ("no-xbm", *_REFERENCES)]
        known = {n: study.difference(n, "no-xbm", setting, "recall_at_1") for n in candidates}
        seeds = max((len(gain.gaps) for gain in known.values() if gain is not None), default=0)
        gains = {name: gain for name, gain in known.items() if gain is not None and len(gain.gaps) == seeds}
        if gains:
            best = max(gains, key=lambda name: gains[name].mean)
            verdict = {1: "yes", 0: "not shown", -1: "no"}[gains[best].sign]
            lines.append([name_of(setting), best, str(gains[best]), verdict])
    yes = sum(line[-1] == "yes" for line in lines)
    return "\n\n".join(
        [
            "## When is a memory worth having at all?",
            f"In {yes} of {len(lines)} settings the best memory is above none by more than chance. The best "
            "of several is a little lucky: read small gains as none.",
            table(["setting", "best memory", "Recall@1 to No-XBM", "interval above zero"], lines),
        ]
    )


def _choice(study: Study, settings: list[Setting]) -> str:
    lines = []
    for name in dict.fromkeys(n for setting in settings for n in memories(study, setting)):
        if name in ("no-xbm", *_REFERENCES):
            continue
        gains = [study.difference(name, "no-xbm", setting, "recall_at_1") for setting in settings]
        known = [gain.mean for gain in gains if gain is not None]
        if len(known) == len(settings):
            lines.append((fmean(known), [name, f"{fmean(known):+.1f}", f"{min(known):+.1f}"]))
    lines.sort(key=lambda line: -line[0])
    safe = [line[0] for _, line in lines if not line[2].startswith("-")]
    return "\n\n".join(
        [
            "## Which variant and setting?",
            "Recall@1 to No-XBM with BatchNorm, mean and worst over the settings of the fast regime:",
            table(["method", "mean", "worst setting"], [line for _, line in lines]),
            f"Nowhere below No-XBM: {', '.join(safe) or 'none'}.",
        ]
    )


def _losses(study: Study) -> str:
    lines = [
        [name_of(setting), name, other, str(gap), "yes" if gap.sign < 0 else "no"]
        for setting, name, other, gap in losses(study)
    ]
    return "\n\n".join(
        [
            "## Where our classes lose",
            "Every setting in which one of them ends below No-XBM or XBM:",
            table(["setting", "method", "loses to", "Recall@1", "interval below zero"], lines),
        ]
    )


def _slow(study: Study) -> str:
    without, with_memory = EPOCHS["slow", 64]
    parts = [
        "## Slow drift",
        f"From a model trained without memory for {without} epochs, {with_memory} more at {SLOW_RATE:g} of "
        "the learning rate: what comes closest to the papers' slow fine-tuning.",
    ]
    for setting in study.settings("slow"):
        drifts = [study.values("no-xbm", s, "drift") for s in (setting, (*setting[:3], "fast"))]
        if all(drifts):
            slow, fast = (fmean(values.values()) for values in drifts)
            parts.append(f"Feature drift per step without memory: {slow:.4f}, in the fast regime {fast:.4f}.")
        parts.append(
            "The thesis found XBN ≈ XBM > No-XBM there (Table 5.4). Here XBN differs from XBM by "
            f"{text(study.difference('xbn', 'xbm', setting, 'recall_at_1'))}, XBM from No-XBM by "
            f"{text(study.difference('xbm', 'no-xbm', setting, 'recall_at_1'))}."
        )
        parts += [_comparison(study, setting), _diagnostics(study, setting)]
    return "\n\n".join(parts)
