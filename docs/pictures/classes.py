"""What a memory gains against the share of the classes that a batch holds."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

from matplotlib.axes import Axes

from benchmarks.engine.intervals import Difference, paired
from benchmarks.engine.results import read_csv
from benchmarks.han import cases as han
from benchmarks.han.report import CLASSES, Runs, sweep_values
from benchmarks.study.fine_tuning import (
    CACHED,
    LARGE_BATCH,
    MULTI_SIMILARITY,
    NONE,
    OTHER_SIZES,
    SENSES,
    SUPCON,
    THREE_STAGES,
    WHOLE_NETWORK_LONG,
    domains,
)
from benchmarks.study.fine_tuning_report import Report
from benchmarks.study.measured import Setting, Study
from benchmarks.study.report import at_batch_512
from benchmarks.two_towers.report import experiments, gains

from .style import Style, in_both, recolour, save

_EXPERIMENTS = Path(__file__).parents[2] / "benchmarks" / "papers" / "experiments.csv"
# Training classes; the papers' and the study's batches have four images of each class.
TRAINED_ON = {
    "pretrained": 882,
    "pretrained icons": 510,
    "pretrained senses": 873,
    "glyphs": 2_172,
    "emoji": 882,
    "sop": 11_318,
    "in-shop": 3_997,
    "deep-fashion2": 31_517,
}
PAIRS = 16_384  # of words and their definitions, each a class
_TITLES = {"pretrained": "Emoji", "pretrained icons": "icons", "pretrained senses": "senses"}
_PAPERS = {"sop": "SOP", "in-shop": "In-Shop", "deep-fashion2": "DeepFashion2"}
# What trains in fine-tuning -> by how much its diamond stands beside those of the same share.
_LAST_STAGE = SUPCON + OTHER_SIZES
_PARTS = ((_LAST_STAGE, 1.0), (THREE_STAGES, 1.13), (WHOLE_NETWORK_LONG, 1.0), (MULTI_SIMILARITY, 0.88))
_RANDOM: dict[str, Setting] = {
    "Glyphs, 64": (64, 0.5, "batch", "glyphs, 60 epochs"),
    "Emoji, 64": (64, 0.5, "batch", "emoji, 60 epochs"),
    "Glyphs, 16": (16, 0.1, "batch", "converged"),
}
_TABLES = ("AXBN, Table 1", "AXBN, Table 2", "AXBN, Table 4", "AXBN, Table 6")
_PER_CLASS = 4
_TICKS = (0.03, 0.1, 0.3, 1, 3, 10)
_COMPARED = {"same": "to no memory, same batch", "four": "to no memory, four times the batch"}


class Point(NamedTuple):
    """A memory's gain in points of Recall@1: where from, share of the classes in per cent, and to what.

    ``compared`` is a key of `_COMPARED`, ``kind`` one of `_LOOKS`.
    """

    name: str
    share: float
    gain: Difference
    compared: str
    kind: str


def draw_classes(results: Path, folder: Path) -> None:
    """Writes ``classes-same`` and ``classes-four``, light and dark."""
    points = [*of_han(results), *of_random_weights(results), *of_fine_tuning(results)]
    points += [*of_two_towers(results), *of_the_papers(), *of_other_weights(results)]
    limits = [math.floor(min(_ends(points)) - 0.5), math.ceil(max(_ends(points)) + 0.5)]
    for compared, words in _COMPARED.items():
        for figure, style in in_both((4.2, 4.6)):
            axes = figure.subplots()
            _draw(axes, [point for point in points if point.compared == compared], style)
            axes.set_ylim(*limits)
            axes.set_title(f"XBN {words}", fontsize=10)
            axes.set_xlabel("share of the training classes in a batch, %", fontsize=9)
            axes.set_ylabel("Recall@1 gained, points", fontsize=9)
            recolour(axes, style)
            options: dict[str, Any] = {"frameon": False, "labelcolor": style.ink, "fontsize": 8.5}
            figure.legend(loc="outside lower center", ncols=2, columnspacing=1, **options)
            save(figure, folder, f"classes-{compared}", style)


def _ends(points: list[Point]) -> Iterator[float]:
    for point in points:
        half_width = point.gain.half_width or 0
        yield from (point.gain.mean - half_width, point.gain.mean + half_width)


def of_han(results: Path) -> Iterator[Point]:
    """Yields XBN and XBM at batch 64, warmed up and filled."""
    runs = Runs(results)
    for method in ("xbn", "xbm"):
        setting = han.memory(method)
        for classes in (*han.SWEEP, 0):
            ours = sweep_values(runs, setting, classes, "recall_at_1")
            for compared, size in (("same", 64), ("four", 256)):
                gain = paired(ours, sweep_values(runs, han.none(size), classes, "recall_at_1"))
                if gain is not None:
                    share = 100 * 32 / (classes or CLASSES)
                    yield Point("Han", share, gain, compared, f"Han, {method.upper()}")


def of_other_weights(results: Path) -> Iterator[Point]:
    """Yields XBN on Han at batch 64, from the first step and from the weights of another task."""
    runs = Runs(results)
    xbn, *none = (replace(case, weights="glyphs") for case in (han.Case("xbn"), han.none(64), han.none(256)))
    for compared, case in zip(("same", "four"), none, strict=True):
        gain = runs.difference(xbn, case, "recall_at_1")
        if gain is not None:
            share = 100 * 32 / CLASSES
            yield Point("Han, other weights", share, gain, compared, "fine-tuning, whole network")


def of_random_weights(results: Path) -> Iterator[Point]:
    """Yields XBN from random weights; the larger batch is of 512, at the best of three rates."""
    study = Study(results)
    for name, setting in _RANDOM.items():
        share = 100 * setting[0] / _PER_CLASS / TRAINED_ON[name.partition(",")[0].lower()]
        ours = study.values("xbn", setting)
        gain = paired(ours, study.values(NONE, setting))
        if gain is not None:
            yield Point(name, share, gain, "same", "random weights")
        large = [study.values(NONE, place) for place in at_batch_512(setting[3]).values()]
        best = max(filter(None, large), key=lambda found: fmean(found.values()), default={})
        if setting[0] == 64 and (gain := paired(ours, best)):
            yield Point(f"{name}, to 512", share, gain, "four", "random weights")


def of_fine_tuning(results: Path, last_stage_at_64: str = "xbn") -> Iterator[Point]:
    """Yields XBN in fine-tuning, everything chosen; the last stage at batch 64 may have another method."""
    study = Study(results)
    for methods, beside in (*_PARTS, (SENSES, 1.0)):
        report, like = Report(study, results, methods), methods[0]
        kind = "fine-tuning, MultiSimilarity" if like.loss else "fine-tuning, SupCon"
        kind = "senses of words" if methods is SENSES else kind
        kind = "fine-tuning, whole network" if methods is WHOLE_NETWORK_LONG else kind
        for data in domains(like):
            for size in sorted(method.batch_size for method in methods if method.name == "xbn"):
                is_another = methods is _LAST_STAGE and size == 64
                method = like._replace(name=last_stage_at_64 if is_another else "xbn", batch_size=size)
                ours = report.confirmed(method, data)
                for compared, large in (("same", size), ("four", 4 * size)):
                    none = like._replace(name=CACHED if large == 256 else NONE, batch_size=large)
                    if none not in methods:  # no batch four times 32 was trained
                        continue
                    gain = paired(ours, report.confirmed(none, data))
                    if gain is not None:
                        share = 100 * size / _PER_CLASS / TRAINED_ON[data] * beside
                        yield Point(f"{_TITLES[data]}, {size}", share, gain, compared, kind)
    report, (none, memory) = Report(study, results, LARGE_BATCH), LARGE_BATCH
    for data in domains(memory):
        gain = paired(report.confirmed(memory, data), report.confirmed(none, data))
        if gain is not None:
            share = 100 * memory.batch_size / _PER_CLASS / TRAINED_ON[data]
            yield Point(f"{_TITLES[data]}, 256", share, gain, "same", "fine-tuning, SupCon")


def of_two_towers(results: Path) -> Iterator[Point]:
    """Yields adapted memories of words and their definitions; other pairs are not classes of a few images."""
    for experiment, rows in experiments(results).items():
        values = dict(experiment)
        if values["data"].endswith("definitions") and values["memory_ratio"] == "0.25":
            gain = gains(rows)["adapted"]
            share = 100 * int(values["batch_size"]) / PAIRS
            yield Point(f"{values['data']}, {values['batch_size']}", share, gain, "same", "two towers")


def of_the_papers() -> Iterator[Point]:
    """Yields XBN of tables of the AXBN paper, which give one figure a setting or a mean."""
    found: dict[tuple[str, str, int, str], float] = {}
    for row in read_csv(_EXPERIMENTS):
        flags = dict(zip(row["flags"].split(), row["flags"].split()[1:], strict=False))
        first, method = re.match(r"1: ([\d.]+)", row["figures"]), flags.get("--method", "")
        is_ours = row["source"] in _TABLES and row["dataset"] in _PAPERS and method in ("no-xbm", "xbn")
        if first is not None and is_ours:
            network = "Swin, " if "swin" in row["flags"] else ""
            found[row["dataset"], network, int(flags.get("--batch-size", 64)), method] = float(first[1])
    for (data, network, size, method), value in found.items():
        for compared, other in (("same", size), ("four", 4 * size)):
            theirs = found.get((data, network, other, "no-xbm"))
            if method == "xbn" and theirs is not None:
                share = 100 * size / _PER_CLASS / TRAINED_ON[data]
                name = f"{network}{_PAPERS[data]}, {size}"
                yield Point(name, share, Difference([value - theirs]), compared, "papers")


# Kind -> sign, colour, and whether it is filled.
_LOOKS = {
    "Han, XBN": ("o-", "blue", True),
    "Han, XBM": ("s-", "orange", True),
    "random weights": ("o", "blue", False),
    "fine-tuning, SupCon": ("D", "green", True),
    "fine-tuning, whole network": ("D", "green", False),
    "fine-tuning, MultiSimilarity": ("x", "green", True),
    "senses of words": ("v", "orange", False),
    "two towers": ("X", "orange", True),
    "papers": ("^", "ink", True),
}
_BESIDE = {"Swin, SOP, 16": (-3, -11)}  # where a name would cover another's


def _draw(axes: Axes, points: list[Point], style: Style) -> None:
    for kind, (mark, colour, is_filled) in _LOOKS.items():
        of_kind = sorted((x for x in points if x.kind == kind), key=lambda point: point.share)
        if not of_kind:
            continue
        shares, means = [x.share for x in of_kind], [x.gain.mean for x in of_kind]
        half_widths = [x.gain.half_width or math.nan for x in of_kind]  # no bar for one seed
        is_of_one_seed = kind != "papers" and all(math.isnan(x) for x in half_widths)
        ink = getattr(style, colour)
        options: dict[str, Any] = {"markersize": 4.5, "capsize": 1.5, "linewidth": 1.2, "color": ink}
        options |= {
            "markerfacecolor": ink if is_filled else style.paper,
            "label": kind + is_of_one_seed * ", one seed",
        }
        axes.errorbar(shares, means, yerr=half_widths, fmt=mark, **options)
        for point in of_kind:
            if kind == "papers":
                place = (point.share, point.gain.mean)
                offset = _BESIDE.get(point.name, (-3, 5))
                axes.annotate(point.name, place, offset, textcoords="offset points", fontsize=7.5)
    axis_of_shares(axes, 14, _TICKS, style)


def axis_of_shares(axes: Axes, most: float, ticks: Sequence[float], style: Style) -> None:
    """Makes the horizontal axis one of shares of the classes in per cent, and draws the line of no gain."""
    axes.set_xscale("log")
    axes.set_xlim(0.025, most)
    axes.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
    axes.minorticks_off()
    axes.axhline(0, color=style.ink, linewidth=0.8)
