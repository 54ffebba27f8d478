"""The table of all experiments, which of them a run repeats, and its result beside theirs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.engine.results import markdown, read_csv, spread
from benchmarks.engine.settings import identity
from benchmarks.papers.experiments import EXPERIMENTS, Experiment
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
_NAMES = {
    "map_at_r": "MAP@R",
    "nmi": "NMI",
    "separability_criterion": "class separability",
    "separability_between": "scatter between classes",
    "separability_within": "scatter within classes",
}


def table(text: str = "") -> str:
    """Returns the page of all experiments, in Markdown; or the rows that contain a text."""
    header = ["Experiment", "Name in the paper", "Data set", "Paper", "Source", "Command"]
    rows = markdown(header, [_cells(experiment) for experiment in EXPERIMENTS], header)
    if text:
        every = [*rows.splitlines()[2:], *_moco_rows()]
        return "".join(f"{row}\n" for row in every if text.lower() in row.lower())
    first = ("paper", "place", "what")
    elsewhere = [
        [*(item[name] for name in first), item["runs"] or item["place"], item["where"] or "the results"]
        for item in INVENTORY
        if item["runs"] or item["where"]
    ]
    left_out = [[item[name] for name in (*first, "reason")] for item in INVENTORY if item["reason"]]
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


def metric_name(key: str) -> str:
    """Returns the name in print: recall_at_1 is Recall@1."""
    return _NAMES.get(key) or key.replace("recall_at_", "Recall@").replace(
        "superclass_within_", "superclass@"
    )


def _as_papers(values: Sequence[float]) -> str:
    """Returns the mean ± the standard deviation, as the paper's column has it."""
    return spread(values, ".2f").replace(" (sd", " ±").rstrip(")")


def result_table(
    results: Sequence[dict[str, float]],
    paper: Mapping[str, str],
    source: str,
    settings: Mapping[str, tuple[str, str]],
) -> str:
    """Returns a Markdown table of runs beside the paper, a row per metric, then the epoch and settings."""
    lines = [
        [metric_name(key), _as_papers([row[key] for row in results if key in row]), paper.get(key, "–")]
        for key in {**results[0], **paper}
        if key != "epoch"
    ]
    epochs = ", ".join(str(int(row["epoch"])) for row in results)
    lines += [["epoch", epochs, "–"], *([name, *values] for name, values in settings.items())]
    return markdown(["metric", "result", source if paper else "paper"], lines, ["metric"])
