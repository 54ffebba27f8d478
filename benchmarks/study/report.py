"""The page that the CSV files make: every number of it is computed here."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from statistics import fmean

from benchmarks.engine.intervals import paired
from benchmarks.engine.results import markdown, spread
from benchmarks.study.budget import Budget
from benchmarks.study.cases import BUDGETS, OTHER_RATES, REGIMES
from benchmarks.study.fine_tuning_report import write_fine_tuning
from benchmarks.study.measured import PUBLISHED, Setting, Study, published_in
from benchmarks.tuning.report import tuned
from benchmarks.tuning.results import Tuning
from benchmarks.two_towers.report import BASELINE, both, experiments, gains, title

_NONE, _STAR, _XBN, _MOMENTUM = "no-xbm", "xbm-star", "xbn", "xbm+momentum 0.99"
_SHORT = ("fast", "slow")
_LITTLE = 0.5  # points of Recall@1
_TITLES = {
    "fast": "Glyphs, short runs at the full learning rate",
    "slow": "Glyphs, short runs of a trained model at a tenth of the learning rate",
    "converged": "Glyphs, 30 epochs (12 at batch 16)",
}
_HEAD = """# When a memory helps: the study

Written by `python -m benchmarks.study --report` from the CSV files beside it, which `benchmarks.study`,
`benchmarks.two_towers` and `benchmarks.tuning` write. All runs were on a CPU; {made} of {planned} planned
runs of the study have been made, and the {timed} that noted it took {hours:.1f} hours of one core.

Recall@1 and MAP@R, in per cent, are those after the last epoch: the mean over seeds, and their standard
deviation (sd). Differences are in points and paired by seed; ± is half the 95 % interval of their mean by
Student's t, of these pairs alone, on fixed test classes. Three pairs tell little of their own variance: with
three seeds such an interval is wide, or narrow by chance. No correction is made for {number} intervals: of
methods that do not differ, one in twenty lies on one side of zero. A seed on another machine is another draw.

*xbm* is PML's class without warm-up, *xbm+warm-up* XBM as its paper prescribes it (1,000 steps without
memory, 31 % of 60 epochs of Emoji, or one epoch where that is said; then filled), *xbm-star* XBM beside the
loss of the batch (`batch_loss_weight=1`), without warm-up where none is said, *momentum* XBM whose rows come
from a moving average of the model, *centre* XBN with `match_std=False`, *ema* with `momentum=0.5`.
*Always-fresh* rows are embedded anew by the current model at every step; *oldest* embeds the oldest batch
anew before every step. An epoch of batch 512 has 2 % (Glyphs) and 11 % (Emoji) fewer images than one of batch
64, which divides them with a smaller rest."""


def write_report(folder: Path) -> None:
    """Writes ``study.md`` and ``fine_tuning.md`` beside the CSV files."""
    study = Study(folder)
    regimes = [regime for regime in REGIMES if study.settings(regime)]
    sections = [_regime(study, regime) for regime in sorted(regimes, key=lambda name: name in _SHORT)]
    parts = [_domain_table(study, folder), _budget_curve(study), *sections, tuned(Tuning(folder))]
    minutes = [float(row["cpu_minutes"]) for row in study.runs.values() if row.get("cpu_minutes")]
    head = _HEAD.format(
        made=len(study.runs),
        planned=len(study.planned),
        timed=len(minutes),
        hours=sum(minutes) / 60,
        number=sum(part.count("(±") for part in parts),
    )
    page = "\n\n".join(part for part in (head, *parts) if part)
    (folder / "study.md").write_text(page + "\n", encoding="utf-8")
    write_fine_tuning(study, folder)


def _image_lines(study: Study) -> Iterator[list[str]]:
    """Yields the lines of one tower, Glyphs and Emoji."""
    for regime in REGIMES:
        for setting in study.settings(regime):
            to_none = study.differences(setting, _NONE)
            published = published_in(to_none)
            names = (published, "xbm", _STAR, _XBN)
            to_published = study.differences(setting, published).get(_XBN) if published else None
            if setting[2] == "batch" and _XBN in to_none:
                cells = [str(to_none.get(name or "", "–")) for name in names]
                none = list(study.values(_NONE, setting).values())
                yield [_name(setting), spread(none), *cells, str(to_published or "–")]


def _two_tower_lines(folder: Path) -> Iterator[list[str]]:
    """Yields the lines of two towers."""
    for experiment, rows in experiments(folder).items():
        to_none, to_stale = gains(rows), gains(rows, "stale-star")
        with_batch_loss = to_none.get("adapted-star", "–")
        yield [
            f"two towers: {title(dict(experiment))}",
            spread([both(row) for row in rows if row["method"] == BASELINE]),
            *(str(to_none.get(name, "–")) for name in ("", "stale", "stale-star", "adapted")),
            f"with the batch's loss {with_batch_loss}, to XBM* {to_stale.get('adapted-star', '–')}",
        ]


def _domain_table(study: Study, folder: Path) -> str:
    """Returns one line per domain and setting: what the plain choices gain there."""
    return "\n\n".join(
        [
            "## Across domains",
            "Points of Recall@1 to no memory, and of XBN to XBM as published. Of two towers *XBM* is the "
            "stale memory after an epoch of warm-up, and Recall@1 the mean of both directions.",
            markdown(
                ["setting", "none", "XBM as published", "XBM", "XBM*", "XBN", "XBN to XBM as published"],
                [*_image_lines(study), *_two_tower_lines(folder)],
                ["setting"],
            ),
        ]
    )


def _budget_curve(study: Study) -> str:
    """Returns from which epoch, and minute, on a method stays above what no memory ends at."""
    methods, lines = (_NONE, PUBLISHED[0], _STAR, _XBN), []
    for name, budget in {"converged": Budget("glyphs", 30), **BUDGETS}.items():
        setting = (64, 0.5, "batch", name)
        ends, large = study.values(_NONE, setting), at_batch_512(name).values()
        if budget.data == "pretrained" or _XBN not in study.methods(setting):
            continue
        cells = []
        for method, place in (*((method, setting) for method in methods), *((_NONE, x) for x in large)):
            found = [study.stays_above(method, place, seed, end) for seed, end in ends.items()]
            reached = [place for place in found if place]
            count = f"{len(reached)} of {len(ends.keys() & study.values(method, place).keys())}"
            mean = [fmean(numbers) for numbers in zip(*reached, strict=True)]
            minutes = f", {mean[1]:.1f} min" if reached and mean[1] == mean[1] else ""
            cells.append(f"{mean[0]:.0f}{minutes} ({count})" if reached else f"– ({count})")
        lines.append([f"{budget}", *cells])
    columns = ["epochs in all", *methods, *(f"batch 512{rate}" for rate in at_batch_512(""))]
    return "\n\n".join(
        [
            "## From when it stays above the end of no memory",
            "Batch 64, memory 50 %: the mean epoch from which Recall@1 stays as high as the same seed's is "
            "without memory at the end, the minutes of one core until then where they were noted, and how "
            "many seeds end above it. Accuracy is looked at some twenty times a run. No memory may be there "
            "before its own end. Runs were on several machines, some a third faster than others: minutes of "
            "two runs compare roughly.",
            markdown(columns, lines, columns[:1]),
        ]
    )


def at_batch_512(regime: str) -> dict[str, Setting]:
    """Returns the settings of batch 512 without memory, by what is special about their learning rate."""
    name = "glyphs, 30 epochs" if regime == "converged" else regime
    others = {f", rate x {rate:g}": f"{name}, rate x {rate:g}" for rate in OTHER_RATES}
    return {rate: (512, 0.0, "batch", of) for rate, of in {"": regime, **others}.items()}


def _regime(study: Study, regime: str) -> str:
    lines, late, shown = [], [], set()
    for setting in study.settings(regime):
        same = setting[0], setting[2]  # batch and norm: then no memory is the same run
        names = [name for name in study.methods(setting) if name != _NONE or same not in shown]
        shown.add(same)
        lines += [_line(study, name, setting) for name in names]
        late += [gain for name in names for gain in study.last_tenth(name, setting)]
    for rate, large in at_batch_512(regime).items():
        if study.methods(large):
            place, *cells = _line(study, _NONE, large, compared_in=(64, 0.5, "batch", regime))
            lines.append([place + rate, *cells])
    flat = ""
    if regime not in _SHORT and late:
        flat = (
            f"The last tenth of the epochs, or the last one, added {fmean(late):+.1f} points on average, "
            f"and more than {_LITTLE:g} in {sum(gain > _LITTLE for gain in late)} of {len(late)} runs; "
            "the learning rate has fallen by then."
        )
    heading = _TITLES.get(regime, regime[:1].upper() + regime[1:])
    columns = ["setting", "method", "seeds", "Recall@1", "to none", "to XBN", "MAP@R", "to none", "minutes"]
    parts = f"## {heading}", flat, markdown(columns, lines, columns[:2]), _by_class(study, regime)
    return "\n\n".join(part for part in parts if part)


def _by_class(study: Study, regime: str) -> str:
    """Returns what XBN gains with intervals over classes too, where hits were noted by class."""
    others = {"none": _NONE, "XBM as published": PUBLISHED[1], "XBM*": _STAR, "momentum 0.99": _MOMENTUM}
    lines = []
    for setting in study.settings(regime):
        cells = [study.bootstrapped(_XBN, other, setting) for other in others.values()]
        if any(cells):
            lines.append([_place(setting), *(cell or "–" for cell in cells)])
    if not lines:
        return ""
    words = (
        "XBN to the others in Recall@1, with the 95 % interval of 10,000 bootstrap samples of both the seeds "
        "and the test classes, and the number of seeds:"
    )
    return words + "\n\n" + markdown(["setting", *others], lines, ["setting"])


def _line(study: Study, name: str, setting: Setting, compared_in: Setting | None = None) -> list[str]:
    def values(figure: str) -> str:
        return spread(list(study.values(name, setting, figure).values()))

    def to(baseline: str, figure: str) -> str:
        if compared_in:
            theirs = study.values(baseline, compared_in, figure)
            return str(paired(study.values(name, setting, figure), theirs) or "–")
        return str(study.differences(setting, baseline, figure).get(name, "–"))

    seeds = str(len(study.values(name, setting)))
    cells = [_place(setting), name, seeds, values("recall_at_1"), to(_NONE, "recall_at_1")]
    cells += [to(_XBN, "recall_at_1"), values("map_at_r"), to(_NONE, "map_at_r"), values("cpu_minutes")]
    return cells


def _place(setting: Setting) -> str:
    norm = "" if setting[2] == "batch" else ", GroupNorm"
    memory = f"memory {100 * setting[1]:g} %" if setting[1] else "no memory"
    return f"batch {setting[0]}, {memory}{norm}"


def _name(setting: Setting) -> str:
    return f"{_TITLES.get(setting[3], setting[3])}: {_place(setting)}"
