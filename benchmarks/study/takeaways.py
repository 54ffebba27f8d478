"""What a user takes home from the study: a line per question, each with its figures."""

from __future__ import annotations

from collections.abc import Callable
from statistics import fmean, median

from benchmarks.study.cases import EMOJI, REFRESHED, REMEDIES
from benchmarks.study.data import Difference, Setting, Study, paired
from benchmarks.study.figures import name_of
from benchmarks.study.proposed import memories
from benchmarks.tuning.results import METHODS, PARTS, Tuning

_REGIME = ("batch", "converged")
_AT_64, _AT_512, _HALF = (64, 0.0, *_REGIME), (512, 0.0, *_REGIME), (64, 0.5, *_REGIME)
_PAIRS = (("xbm", "no-xbm"), ("xbn", "xbm"), ("xbn", "no-xbm"))
_NAMES = {"xbm": "XBM", "xbn": "XBN", "no-xbm": "no memory"}
_NOT_OURS = ("no-xbm", "xbm", "xbm-star", "always-fresh")


def takeaways(study: Study, tuning: Tuning) -> str:
    """The list, without the questions that nothing has been measured for."""
    lines = [_long_runs(study), _emoji(study), alike(tuning), _size(study), _batch_512(study), _losses(study)]
    return "\n".join(f"* {line}" for line in lines if line)


def _compared(difference: Callable[[str, str], Difference | None]) -> str:
    """XBM to none, XBN to XBM and to none, as far as measured."""
    gaps = {f"{_NAMES[one]} to {_NAMES[other]}": difference(one, other) for one, other in _PAIRS}
    return "; ".join(f"{who} {gap}" + ("" if gap.sign else _by_seed(gap)) for who, gap in gaps.items() if gap)


def _by_seed(gap: Difference) -> str:
    return f", which may be chance: by seed {', '.join(f'{value:+.1f}' for value in gap.gaps)}"


def _long_runs(study: Study) -> str:
    """Is XBM below none, and XBN above both?"""
    said = _compared(lambda one, other: study.difference(one, other, _HALF, "recall_at_1"))
    others = "; ".join(
        f"{name} {gap}"
        for name in (*REMEDIES, REFRESHED["xbn"])
        if (gap := study.difference(name, "xbn", _HALF, "recall_at_1"))
    )
    return said and (
        "**Long runs** (points of Recall@1, batch 64, memory 50 %, 30 epochs, which are not the end): "
        f"{said}." + (f" What else repairs a memory, to XBN: {others}." if others else "")
    )


def _emoji(study: Study) -> str:
    """Does it hold on pictures that are not ours?"""
    setting = (64, 0.5, "batch", str(EMOJI))
    pairs = (("xbn", "no-xbm"), ("xbn", "xbm+warm-up"), ("xbm+warm-up", "no-xbm"), ("xbm", "no-xbm"))
    gaps = {f"{one} to {other}": study.difference(one, other, setting, "recall_at_1") for one, other in pairs}
    said = "; ".join(f"{who} {gap}" for who, gap in gaps.items() if gap)
    return said and f"**Emoji** (points of Recall@1, batch 64, memory 50 %, {EMOJI.epochs} epochs): {said}."


def alike(tuning: Tuning) -> str:
    """The same after one random search for all, and how easy that is."""
    said = _compared(lambda one, other: tuning.difference(one, other, "map_at_r"))
    medians = {
        name: median(float(row["map_at_r"]) for row in tuning.found(method))
        for method, name in _NAMES.items()
        if tuning.found(method)
    }
    typical = ", ".join(f"{name} {value:.1f}" for name, value in medians.items())
    gaps = {part: tuning.of_configurations("xbn", "no-xbm", is_part) for part, is_part in PARTS.items()}
    untuned = "; ".join(f"{gap} with {part}" for part, gap in gaps.items() if gap)
    return said and (
        "**One random search for all** (points of MAP@R, on classes that the search never saw, but other "
        f"runs of the study did): {said}.{_failed(tuning)}{_found_little(tuning)} The "
        f"median configuration of the search reaches {typical}; by part XBN to no memory is "
        f"{untuned}. The parts by learning rate were chosen after the search."
    )


def _found_little(tuning: Tuning) -> str:
    """How few draws a method can do well with."""
    draws = [row for row in tuning.found("no-xbm") if row["loss"] == "supcon"]
    full = sum(float(row["memory_share"]) == 1 for row in draws)
    gap = tuning.of_configurations("xbn", "no-xbm")
    over_all = f"; over all draws XBN to no memory is {gap}" if gap else ""
    return f" Of its draws {len(draws)} have SupConLoss, {full} of them with the full memory{over_all}."


def _failed(tuning: Tuning) -> str:
    """Runs of the best configurations that end at less than half of what no memory has."""
    tests = {method: tuning.tested(method, "map_at_r") for method in METHODS}
    half = fmean(tests["no-xbm"].values()) / 2
    named = []
    for method, name in _NAMES.items():
        failed = {seed: value for seed, value in tests[method].items() if value < half}
        # Methods that end alike to the last digit never parted: they failed before they stored a row.
        others = [tests[other] for other in METHODS if other != method]
        early = [seed for seed, value in failed.items() if any(of.get(seed) == value for of in others)]
        if failed:
            where = f", {len(early)} of them in the warm-up, before there is a memory" if early else ""
            named.append(f"{name} in {len(failed)} of {len(tests[method])} runs{where}")
    said = "; ".join(named)
    return said and f" Training fails altogether, below half of no memory's MAP@R, with {said}."


def _size(study: Study) -> str:
    """At which batch and memory does XBN pay?"""
    known = [
        (setting, gap)
        for regime in ("converged", "fast")
        for setting in study.settings(regime, "batch")
        if (gap := study.difference("xbn", "no-xbm", setting, "recall_at_1")) is not None
    ]
    said = "; ".join(f"{name_of(setting).replace(', BatchNorm', '')} {gap}" for setting, gap in known)
    return said and f"**Which batch and memory?** Points of Recall@1, XBN to no memory: {said}."


def _batch_512(study: Study) -> str:
    """What does a batch eight times as large give that a memory does not?"""
    large = study.values("no-xbm", _AT_512, "recall_at_1")
    gap = study.change("no-xbm", _AT_512, _AT_64, "recall_at_1")
    ahead = paired(large, study.values("xbn", _HALF, "recall_at_1"))
    return (
        ""
        if gap is None or ahead is None
        else (
            f"**A batch of 512** without memory is {gap} points of Recall@1 from one of 64, and {ahead} "
            "from XBN with batch 64 and a memory of 50 %."
        )
    )


def losses(study: Study, figure: str = "recall_at_1") -> list[tuple[Setting, str, str, Difference]]:
    """Settings in which one of our classes ends below No-XBM or XBM: setting, class, what it loses to."""
    settings = [s for regime in ("fast", "slow", "converged") for s in study.settings(regime)]
    return [
        (setting, name, other, gap)
        for setting in settings
        for name in memories(study, setting)
        if name not in _NOT_OURS
        for other in ("no-xbm", "xbm")
        if (gap := study.difference(name, other, setting, figure)) is not None and gap.mean < 0
    ]


def _losses(study: Study) -> str:
    worst = [one for one in losses(study) if one[-1].sign < 0]
    names = sorted({name for _, name, *_ in worst})
    if not worst:
        return ""
    setting, name, other, gap = min(worst, key=lambda one: one[-1].mean)
    return (
        f"**Where our classes lose**: {', '.join(names)} end below no memory or XBM by more than chance in a "
        f"setting or more; the most {name} to {other} ({name_of(setting)}), by {gap}. "
        + _losses_of_xbn(study)
    )


def _losses_of_xbn(study: Study) -> str:
    """In words, of either figure."""
    said = {}
    for figure, title in (("recall_at_1", "Recall@1"), ("map_at_r", "MAP@R")):
        lost = [one for one in losses(study, figure) if one[1] in ("xbn", "axbn") and one[-1].sign < 0]
        said[title] = "; ".join(f"{name} to {other} {gap} ({name_of(s)})" for s, name, other, gap in lost)
    told = ". In ".join(f"{title}: {of or 'nowhere'}" for title, of in said.items())
    return f"XBN and AXBN do so in {told}. All these runs have SupConLoss."
