"""What a memory gains over training without one, setting by setting, from the study's CSV files."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from matplotlib.axes import Axes

from benchmarks.engine.intervals import Difference, paired
from benchmarks.study.fine_tuning import LIKE_XBM, MEMORY, MULTI_SIMILARITY, NONE, SUPCON, Method
from benchmarks.study.fine_tuning_report import Report
from benchmarks.study.measured import Setting, Study, published_in

from .style import Style, in_both, recolour, save

SETTINGS: dict[str, Setting] = {
    "Glyphs, 30 epochs": (64, MEMORY, "batch", "converged"),
    "Glyphs, 60 epochs": (64, MEMORY, "batch", "glyphs, 60 epochs"),
    "Glyphs, 120 epochs": (64, MEMORY, "batch", "glyphs, 120 epochs"),
    "Emoji, 30 epochs": (64, MEMORY, "batch", "emoji, 30 epochs"),
    "Emoji, 60 epochs": (64, MEMORY, "batch", "emoji, 60 epochs"),
    "Emoji, 120 epochs": (64, MEMORY, "batch", "emoji, 120 epochs"),
    "Emoji, 240 epochs": (64, MEMORY, "batch", "emoji, 240 epochs"),
}
DOMAINS: dict[str, str] = {"pretrained": "Emoji", "pretrained icons": "icons"}
LOSSES = {"SupCon": SUPCON, "MultiSimilarity": MULTI_SIMILARITY}


class Gain(NamedTuple):
    """Points of Recall@1 to no memory at the same batch size."""

    setting: str
    xbn: Difference
    xbm: Difference | None


def draw_gains(results: Path, folder: Path) -> None:
    """Writes ``gains-light.svg`` and ``gains-dark.svg``."""
    study = Study(results)
    parts = {
        "From random weights, batch 64": list(long_training(study)),
        "Fine-tuning ImageNet weights, everything chosen": list(fine_tuning(study, results)),
    }
    for figure, style in in_both((7.5, 6.4)):
        heights = [len(gains) + 1 for gains in parts.values()]
        axes_of_parts = figure.subplots(len(parts), 1, sharex=True, height_ratios=heights)
        for axes, (title, gains) in zip(axes_of_parts, parts.items(), strict=True):
            draw_part(axes, title, gains, style)
        axes_of_parts[-1].set_xlabel("Recall@1 minus that without memory at the same batch size, points")
        axes_of_parts[-1].xaxis.label.set_color(style.ink)
        axes_of_parts[0].legend(frameon=False, labelcolor=style.ink, fontsize=9, loc="upper left")
        save(figure, folder, "gains", style)


def long_training(study: Study) -> Iterator[Gain]:
    for name, setting in SETTINGS.items():
        found = study.differences(setting, NONE)
        published = published_in(found)
        yield Gain(name, found["xbn"], found[published] if published else None)


def fine_tuning(study: Study, results: Path) -> Iterator[Gain]:
    for loss, methods in LOSSES.items():
        report = Report(study, results, methods)
        for batch_size in (16, 64):
            for data, domain in DOMAINS.items():
                of_loss = methods[0].loss
                none, xbn, xbm = (
                    report.confirmed(Method(name, batch_size, of_loss), data)
                    for name in (NONE, "xbn", LIKE_XBM)
                )
                gain = paired(xbn, none)
                if gain is not None:
                    yield Gain(f"{domain}, {loss}, batch {batch_size}", gain, paired(xbm, none))


def draw_part(axes: Axes, title: str, gains: list[Gain], style: Style) -> None:
    """Draws a line per setting, the first on top: a dot per method with its 95 % interval."""
    of_xbn = [(place - 0.14, gain.xbn) for place, gain in enumerate(gains)]
    of_xbm = [(place + 0.14, gain.xbm) for place, gain in enumerate(gains) if gain.xbm]
    draw_method(axes, of_xbn, "XBN", style.blue)
    draw_method(axes, of_xbm, "XBM, warmed up and filled", style.orange)
    axes.axvline(0, color=style.ink, linewidth=0.8)
    axes.set_yticks(range(len(gains)), [gain.setting for gain in gains], fontsize=9)
    axes.set_ylim(len(gains) - 0.5, -0.5)
    axes.set_title(title, fontsize=10)
    recolour(axes, style)


def draw_method(axes: Axes, found: list[tuple[float, Difference]], label: str, colour: str) -> None:
    """Draws one method's differences, each at its height."""
    heights, differences = zip(*found, strict=True)
    means = [difference.mean for difference in differences]
    half_widths = [difference.half_width or 0 for difference in differences]
    axes.errorbar(
        means, heights, xerr=half_widths, fmt="o", markersize=5, capsize=3, color=colour, label=label
    )
