"""The study's pictures: one question each."""

from __future__ import annotations

from pathlib import Path
from statistics import fmean

from matplotlib.figure import Figure

from benchmarks.engine.figures import BLACK, BLUE, GREEN, GREY, LIGHT_BLUE, ORANGE, PINK, plain
from benchmarks.study.data import Setting, Study

_COLOURS = {
    "no-xbm": GREY,
    "xbm": ORANGE,
    "xbn": BLUE,
    "centre": GREEN,
    "always-fresh": BLACK,
    "always-fresh + matching": PINK,
}
_ALONG_THE_WAY = {
    "staleness_before": "staleness of unit vectors,\nbefore adaptation",
    "staleness_after": "staleness of unit vectors,\nafter adaptation",
    "push_push": "common-mode push away\nfrom the memory",
    "push_displacement": "displacement of the memory's mean\nthat the loss sees",
}


def name_of(setting: Setting) -> str:
    batch_size, memory_ratio, norm, regime = setting
    memory = f"batch {batch_size}, memory {100 * memory_ratio:g} %"
    named = {"fast": "", "converged": ", long"}.get(regime, f", {regime}")
    return f"{memory}, {'BatchNorm' if norm == 'batch' else 'GroupNorm'}{named}"


def draw_accuracy(study: Study, settings: list[Setting], path: Path) -> None:
    """How does every method compare with no memory? A dot for every seed, a bar at their mean."""
    figure = Figure(figsize=(4.6 * len(settings), 5), layout="constrained")
    panels = figure.subplots(1, len(settings), squeeze=False)[0]
    for panel, setting in zip(panels, settings, strict=True):
        names = study.methods(setting)
        for place, name in enumerate(reversed(names)):
            values = list(study.values(name, setting, "recall_at_1").values())
            colour = _COLOURS.get(name, LIGHT_BLUE)
            panel.plot(values, [place] * len(values), "o", color=colour, alpha=0.6, markersize=6)
            panel.plot([fmean(values)] * 2, [place - 0.3, place + 0.3], color=colour, linewidth=3)
        if "no-xbm" in names:
            panel.axvline(
                fmean(study.values("no-xbm", setting, "recall_at_1").values()), color="0.5", linestyle="--"
            )
        panel.set_yticks(range(len(names)), list(reversed(names)))
        panel.set(title=name_of(setting).replace("%, ", "%\n"), xlabel="Recall@1 (%)")
        plain(panel, "x")
    figure.savefig(path, dpi=130)


def draw_along_the_way(study: Study, setting: Setting, path: Path) -> None:
    """Is it age or displacement? What the diagnostics measure while the methods train."""
    figure = Figure(figsize=(16, 4), layout="constrained")
    panels = figure.subplots(1, len(_ALONG_THE_WAY))
    for panel, (column, label) in zip(panels, _ALONG_THE_WAY.items(), strict=True):
        for name in ("xbm", "xbn", "centre", "always-fresh", "always-fresh + matching"):
            steps, values = study.curve(name, setting, column)
            if steps:
                panel.plot(steps, values, color=_COLOURS[name], label=name, linewidth=1.8)
        panel.set(title=label, xlabel="step")
        plain(panel)
    panels[0].legend(frameon=False)
    figure.savefig(path, dpi=130)


def draw_ages(study: Study, setting: Setting, path: Path) -> None:
    """Are older rows staler, and what does adaptation take away at each age?"""
    figure = Figure(figsize=(8, 4.4), layout="constrained")
    panel = figure.subplots()
    for name in ("xbm", "xbn", "centre"):
        for when, line in (("before", "--"), ("after", "-")):
            if name == "xbm" and when == "after":
                continue  # nothing adapts its rows
            ages, values = study.staleness_by_age(name, setting, when)
            if ages:
                label = name if name == "xbm" else f"{name}, {when} adaptation"
                style = "-" if name == "xbm" else line
                panel.plot(ages, values, style, marker="o", color=_COLOURS[name], label=label, linewidth=1.8)
    panel.set_xscale("log", base=2)
    panel.set(
        title=f"Are older rows staler? ({name_of(setting)})",
        xlabel="age of the row in steps, from",
        ylabel="distance to the fresh embedding, unit vectors",
        ylim=(0, None),
    )
    plain(panel)
    panel.legend(frameon=False)
    figure.savefig(path, dpi=130)


def draw_epochs(study: Study, settings: list[Setting], path: Path) -> None:
    """When does a memory pay? Recall@1 after every epoch, without memory and with those of the settings."""
    figure = Figure(figsize=(8, 4.4), layout="constrained")
    panel = figure.subplots()
    for setting, line in zip(settings, ("-", "--"), strict=False):
        share = f"memory {100 * setting[1]:g} %"
        for name in ("no-xbm", "xbm", "xbn"):
            if (name == "no-xbm") != (setting[1] == 0):
                continue
            epochs, values = study.accuracy_by_epoch(name, setting, "recall_at_1")
            label = name if name == "no-xbm" else f"{name}, {share}"
            panel.plot(epochs, values, line, color=_COLOURS[name], label=label, linewidth=1.8)
    panel.set(
        title=f"When does a memory pay? (batch {settings[0][0]})", xlabel="epoch", ylabel="Recall@1 (%)"
    )
    plain(panel)
    panel.legend(frameon=False)
    figure.savefig(path, dpi=130)
