"""The table of all experiments, and which of them a run repeats."""

from __future__ import annotations

import shlex
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import Any

from benchmarks.engine.results import markdown, read_csv
from benchmarks.engine.settings import identity
from benchmarks.papers.experiments import EXPERIMENTS, Experiment
from benchmarks.papers.inception import INCEPTIONS
from benchmarks.papers.inventory import INVENTORY
from benchmarks.papers.presets import read_settings
from benchmarks.papers.results import metric_name
from benchmarks.papers.settings import Settings

MOCO_CSV = Path(__file__).parents[1] / "results" / "moco_glyphs.csv"

# What makes a run another experiment, not the same one with other optimisation.
_IDENTITY = (
    *("dataset", "test_size", "method", "head", "embedding_size", "batch_size", "binary", "images_per_class"),
    *("class_ratio", "gamma", "sgsl_start", "sgsl_weight", "memory_ratio", "remove_last_bn_relu"),
    *("update", "update_momentum", "update_learning_rate", "update_factor"),
    *("mean_lambda", "std_lambda", "miner_options", "loss", "beside", "beside_options", "beside_weight"),
)
_NOT_COMPARED = ("seed", "nmi")

_INTRODUCTION = """\
# The papers' experiments

One command each. `python -m benchmarks.papers --list` prints this page, and `--list cub` the rows with that
text. After a run the script prints its result beside the paper's figures, and which epoch it is of,
the best or the last, as its paper has it (`--select`). `--repeat 3` prints mean ± standard deviation over
three seeds, `--resume` goes on with a run that was interrupted, and
`torchrun --nproc_per_node=N -m benchmarks.papers …` spreads a batch over N GPUs.

The table has the figures printed in the papers, in per cent but for SGSL's Table 5. None of these
experiments has been run at full size by us. To try out one, without a download, end its command with
`--dataset glyphs --backbone resnet18 --no-pretrained`.

[Presets](presets.md) has every value behind `--preset`, and where it comes from: a paper's section, its
authors' code, or nowhere. Data sets: Stanford Online Products (`sop`), In-shop Clothes Retrieval
(`in-shop`), DeepFashion2, PKU VehicleID, CIFAR-10 and -100, CUB-200-2011 and Cars-196, each in the folder
given by `--root`. `--download` fetches those that can be fetched. Figures on VehicleID are means over
`--gallery-draws` random galleries, 10 unless said; XBM does not say over how many. DeepFashion2 is run
with the classes of `--protocol`, XBM's with its preset, on the 12,377 queries and the gallery of 36,961
that are released. XBM prints 32,550 and 37,183, which cannot be had. A query without a match is a miss.

Where a paper draws a curve without printing its values there is no figure. The last two sections have the
tables and figures whose numbers are those of other rows, or in the logs of their runs, and what is left out.
The thesis does not say which data sets its Figures 5.1 to 5.12 are of; its text names four of the five.

XBM's margins of the triplet and the MS loss are its code's. Its supplement's Tables 1 and 2 change one of
two numbers, and Table 7 gives CUB and Cars both, m = 0.9 and α of 0.2 and 0.1: the rows of Tables 3 and 4
have both. Rows go against the gradient, where the paper prints a plus. With `--update-factor` nine more
batches are embedded in every iteration, and the logs have no staleness. NormSoftmax trained GoogLeNet on
SOP in one stage too, with ten times the learning rate for new layers, and does not say which of the two its
table has: the row here has the two stages of all others. It gives neither margin nor scale of LMCL; PML's
are taken. `bninception` needs `pip install pretrainedmodels six`.

The thesis runs the AXBN paper's protocol and reports much lower figures for the same methods, which it
could not explain (§5.4.1): compare its figures with its own No-XBM. Its Table 5.14 gives neither the
margins of the miner nor the other λ. Assumed are the usual λμ = 0.5 and λσ = 1, and the wide margins of its
Table 9.1, since its figures at these (84.8 to 91.7 about λμ = 0.5, and 85.0 at λσ = 1) lie far above the
39.69 of its Table 5.13.

SGSL's Table 3 does not give the weights and margins of the losses beside the softmax loss; those of its rows
are assumed, and listed under [Presets](presets.md#sgsl). The thesis proposes the Center Contrastive Loss (Eq.
3.4) for PC-XBN (§6.1.3) without trying it: `--method per-class --beside CenterContrastiveLoss` does, with
assumed numbers.

The AXBN paper and the thesis do not name their pretrained weights: their rows start from timm's default,
`resnet50.a1_in1k` at present. Nor does the AXBN paper say which Swin its Table 4 has, nor with which weights.
Every result names the weights that it started from. In its Table 3 the best epochs of BN and MBN are those of
the warm-up, hence equal. NormSoftmax, §4.5, does not give the size of its embeddings; 512 is taken.
"""
_MOCO = """
## Self-supervised

Paper and Glyphs: accuracy of a weighted kNN, in per cent. On Glyphs after five epochs, one seed, of
`python -m benchmarks.moco --methods moco xbn axbn`, read from `benchmarks/results/moco_glyphs.csv`.

| Experiment | Name in the paper | Data set | Paper | Source | Glyphs | Command |
|:--|:--|:--|:--|:--|--:|:--|"""


def parse_experiment(experiment: Experiment) -> Settings:
    """The settings of an experiment's command."""
    return _parse(experiment.arguments)


@cache
def _parse(arguments: str) -> Settings:
    return read_settings(shlex.split(arguments))


def paper_weights(experiment: Experiment) -> str:
    """The pretrained weights of an experiment; those whose paper does not name them have no tag."""
    backbone = parse_experiment(experiment).backbone
    return backbone if "." in backbone or backbone in INCEPTIONS else "not stated"


def table(text: str = "") -> str:
    """The page of all experiments, in Markdown; or the rows that contain a text."""
    rows = []
    for experiment in EXPERIMENTS:
        cells = [
            f"`{experiment.key}`",
            experiment.title.replace("*", "\\*"),
            f"`{experiment.dataset}`",
            "; ".join(f"{metric_name(key)} {value}" for key, value in experiment.figures.items())
            or "a curve",
            experiment.source,
            f"`python -m benchmarks.papers {experiment.arguments}`",
        ]
        rows.append(f"| {' | '.join(cells)} |")
    if text:
        return "".join(f"{row}\n" for row in [*rows, *_moco_rows()] if text.lower() in row.lower())
    elsewhere = [
        (item.paper, item.place, item.what, item.runs or item.place, item.where or "the results")
        for item in INVENTORY
        if item.runs or item.where
    ]
    left_out = [(item.paper, item.place, item.what, item.reason) for item in INVENTORY if item.reason]
    parts = [
        _INTRODUCTION,
        _markdown("Experiment | Name in the paper | Data set | Paper | Source | Command", []),
        *(*rows, _MOCO, *_moco_rows()),
        "\n## Read from the runs of other rows, or from logs\n",
        _markdown("Paper | Table or figure | What | Rows | Where", elsewhere),
        "\n## What is left out, and why\n",
        _markdown("Paper | Table or figure | What | Why", left_out),
    ]
    return "".join(f"{part}\n" for part in parts)


def _markdown(header: str, rows: Iterable[Iterable[str]]) -> str:
    columns = header.split(" | ")
    return markdown(columns, rows, columns)


def _moco_rows() -> list[str]:
    """MoCo with and without an adapted queue, which a script of its own trains."""
    glyphs = "; ".join(f"{row['method']} {float(row['weighted_knn']):.1f}" for row in read_csv(MOCO_CSV))
    return [
        f"| `moco` | MoCo + XBN | `{dataset}` | about 4 above MoCo at epoch 15 | AXBN, Appendix B "
        f"| {glyphs} | `python -m benchmarks.moco --dataset {dataset} --root data --methods moco xbn` |"
        for dataset in ("cifar10", "cifar100")
    ]


def same_experiments(settings: Settings) -> list[tuple[Experiment, list[str]]]:
    """The experiments that a run repeats, each with the settings that differ.

    First those of the run's own preset, and among them those with the fewest differences.
    """
    found: list[tuple[bool, Experiment, list[str]]] = []
    for experiment in EXPERIMENTS:
        if experiment.dataset != settings.dataset:
            continue  # before its command is read, which takes a while
        theirs = parse_experiment(experiment)
        if _identity(settings) == _identity(theirs):
            is_other = settings.preset != theirs.preset
            found.append((is_other, experiment, _differences(settings, theirs)))
    found.sort(key=lambda row: (row[0], len(row[2])))
    return [(experiment, differences) for _, experiment, differences in found]


def _identity(settings: Settings) -> list[Any]:
    # Other pretrained weights are a difference that is told, not another experiment.
    architecture = settings.backbone.partition(".")[0]
    return [architecture, *(getattr(settings, name) for name in _IDENTITY)]


def _differences(ours: Settings, theirs: Settings) -> list[str]:
    own, others = identity(ours), identity(theirs)
    return [
        f"{name}={value!r}, theirs {others[name]!r}"
        for name, value in own.items()
        if name not in _NOT_COMPARED and value != others[name]
    ]
