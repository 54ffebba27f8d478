"""What memories gain over training without one: every setting, with its interval, from the CSV files."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from matplotlib.axes import Axes
from matplotlib.lines import Line2D

from benchmarks.engine.intervals import Difference, paired
from benchmarks.study.fine_tuning import (
    CACHED,
    LARGE_BATCH,
    LIKE_XBM,
    MULTI_SIMILARITY,
    NONE,
    OTHER_SIZES,
    SENSES,
    SUPCON,
    THREE_STAGES,
    WHOLE_NETWORK_LONG,
    Method,
)
from benchmarks.study.fine_tuning_report import Report
from benchmarks.study.measured import Setting, Study, published_in
from benchmarks.two_towers.report import experiments, gains

from .style import Style, in_both, recolour, save

_WIDTH = 4.2  # inches: what a telephone shows without shrinking the writing much
_LINE = 0.27  # inches
_EPOCHS = (30, 60, 120, 240)
_HALF = 0.5

# Group -> label of a line -> setting of the study.
RANDOM: dict[str, dict[str, Setting]] = {
    "Glyphs, half in memory": {
        f"{n} epochs": (64, _HALF, "batch", "converged" if n == 30 else f"glyphs, {n} epochs")
        for n in _EPOCHS
    },
    "Glyphs, otherwise": {
        "30 epochs, 10 % in memory": (64, 0.1, "batch", "converged"),
        "30 epochs, all in memory": (64, 1.0, "batch", "converged"),
        "batch 16, 12 epochs, 10 %": (16, 0.1, "batch", "converged"),
        "trained on, rate × 0.1": (64, _HALF, "batch", "slow"),
    },
    "Emoji, half in memory": {f"{n} epochs": (64, _HALF, "batch", f"emoji, {n} epochs") for n in _EPOCHS},
    "Emoji, 60 epochs, otherwise": {
        "images of 64 px": (64, _HALF, "batch", "emoji, 60 epochs, 64 px"),
        "10 % in memory": (64, 0.1, "batch", "emoji, 60 epochs"),
        "all in memory": (64, 1.0, "batch", "emoji, 60 epochs"),
    },
}
TRAINS: dict[str, dict[str, Setting]] = {
    f"Batch {size}": {
        f"rate {1e-3 * part:.0e}".replace("e-0", "e-"): (
            size,
            _HALF,
            "batch",
            "pretrained, 16 epochs" + (f", rate x {part}" if part < 1 else ""),
        )
        for part in (1, 0.3, 0.1)
    }
    for size in (64, 16)
}
TOWERS = {
    "Glyphs and names": ["glyphs, 64"],
    "Pictures of Emoji and names": [
        f"{name}, {size}" for name in ("names", "frozen-names") for size in (128, 32)
    ],
    "The same in ten languages": [
        f"{name}, {size}" for name in ("names-10", "frozen-names-10") for size in (128, 32)
    ],
    "Words and definitions": [
        *("definitions, 128", "definitions, 32", "frozen-definitions, 128", "frozen-definitions, 32"),
    ],
}
XBN, XBM, FIRST, STAR, XBN_STAR = "xbn", "xbm", "first step", "star", "xbn star"
LARGE, CENTRE = "large", "centre"
# Method -> words of the legend, sign, and colour.
LOOKS: dict[str, tuple[str, str, str]] = {
    XBN: ("XBN", "o", "blue"),
    XBM: ("XBM, warmed up and filled", "s", "orange"),
    FIRST: ("XBM from the first step", "x", "orange"),
    STAR: ("XBM*, from the first step", "D", "green"),
    XBN_STAR: ("XBN*", "o", "hollow"),
    CENTRE: ("centring", "D", "green"),
    LARGE: ("XBN, to no memory at batch 256", "o", "hollow"),
}


class Line(NamedTuple):
    """A setting, and what methods gain in it: points of Recall@1, of the seeds that both have."""

    label: str
    gains: Mapping[str, Difference]


Groups = Mapping[str, Sequence[Line]]


def draw_gains(results: Path, folder: Path) -> None:
    """Writes ``gains-random``, ``-trains``, ``-fine``, ``-senses`` and ``-towers``, light and dark."""
    study = Study(results)
    looks = {name: look[0] for name, look in LOOKS.items()}
    draw_forest(folder, "gains-random", of_settings(study, RANDOM), looks, (-8.5, 8.5))
    draw_forest(folder, "gains-trains", of_settings(study, TRAINS), looks, (-10, 10))
    draw_forest(folder, "gains-fine", fine_tuning(study, results), looks, (-6, 6))
    draw_forest(folder, "gains-senses", senses(study, results), looks, (-6, 6))
    stale = {FIRST: "XBM, after an epoch", STAR: "XBM*, after an epoch", XBN: "XBN", XBN_STAR: "XBN*"}
    draw_forest(folder, "gains-towers", two_towers(results), stale, (-4, 4))


def of_settings(study: Study, settings: Mapping[str, Mapping[str, Setting]]) -> Groups:
    """Returns the gains over no memory at the same batch size, in settings of the study."""
    groups = {}
    for title, of_group in settings.items():
        lines = []
        for label, setting in of_group.items():
            found = study.differences(setting, NONE)
            names = {XBN: "xbn", XBM: published_in(found), FIRST: "xbm", STAR: "xbm-star"}
            lines.append(Line(label, {key: found[name] for key, name in names.items() if name in found}))
        groups[title] = lines
    return groups


def fine_tuning(study: Study, results: Path) -> Groups:
    """Returns the gains from ImageNet weights, where batch normalization and rate are each method's own."""
    parts = (
        ("SupCon, last stage", SUPCON + OTHER_SIZES + LARGE_BATCH, (8, 16, 32, 64, 256)),
        ("MultiSimilarity, last stage", MULTI_SIMILARITY, (16, 64)),
        ("SupCon, three stages", THREE_STAGES, (16, 64)),
        ("SupCon, whole network", WHOLE_NETWORK_LONG, (64,)),
    )
    groups: dict[str, list[Line]] = {}
    for words, methods, sizes in parts:
        for data, domain in (("pretrained", "Emoji"), ("pretrained icons", "Icons")):
            lines = [_chosen(Report(study, results, methods), size, data) for size in sizes]
            if any(line.gains for line in lines):
                groups[f"{domain}, {words}"] = lines
    return groups


def senses(study: Study, results: Path) -> Groups:
    """Returns the gains of a text transformer that tells senses of words apart."""
    report = Report(study, results, SENSES)
    return {
        "Senses of words, MiniLM, SupCon": [_chosen(report, size, "pretrained senses") for size in (16, 64)]
    }


def _chosen(report: Report, size: int, data: str) -> Line:
    """Returns the gains of chosen settings, and of XBN those to no memory at batch 256."""
    like = report.methods[0]._replace(batch_size=size)
    none = like._replace(name=CACHED if size == 256 else NONE)
    xbn = like._replace(name="xbn+cached in parts of 64" if size == 256 else "xbn")

    def gain(ours: Method, theirs: Method) -> Difference | None:
        return paired(report.confirmed(ours, data), report.confirmed(theirs, data))

    found = {XBN: gain(xbn, none), XBM: gain(like._replace(name=LIKE_XBM), none)}
    if size < 256:
        found[LARGE] = gain(xbn, like._replace(name=CACHED, batch_size=256))
    if data == "pretrained senses":
        found[CENTRE] = gain(like._replace(name="centre"), none)
    return Line(f"batch {size}", {name: value for name, value in found.items() if value})


def two_towers(results: Path) -> Groups:
    """Returns the gains of memories of two towers, in the mean of both directions."""
    found: dict[str, list[Line]] = {}
    for experiment, rows in experiments(results).items():
        values, by_method = dict(experiment), gains(rows)
        key = f"{values['data']}, {values['batch_size']}"
        names = {XBN: "adapted", FIRST: "stale", STAR: "stale-star", XBN_STAR: "adapted-star"}
        label = f"batch {values['batch_size']}, {100 * float(values['memory_ratio']):g} %"
        label = ("frozen, " if values["data"].startswith("frozen") else "") + label
        line = Line(label, {k: by_method[name] for k, name in names.items() if name in by_method})
        found.setdefault(key, []).append(line)
    return {title: [line for key in keys for line in found[key]] for title, keys in TOWERS.items()}


def draw_forest(
    folder: Path, name: str, groups: Groups, words: Mapping[str, str], limits: tuple[float, float]
) -> None:
    """Draws a line per setting below the heading of its group, and a dot with its interval per method.

    What lies beyond the limits is written at the edge.
    """
    rows: list[Line | str] = []
    for title, lines in groups.items():
        rows += [title, *lines]
    keys = {key for row in rows if isinstance(row, Line) for key in row.gains}
    shown = [key for key in words if key in keys]
    for figure, style in in_both((_WIDTH, _LINE * (len(rows) + 0.8 * len(shown)) + 0.7)):
        axes = figure.subplots()
        for place, row in enumerate(rows):
            if isinstance(row, Line):
                _draw_line(axes, place, row, shown, limits, style)
        axes.axvline(0, color=style.ink, linewidth=0.8)
        axes.set_xlim(*limits)
        axes.set_ylim(len(rows) - 0.4, -0.6)
        labels = [row.label if isinstance(row, Line) else "" for row in rows]
        axes.set_yticks(range(len(rows)), labels, fontsize=9)
        axes.tick_params(axis="y", length=0)
        axes.set_xlabel("Recall@1 gained, points", fontsize=9)
        recolour(axes, style)
        for place, row in enumerate(rows):
            if isinstance(row, str):
                _write_heading(axes, place, row, style)
        marks = [Line2D([], [], linestyle="", label=words[key], **_look(key, style)) for key in shown]
        options: dict[str, Any] = {"frameon": False, "labelcolor": style.ink, "fontsize": 9}
        figure.legend(handles=marks, loc="outside upper left", **options)
        save(figure, folder, name, style)


def _write_heading(axes: Axes, place: int, title: str, style: Style) -> None:
    box = {"facecolor": style.paper, "edgecolor": "none", "pad": 1.5}
    axes.text(
        *(0.01, place, title),
        transform=axes.get_yaxis_transform(),
        va="center",
        fontsize=9,
        fontweight="bold",
        color=style.ink,
        bbox=box,
    )


def _draw_line(
    axes: Axes, place: int, line: Line, shown: Iterable[str], limits: tuple[float, float], style: Style
) -> None:
    found = [(key, line.gains[key]) for key in shown if key in line.gains]
    for number, (key, gain) in enumerate(found):
        height = place + 0.8 * ((number + 0.5) / len(found) - 0.5)
        look = _look(key, style)
        if limits[0] < gain.mean < limits[1]:
            axes.errorbar(gain.mean, height, xerr=gain.half_width or 0, capsize=1.5, linewidth=1.2, **look)
        else:
            side, arrow = (0.01, "◂ {}") if gain.mean < 0 else (0.99, "{} ▸")
            text = arrow.format(f"{gain.mean:+.0f}".replace("-", "−"))
            axes.text(
                *(side, height, text),
                transform=axes.get_yaxis_transform(),
                ha="left" if gain.mean < 0 else "right",
                va="center",
                fontsize=7.5,
                color=look["color"],
            )


def _look(key: str, style: Style) -> dict[str, Any]:
    _, sign, colour = LOOKS[key]
    is_hollow = colour == "hollow"
    ink = style.blue if is_hollow else str(getattr(style, colour))
    face = style.paper if is_hollow else ink
    return {"marker": sign, "markersize": 4.5, "color": ink, "markerfacecolor": face}
