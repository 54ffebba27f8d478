"""The page that the study's CSV files make: every number of it is computed here."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from statistics import fmean, stdev

from study_data import Difference, Setting, Study
from study_figures import draw_accuracy, draw_ages, draw_along_the_way, name_of

_REFERENCES = ("always-fresh", "always-fresh + matching")
_BASELINES = ("no-xbm", "xbm")


def write_report(folder: Path) -> None:
    """Writes ``study.md`` and its pictures beside the CSV files."""
    study = Study(folder)
    fast = study.settings("fast", "batch")
    draw_accuracy(study, fast + study.settings("slow"), folder / "study_accuracy.png")
    draw_along_the_way(study, fast[-1], folder / "study_diagnostics.png")
    draw_ages(study, fast[0], folder / "study_ages.png")
    sections = [
        _introduction(study),
        _cost_of_staleness(study),
        _age_or_displacement(study, fast),
        _repair(study, fast),
        _worth_having(study),
        _choice(study, fast),
        _losses(study),
        _slow(study),
    ]
    (folder / "study.md").write_text("\n\n".join(sections) + "\n")


def _introduction(study: Study) -> str:
    done, planned = len(study.runs), len(study.planned)
    seeds = sorted({case.seed for case in study.runs})
    missing = "" if done == planned else f" **Unfinished: {done} of {planned} runs have been made.**"
    return f"""# When a memory helps: the study

Written by `python benchmarks/study.py --report` from `study_runs.csv`, `study_curves.csv` and
`study_ages.csv`; `python benchmarks/study.py` makes the runs, on Glyphs, on a CPU.{missing}

Seeds {", ".join(map(str, seeds))}. All methods of a setting and seed start from one shared warm start
without memory and see the same batches: 2 + 4 epochs at batch 64, 1 + 3 at batch 16, AdamW at 1e-3, times
0.33 every second epoch, SupCon with temperature 0.1 and PairMarginMiner(0.2, 0.8), the small convolutional
network of the demo. Recall@1 and MAP@R, in per cent, are those after the last epoch, as mean ± standard
deviation over seeds. Differences are paired by seed; ± there is half the 95 % interval of the mean by
Student's t, which is wide with few seeds. *Always-fresh* is XBM whose rows are re-embedded by the current
model, in training mode and in the batches they came in, at every step (every 20 steps with a memory of 50 %);
*always-fresh + matching* puts XBN's matching on top."""


def _cost_of_staleness(study: Study) -> str:
    settings = study.settings("fast")
    lines = [
        [
            name_of(setting),
            *(_spread(study, name, setting, "recall_at_1") for name in _BASELINES),
            _text(study.difference("xbm", "no-xbm", setting, "recall_at_1")),
            _text(study.difference("xbm", "no-xbm", setting, "map_at_r")),
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
            _table(
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
            _spread(study, name, setting, "recall_at_1"),
            *(
                _mean(study, name, setting, column, digits)
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
    sentences = []
    for setting in settings:
        fresh = study.difference("always-fresh", "xbm", setting, "recall_at_1")
        centre = study.difference("centre", "xbm", setting, "recall_at_1")
        if fresh is None or centre is None:
            continue
        staleness = [study.values("centre", setting, f"staleness_{when}") for when in ("before", "after")]
        before, after = (fmean(values.values()) for values in staleness)
        sentences.append(
            f"* {name_of(setting)}: fresh rows change XBM's Recall@1 by {fresh}, shifting the means alone by "
            f"{centre}. The shift takes the distance of a row to its fresh embedding from {before:.3f} to "
            f"{after:.3f}."
        )
    return "\n\n".join(
        [
            "## Is it age or displacement?",
            "If age alone did the harm, rows nearer to their fresh embeddings would train better. If the "
            "common displacement of the memory did it, taking that away would do, whatever it does to "
            "single rows.",
            "\n".join(sentences),
            "Means over the measured steps with memory. Staleness is the distance of a row to the fresh "
            "embedding of its image, the displacement that of the means of memory and batch, all of unit "
            "vectors and the latter as the loss sees them. The push's cosine is that of the mean gradient "
            "and the displacement (positive: a step moves the anchors further from the memory); its share is "
            "the mean gradient's length over the root mean square.",
            _table(
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


def _repair(study: Study, settings: list[Setting]) -> str:
    parts = ["## How much does each variant repair?"]
    for setting in (*settings, *study.settings("fast", "group")):
        parts += [f"### {name_of(setting)}", _comparison(study, setting)]
    return "\n\n".join(parts)


def _comparison(study: Study, setting: Setting) -> str:
    lines = []
    for name in study.methods(setting):
        differences = [
            "" if name == other else _text(study.difference(name, other, setting, figure))
            for figure in ("recall_at_1", "map_at_r")
            for other in reversed(_BASELINES)
        ]
        lines.append(
            [
                name,
                _spread(study, name, setting, "recall_at_1"),
                *differences[:2],
                _spread(study, name, setting, "map_at_r"),
                *differences[2:],
            ]
        )
    columns = ["method"]
    for figure in ("Recall@1", "MAP@R"):
        columns += [figure, "to XBM", "to No-XBM"]
    return _table(columns, lines)


def _worth_having(study: Study) -> str:
    lines = []
    for setting in (*study.settings("fast"), *study.settings("slow")):
        candidates = [n for n in study.methods(setting) if n not in ("no-xbm", *_REFERENCES)]
        known = {n: study.difference(n, "no-xbm", setting, "recall_at_1") for n in candidates}
        gains = {name: gain for name, gain in known.items() if gain is not None}
        if gains:
            best = max(gains, key=lambda name: gains[name].mean)
            verdict = {1: "yes", 0: "not shown", -1: "no"}[gains[best].sign]
            lines.append([name_of(setting), best, str(gains[best]), verdict])
    return "\n\n".join(
        [
            "## When is a memory worth having at all?",
            "The best memory of each setting against none. The best of several is a little lucky: read "
            "small gains as none.",
            _table(["setting", "best memory", "Recall@1 to No-XBM", "interval above zero"], lines),
        ]
    )


def _choice(study: Study, settings: list[Setting]) -> str:
    lines = []
    for name in dict.fromkeys(n for setting in settings for n in study.methods(setting)):
        if name in ("no-xbm", *_REFERENCES):
            continue
        gains = [study.difference(name, "no-xbm", setting, "recall_at_1") for setting in settings]
        known = [gain.mean for gain in gains if gain is not None]
        if len(known) == len(settings):
            lines.append((fmean(known), [name, f"{fmean(known):+.1f}", f"{min(known):+.1f}"]))
    lines.sort(key=lambda line: -line[0])
    return "\n\n".join(
        [
            "## Which variant and setting?",
            "Recall@1 to No-XBM with BatchNorm, mean and worst over the settings of the fast regime:",
            _table(["method", "mean", "worst setting"], [line for _, line in lines]),
        ]
    )


def _losses(study: Study) -> str:
    lines = []
    for setting in (*study.settings("fast"), *study.settings("slow")):
        for name in study.methods(setting):
            if name in (*_BASELINES, *_REFERENCES, "xbm-star"):
                continue
            for other in _BASELINES:
                gap = study.difference(name, other, setting, "recall_at_1")
                if gap is not None and gap.mean < 0:
                    lines.append([name_of(setting), name, other, str(gap), "yes" if gap.sign < 0 else "no"])
    return "\n\n".join(
        [
            "## Where our classes lose",
            "Every setting in which one of them ends below No-XBM or XBM:",
            _table(["setting", "method", "loses to", "Recall@1", "interval below zero"], lines),
        ]
    )


def _slow(study: Study) -> str:
    parts = [
        "## Slow drift",
        "From a model trained without memory for six epochs, four more at a tenth of the learning rate: what "
        "comes closest to the papers' slow fine-tuning. The thesis found XBN ≈ XBM > No-XBM there "
        "(Table 5.4).",
    ]
    for setting in study.settings("slow"):
        drift = study.values("no-xbm", setting, "drift")
        if drift:
            parts.append(f"Feature drift per step without memory: {fmean(drift.values()):.4f}.")
        parts.append(_comparison(study, setting))
    return "\n\n".join(parts)


def _spread(study: Study, name: str, setting: Setting, figure: str) -> str:
    values = list(study.values(name, setting, figure).values())
    if not values:
        return "–"
    return f"{fmean(values):.1f}" + (f" ± {stdev(values):.1f}" if len(values) > 1 else "")


def _mean(study: Study, name: str, setting: Setting, figure: str, digits: int) -> str:
    values = list(study.values(name, setting, figure).values())
    return f"{fmean(values):.{digits}f}" if values else "–"


def _text(difference: Difference | None) -> str:
    return "–" if difference is None else str(difference)


def _table(columns: list[str], lines: Iterable[list[str]]) -> str:
    rows = [columns, [":--"] + ["--:"] * (len(columns) - 1), *lines]
    return "\n".join("| " + " | ".join(row) + " |" for row in rows)
