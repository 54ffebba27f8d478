"""What a memory gains against the share of the classes that a batch holds."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from matplotlib.axes import Axes

from benchmarks.engine.intervals import Difference, paired
from benchmarks.engine.results import read_csv
from benchmarks.han import cases as han
from benchmarks.han.report import CLASSES, Runs, sweep_values
from benchmarks.study.fine_tuning import CACHED, NONE, SUPCON, Method
from benchmarks.study.fine_tuning_report import Report
from benchmarks.study.measured import Study

from .style import Style, in_both, recolour, save

_EXPERIMENTS = Path(__file__).parents[2] / "benchmarks" / "papers" / "experiments.csv"
# Training classes; the papers' and the study's batches have four images of each class.
TRAINED_ON = {"pretrained": 882, "pretrained icons": 510, "sop": 11_318, "in-shop": 3_997}
TITLES = {"pretrained": "Emoji", "pretrained icons": "icons", "sop": "SOP", "in-shop": "In-Shop"}
_TABLES = ("AXBN, Table 2", "AXBN, Table 4", "AXBN, Table 6")
_PER_CLASS = 4
_TICKS = (0.03, 0.1, 0.3, 1, 3, 10)
_LARGER = {"same": "no memory at the same batch", "four": "no memory at four times the batch"}


class Point(NamedTuple):
    """A memory's gain in points of Recall@1: where from, share of the classes in per cent, and to what.

    ``compared`` is a key of `_LARGER`, ``kind`` how the point is drawn.
    """

    name: str
    share: float
    gain: Difference
    compared: str
    kind: str


def draw_classes(results: Path, folder: Path) -> None:
    """Writes ``classes-light.svg`` and ``classes-dark.svg``."""
    points = [*of_han(results), *of_the_study(results), *of_the_papers()]
    for figure, style in in_both((8.4, 3.9)):
        both = figure.subplots(1, 2, sharex=True, sharey=True)
        for axes, (compared, title) in zip(both, _LARGER.items(), strict=True):
            _draw(axes, [point for point in points if point.compared == compared], style)
            axes.set_title(f"To {title}", fontsize=10)
            axes.set_xlabel("Share of the training classes in a batch, %")
            recolour(axes, style)
        first = figure.axes[0]
        first.set_ylabel("Recall@1 gained, points")
        first.yaxis.label.set_color(style.ink)
        first.legend(frameon=False, labelcolor=style.ink, fontsize=8)
        save(figure, folder, "classes", style)


def of_han(results: Path) -> Iterator[Point]:
    """Yields XBN and XBM at batch 64, warmed up and filled, with the batch's own loss beside."""
    runs = Runs(results)
    for method in ("xbn", "xbm"):
        setting = han.memory(method, batch_loss="1")
        for classes in (*han.SWEEP, 0):
            ours = sweep_values(runs, setting, classes, "recall_at_1")
            for compared, size in (("same", 64), ("four", 256)):
                gain = paired(ours, sweep_values(runs, han.none(size), classes, "recall_at_1"))
                if gain is not None:
                    yield Point(
                        "Han", 100 * 32 / (classes or CLASSES), gain, compared, f"Han, {method.upper()}"
                    )


def of_the_study(results: Path) -> Iterator[Point]:
    """Yields XBN in fine-tuning, everything chosen."""
    report = Report(Study(results), results, SUPCON)
    for data, title in TITLES.items():
        if not data.startswith("pretrained"):
            continue
        for size in (16, 64):
            ours = report.confirmed(Method("xbn", size), data)
            others = {"same": Method(NONE, size)}
            others["four"] = Method(NONE, 64) if size == 16 else Method(CACHED, 256)
            for compared, other in others.items():
                gain = paired(ours, report.confirmed(other, data))
                if gain is not None:
                    share = 100 * size / _PER_CLASS / TRAINED_ON[data]
                    yield Point(f"{title}, {size}", share, gain, compared, "fine-tuning, XBN")


def of_the_papers() -> Iterator[Point]:
    """Yields XBN of tables of the AXBN paper, which give one figure a setting or a mean."""
    found: dict[tuple[str, str, int, str], float] = {}
    for row in read_csv(_EXPERIMENTS):
        flags = dict(zip(row["flags"].split(), row["flags"].split()[1:], strict=False))
        first, method = re.match(r"1: ([\d.]+)", row["figures"]), flags.get("--method", "")
        is_ours = row["source"] in _TABLES and row["dataset"] in TRAINED_ON and method in ("no-xbm", "xbn")
        if first is not None and is_ours:
            network = "Swin, " if "swin" in row["flags"] else ""
            found[row["dataset"], network, int(flags.get("--batch-size", 64)), method] = float(first[1])
    for (data, network, size, method), value in found.items():
        for compared, other in (("same", size), ("four", 4 * size)):
            theirs = found.get((data, network, other, "no-xbm"))
            if method == "xbn" and theirs is not None:
                share = 100 * size / _PER_CLASS / TRAINED_ON[data]
                name = f"{network}{TITLES[data]}, {size}"
                yield Point(name, share, Difference([value - theirs]), compared, "papers, XBN")


def _draw(axes: Axes, points: list[Point], style: Style) -> None:
    looks = {
        "Han, XBN": ("o-", style.blue),
        "Han, XBM": ("s-", style.orange),
        "fine-tuning, XBN": ("D", style.green),
        "papers, XBN": ("^", style.ink),
    }
    for kind, (mark, colour) in looks.items():
        of_kind = sorted((x for x in points if x.kind == kind), key=lambda point: point.share)
        if not of_kind:
            continue
        shares, means = [x.share for x in of_kind], [x.gain.mean for x in of_kind]
        half_widths = [x.gain.half_width or math.nan for x in of_kind]  # no bar for one seed
        options: dict[str, Any] = {"markersize": 5, "capsize": 3, "color": colour, "label": kind}
        axes.errorbar(shares, means, yerr=half_widths, fmt=mark, **options)
        for point in of_kind:
            if point.name != "Han":
                place = (point.share, point.gain.mean)
                below = -10 if kind.startswith("fine") else 4
                axes.annotate(point.name, place, (4, below), textcoords="offset points", fontsize=7)
    axes.set_xscale("log")
    axes.set_xticks(_TICKS, map(str, _TICKS))
    axes.minorticks_off()
    axes.axhline(0, color=style.ink, linewidth=0.8)
