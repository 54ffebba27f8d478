"""The study's section on Emoji, pictures that are not ours."""

from __future__ import annotations

from statistics import fmean

from benchmarks.study.cases import EMOJI, EMOJI_METHODS
from benchmarks.study.converged import gains_of_the_last_tenth
from benchmarks.study.data import Setting, Study
from benchmarks.study.tables import spread, table, text

_REGIME = ("batch", str(EMOJI))
_LITTLE = 0.5  # points of Recall@1
_PUBLISHED = "xbm+warm-up"
_METHODS = (_PUBLISHED, *(name for name in EMOJI_METHODS if name != _PUBLISHED))
_SETTINGS: tuple[Setting, ...] = tuple(
    (*where, *_REGIME) for where in ((64, 0.0), (512, 0.0), (64, 0.5), (64, 0.1), (64, 1.0))
)
_COLUMNS = ("Recall@1", "to No-XBM", f"to {_PUBLISHED}", "MAP@R", "to No-XBM", f"to {_PUBLISHED}")


def emoji(study: Study) -> str:
    """The section; empty before the first run."""
    runs = [
        (name, setting)
        for setting in _SETTINGS
        for name in (_METHODS if setting[1] else ("no-xbm",))
        if name in study.methods(setting)
    ]
    if not runs:
        return ""
    gains = [gain for name, setting in runs for gain in gains_of_the_last_tenth(study, name, setting)]
    seeds = [len(study.values(name, setting, "recall_at_1")) for name, setting in runs]
    of_all = sorted({min(seeds), max(seeds)})
    return "\n\n".join(
        [
            "## Emoji",
            f"Pictures by four vendors, {EMOJI.side} px, in colour; {EMOJI.epochs} epochs from random "
            "weights, otherwise as in the long runs. No setting was chosen by these test classes; a quarter "
            "of all classes is kept back for one last test. Seeds of each row: "
            f"{' to '.join(map(str, of_all))}. The last tenth of the epochs changed Recall@1 by "
            f"{fmean(gains):+.1f} on average, and added more than {_LITTLE:g} "
            f"in {sum(gain > _LITTLE for gain in gains)} of {len(gains)} runs. *{_PUBLISHED}* is XBM as its "
            "paper prescribes it.",
            table(["batch", "memory", "method", *_COLUMNS], [_line(study, *run) for run in runs]),
        ]
    )


def _line(study: Study, name: str, setting: Setting) -> list[str]:
    batch_size, ratio = setting[:2]
    cells = [str(batch_size), f"{100 * ratio:g} %" if ratio else "none", name]
    for figure in ("recall_at_1", "map_at_r"):
        cells.append(spread(study, name, setting, figure))
        if setting == _SETTINGS[1]:
            to_none = study.change(name, setting, _SETTINGS[0], figure)
        else:
            to_none = None if name == "no-xbm" else study.difference(name, "no-xbm", setting, figure)
        is_told = ratio and name != _PUBLISHED
        to_published = study.difference(name, _PUBLISHED, setting, figure) if is_told else None
        cells += [text(to_none), text(to_published)]
    return cells
