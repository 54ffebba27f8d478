"""The study's section on long runs from random weights."""

from __future__ import annotations

from pathlib import Path

from benchmarks.study.cases import (
    CONVERGED,
    DECAY,
    EPOCHS,
    EQUAL_TIME,
    MILDER,
    MILESTONES,
    REFRESH_EVERY,
    REFRESHED,
    REMEDIES,
)
from benchmarks.study.data import Difference, Setting, Study
from benchmarks.study.figures import draw_epochs, name_of
from benchmarks.study.tables import mean, spread, table, text

_REGIME = ("batch", "converged")
_AT_64, _AT_512 = (64, 0.0, *_REGIME), (512, 0.0, *_REGIME)
_SETTINGS = list(dict.fromkeys((size, ratio, *_REGIME) for size, _, ratio in CONVERGED))
_CEILING = REFRESHED["xbn"]
_TENTH, _LITTLE = 0.1, 0.5  # of the epochs, and points of Recall@1


def converged(study: Study, folder: Path) -> str:
    """The section, with its picture beside it; empty before the first run."""
    others = (*REMEDIES, _CEILING)
    runs = [
        (name, setting)
        for setting in _SETTINGS
        for name in study.methods(setting)
        if name not in others and (name != "no-xbm") == (setting[1] > 0)
    ]
    if not runs:
        return ""
    draw_epochs(study, [_AT_64, (64, 0.5, *_REGIME)], folder / "study_converged.png")
    epochs = ", ".join(f"{EPOCHS['converged', size][1]} at batch {size}" for size in (512, 64, 16))
    after = " and ".join(f"{100 * share:g} %" for share in MILESTONES)
    gains = {(name, setting): gains_of_the_last_tenth(study, name, setting) for name, setting in runs}
    still = ", ".join(
        f"{name} at {name_of(setting)} ({max(of):+.1f})"
        for (name, setting), of in gains.items()
        if max(of) > _LITTLE
    )
    number = sum(map(len, gains.values()))
    ended = sum(gain <= _LITTLE for of in gains.values() for gain in of)
    seeds = " to ".join(map(str, sorted({min(map(len, gains.values())), max(map(len, gains.values()))})))
    lines = [_line(study, name, setting) for name, setting in runs]
    return "\n\n".join(
        [
            "## Long runs",
            f"Without a warm start, with distortions {MILDER:g} times as strong. Epochs: {epochs}. The "
            f"learning rate is multiplied by {DECAY:g} after {after} of them, and is √8 times as high at "
            f"batch 512. Seeds of each method: {seeds}. The last tenth of the epochs "
            f"added at most half a point of Recall@1 in {ended} of {number} runs"
            + (f"; more to {still}." if still else ".")
            + " That is no end: the learning rate has fallen by then, and with twice the epochs no memory, "
            "XBM, XBN and batch 512 all end higher. These are the test classes of the short runs, too.",
            table(["batch", "memory", "method", "Recall@1", "to No-XBM", "to XBM", "MAP@R"], lines),
            "![Recall@1 after every epoch](study_converged.png)",
            *_remedies(study),
            f"These runs took {_hours(study):.1f} hours of training, each on one core.",
        ]
    )


def _line(study: Study, name: str, setting: Setting) -> list[str]:
    batch_size, ratio = setting[:2]
    to_xbm = None if name == "no-xbm" else study.difference(name, "xbm", setting, "recall_at_1")
    return [
        str(batch_size),
        f"{100 * ratio:g} %" if ratio else "none",
        name,
        spread(study, name, setting, "recall_at_1"),
        text(_to_none(study, name, setting)),
        "" if name == "xbm" else text(to_xbm),
        spread(study, name, setting, "map_at_r"),
    ]


def _remedies(study: Study) -> list[str]:
    """What else may repair a memory; nothing before the first run."""
    setting = (64, 0.5, *_REGIME)
    names = [name for name in ("xbm", *REMEDIES, "xbn", _CEILING) if name in study.methods(setting)]
    if not any(name in REMEDIES for name in names):
        return []
    lines = [
        [
            name,
            spread(study, name, setting, "recall_at_1"),
            *(
                "" if name == to else text(study.difference(name, to, setting, "recall_at_1"))
                for to in ("no-xbm", "xbm", "xbn")
            ),
            spread(study, name, setting, "map_at_r"),
            mean(study, name, setting, "staleness_after", 2),
            mean(study, name, setting, "minutes", 1),
        ]
        for name in names
    ]
    shorter = " and ".join(f"{epochs} epochs" for epochs in EQUAL_TIME.values())
    return [
        "### Remedies beside adaptation",
        f"Batch 64, memory {100 * setting[1]:g} %. *Warm-up*: without memory for 1,000 steps, after which it "
        "is filled with random training images (Cross-Batch Memory, §3.3). *Momentum*: what is stored comes "
        "from a moving average of the model, with that factor (Momentum Contrast). *Oldest*: before every "
        "step the stored batch that was embedded the longest ago is embedded anew, by the model as it is; in "
        f"*equal time*, for {shorter}. *{_CEILING}*: all rows are embedded anew every "
        f"{REFRESH_EVERY[setting[1]]} steps. Minutes are of training on one core, beside a second run; "
        "*xbm* alone is PML's class, the others are ours, which take less.",
        table(
            ["method", "Recall@1", "to No-XBM", "to XBM", "to XBN", "MAP@R", "staleness", "minutes"], lines
        ),
    ]


def gains_of_the_last_tenth(study: Study, name: str, setting: Setting) -> list[float]:
    """What the last tenth of the epochs added, of every seed."""
    gains = []
    for case, rows in study.epochs.items():
        if case.name == name and case.setting == setting:
            after = {int(row["epoch"]): float(row["recall_at_1"]) for row in rows}
            gains.append(after[max(after)] - after[round((1 - _TENTH) * max(after))])
    return gains


def _to_none(study: Study, name: str, setting: Setting) -> Difference | None:
    if name != "no-xbm":
        return study.difference(name, "no-xbm", setting, "recall_at_1")
    return study.change(name, setting, _AT_64, "recall_at_1") if setting == _AT_512 else None


def _hours(study: Study) -> float:
    return sum(float(row["minutes"]) for case, row in study.runs.items() if case.regime == "converged") / 60
