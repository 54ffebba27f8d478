"""The table of all experiments, and which of them a run repeats."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from benchmarks.engine.results import markdown, read_csv
from benchmarks.engine.settings import identity
from benchmarks.papers.experiments import EXPERIMENTS, Experiment
from benchmarks.papers.results import metric_name
from benchmarks.papers.settings import Settings

MOCO_CSV = Path(__file__).parents[1] / "results" / "moco_glyphs.csv"
# Tables and figures of the papers, with who repeats them, or why nobody does.
INVENTORY = read_csv(Path(__file__).with_name("inventory.csv"))

# What makes a run another experiment, not the same one with other optimisation.
_IDENTITY = (
    *("dataset", "test_size", "method", "head", "embedding_size", "batch_size", "binary", "images_per_class"),
    *("class_ratio", "gamma", "sgsl_start", "sgsl_weight", "memory_ratio", "remove_last_bn_relu"),
    *("update", "update_momentum", "update_learning_rate", "update_factor"),
    *("mean_lambda", "std_lambda", "miner_options", "loss", "beside", "beside_options", "beside_weight"),
)
_NOT_COMPARED = ("seed", "nmi")


def table(text: str = "") -> str:
    """Returns the page of all experiments, in Markdown; or the rows that contain a text."""
    header = ["Experiment", "Name in the paper", "Data set", "Paper", "Source", "Command"]
    rows = markdown(header, [_cells(experiment) for experiment in EXPERIMENTS], header)
    if text:
        every = [*rows.splitlines()[2:], *_moco_rows()]
        return "".join(f"{row}\n" for row in every if text.lower() in row.lower())
    elsewhere = [
        (
            item["paper"],
            item["place"],
            item["what"],
            item["runs"] or item["place"],
            item["where"] or "the results",
        )
        for item in INVENTORY
        if item["runs"] or item["where"]
    ]
    left_out = [
        [item[name] for name in ("paper", "place", "what", "reason")] for item in INVENTORY if item["reason"]
    ]
    columns = ["Paper", "Table or figure", "What"]
    page = Path(__file__).with_name("reproducing.md").read_text(encoding="utf-8")
    return page.format(
        experiments=rows,
        moco="\n".join(_moco_rows()),
        elsewhere=markdown(titles := [*columns, "Rows", "Where"], elsewhere, titles),
        left_out=markdown(titles := [*columns, "Why"], left_out, titles),
    )


def _cells(experiment: Experiment) -> list[str]:
    figures = "; ".join(f"{metric_name(key)} {value}" for key, value in experiment.figures.items())
    return [
        f"`{experiment.key}`",
        experiment.title.replace("*", "\\*"),
        f"`{experiment.dataset}`",
        figures or "a curve",
        experiment.source,
        f"`python -m benchmarks.papers {experiment.arguments}`",
    ]


def _moco_rows() -> list[str]:
    """Returns the rows of MoCo, which a script of its own trains."""
    glyphs = "; ".join(f"{row['method']} {float(row['weighted_knn']):.1f}" for row in read_csv(MOCO_CSV))
    return [
        f"| `moco` | MoCo + XBN | `{dataset}` | about 4 above MoCo at epoch 15 | AXBN, Appendix B "
        f"| {glyphs} | `python -m benchmarks.moco --dataset {dataset} --root data --methods moco xbn` |"
        for dataset in ("cifar10", "cifar100")
    ]


def same_experiments(settings: Settings) -> list[tuple[Experiment, list[str]]]:
    """Returns the experiments that a run repeats, each with the settings that differ.

    First those of the run's own preset, and among them those with the fewest differences.
    """
    found: list[tuple[bool, Experiment, list[str]]] = []
    for experiment in EXPERIMENTS:
        if experiment.dataset != settings.dataset:
            continue  # before its command is read, which takes a while
        theirs = experiment.settings
        if _identity(settings) == _identity(theirs):
            is_other = settings.preset != theirs.preset
            found.append((is_other, experiment, _differences(settings, theirs)))
    found.sort(key=lambda row: (row[0], len(row[2])))
    return [(experiment, differences) for _, experiment, differences in found]


def _identity(settings: Settings) -> list[Any]:
    # Other pretrained weights are a difference that is reported, not another experiment.
    architecture = settings.backbone.partition(".")[0]
    return [architecture, *(getattr(settings, name) for name in _IDENTITY)]


def _differences(ours: Settings, theirs: Settings) -> list[str]:
    own, others = identity(ours), identity(theirs)
    return [
        f"{name}={value!r}, theirs {others[name]!r}"
        for name, value in own.items()
        if name not in _NOT_COMPARED and value != others[name]
    ]
