"""Every table and figure of the five papers: who repeats it, or why nobody does."""

from __future__ import annotations

import re
from dataclasses import dataclass

from benchmarks.papers.experiments import EXPERIMENTS, Experiment

# The rows of MoCo, which are no experiments of this script.
MOCO = "`moco`"
_PLACE = re.compile(r"(?:suppl\. )?(?:Table|Figure) \d+(?:\.\d+)?")


@dataclass(frozen=True)
class Item:
    """Rows of a table, or curves of a figure.

    Attributes:
        paper: as experiments name it.
        places: tables or figures; of several, one after the other.
        what: which of their rows or curves.
        runs: the table whose experiments have it, where that is another one; or `MOCO`.
        where: what of these experiments has it, where that is not their result.
        reason: why no experiment repeats it.
    """

    paper: str
    places: tuple[str, ...]
    what: str
    runs: str = ""
    where: str = ""
    reason: str = ""

    @property
    def place(self) -> str:
        """Table 1, or Figures 8.1 to 8.23."""
        first, last = self.places[0], self.places[-1].split()[-1]
        if len(self.places) == 1:
            return first
        between = "and" if len(self.places) == 2 else "to"
        return re.sub(r"(Table|Figure) ", r"\1s ", first) + f" {between} {last}"

    @property
    def experiments(self) -> list[Experiment]:
        """Those whose source names the table or figure."""
        if self.reason:
            return []
        wanted = {self.runs} if self.runs else set(self.places)
        return [
            experiment
            for experiment in EXPERIMENTS
            if self.paper == paper_of(experiment) and wanted & set(places_of(experiment))
        ]


def paper_of(experiment: Experiment) -> str:
    return experiment.source.partition(", ")[0]


def places_of(experiment: Experiment) -> list[str]:
    """The tables and figures that a source names."""
    return _PLACE.findall(experiment.source)


def _numbered(kind: str, first: int, last: int) -> tuple[str, ...]:
    """Figure 5., 1, 3 -> Figure 5.1, Figure 5.2, Figure 5.3."""
    return tuple(f"{kind}{number}" for number in range(first, last + 1))


_QUOTED = "quoted from other papers, not run for this one"
_DRAWING = "a drawing of the method"
_PICTURES = "a choice of pictures, from which no figure follows"
_DRIFT = "table `drift_1` of the logs"
_DISTANCES = "table `embeddings` of the logs"
_CURVES = "`curves.png` and the table `accuracy` of the logs"

_OF_AXBN = (
    Item("AXBN", ("Table 1",), "all rows"),
    Item("AXBN", ("Table 2",), "all rows"),
    Item("AXBN", ("Table 3",), "L2+BN, L2+MBN, L2+LN"),
    Item("AXBN", ("Table 3",), "L2", runs="Table 2", where="its rows No-XBM, XBM and XBN"),
    Item("AXBN", ("Table 4",), "all rows"),
    Item("AXBN", ("Table 5",), "XBN+EMA; XBN and AXBN are those of Table 2"),
    Item("AXBN", ("Table 6",), "all rows"),
    Item(
        "AXBN", ("Figure 1",), "all curves, at batch sizes and memories of ours: the axes are not in the text"
    ),
    Item("AXBN", ("Figure 2",), "MoCo", runs=MOCO, where="section *Self-supervised*"),
    Item("AXBN", ("Figure 3",), "drift and Recall@1", runs="Table 2", where=f"{_DRIFT}, and `accuracy`"),
)
_OF_XBM = (
    Item("XBM", ("Table 1",), "all rows"),
    Item("XBM", ("Table 2",), "Recall@1"),
    Item(
        "XBM",
        ("Table 2",),
        "hours and GPU memory",
        reason="of a GPU that it does not name; `benchmarks.step_cost` measures what a memory costs",
    ),
    Item("XBM", ("Table 3",), "Cont. w/M"),
    Item("XBM", ("Table 4",), "Cont. w/M"),
    Item("XBM", ("Table 5",), "Cont. w/M"),
    Item("XBM", _numbered("Table ", 3, 5), "all other rows", reason=_QUOTED),
    Item("XBM", ("Figure 1",), "all curves, at batch sizes that the text names and memories of ours"),
    Item("XBM", ("Figure 2",), "XBM", reason=_DRAWING),
    Item(
        "XBM",
        ("Figure 3",),
        "drift",
        where="tables `drift_10` to `drift_1000` of the logs, of norms not squared",
    ),
    Item("XBM", ("Figure 4",), "valid negatives", where="table `valid_pairs` of the logs"),
    Item("XBM", ("Figure 5",), "mined negatives", reason=_PICTURES),
    Item("XBM", ("Figure 6",), "all curves; * is the random sampler"),
    Item("XBM", ("Figure 7",), "retrieved images", reason=_PICTURES),
    Item("XBM", ("suppl. Table 1",), "all rows"),
    Item("XBM", ("suppl. Table 2",), "all rows"),
    Item("XBM", ("suppl. Table 3",), "all rows"),
    Item("XBM", ("suppl. Table 4",), "w/ M"),
    Item("XBM", ("suppl. Table 4",), "all other rows", reason=_QUOTED),
    Item("XBM", ("suppl. Table 5",), "Contrastive, and w/ M"),
    Item("XBM", ("suppl. Table 5",), "Match RCNN", reason=_QUOTED),
    Item("XBM", ("suppl. Table 6",), "all rows"),
    Item(
        "XBM",
        ("suppl. Table 7",),
        "hyperparameters",
        reason="settings, which the preset `xbm` and the commands have",
    ),
    Item(
        "XBM", ("suppl. Figure 1",), "drift on ImageNet", reason="classification of ImageNet, not retrieval"
    ),
    Item("XBM", _numbered("suppl. Figure ", 2, 5), "negatives and retrieved images", reason=_PICTURES),
)
# Its tables of In-shop, SOP and DeepFashion2 among the first 13; the others are of CIFAR.
_OF_LARGE_DATA = (1, 2, 4, 6, 8, 10, 12)
_OF_THESIS = (
    *(
        Item(
            "Thesis",
            (f"Table 5.{number}",),
            "all rows",
            runs=f"Table 7.{1 if number in _OF_LARGE_DATA else 2}",
        )
        for number in range(1, 14)
    ),
    Item("Thesis", ("Table 5.14",), "all values of λ"),
    Item("Thesis", ("Table 5.15",), "PC-XBN (Adjusted Margin); PC-XBN is that of Table 7.2"),
    Item(
        "Thesis",
        ("Table 5.16",),
        "all rows",
        where=f"the columns `superclass_within_1` to `_5` of {_DISTANCES}",
    ),
    Item("Thesis", ("Table 5.17",), "SC-XBN; the best of the others are those of Tables 7.1 and 7.2"),
    Item("Thesis", ("Table 7.1",), "all rows but SC-XBN, which are those of Table 5.17"),
    Item("Thesis", ("Table 7.2",), "all rows but SC-XBN, which are those of Table 5.17"),
    Item("Thesis", _numbered("Table 9.", 1, 2), "parameters", reason="settings, which `thesis-margins` has"),
    Item("Thesis", _numbered("Figure 2.", 1, 2), "residual networks", reason=_DRAWING),
    Item("Thesis", _numbered("Figure 3.", 1, 4), "losses and XBM", reason=_DRAWING),
    *(
        Item("Thesis", _numbered("Figure 5.", n + first, n + last), f"{what} of {method}", runs, where)
        for what, where, first, last in (("drift", _DRIFT, 0, 0), ("distances", _DISTANCES, 1, 2))
        for n, method, runs in (
            (1, "No-XBM", "Table 7.1"),
            (4, "XBM", "Table 7.1"),
            (7, "XBN", "Table 7.1"),
            (10, "PC-XBN", "Table 7.1"),
            (13, "PC-XBN (Adjusted Margin)", "Table 5.15"),
            (16, "SC-XBN", "Table 5.17"),
        )
    ),
    Item("Thesis", ("Figure 8.1",), "No-XBM in training", runs="Table 7.2", where=_CURVES),
    Item("Thesis", ("Figure 8.2",), "drift of No-XBM", runs="Table 7.1", where=_DRIFT),
    Item("Thesis", _numbered("Figure 8.", 3, 5), "No-XBM in training", runs="Table 7.1", where=_CURVES),
    Item("Thesis", _numbered("Figure 8.", 6, 7), "XBM in training", runs="Table 7.2", where=_CURVES),
    Item("Thesis", _numbered("Figure 8.", 8, 10), "XBM in training", runs="Table 7.1", where=_CURVES),
    Item("Thesis", _numbered("Figure 8.", 11, 12), "XBN in training", runs="Table 7.2", where=_CURVES),
    Item("Thesis", _numbered("Figure 8.", 13, 15), "XBN in training", runs="Table 7.1", where=_CURVES),
    Item("Thesis", _numbered("Figure 8.", 16, 17), "PC-XBN in training", runs="Table 7.2", where=_CURVES),
    Item("Thesis", _numbered("Figure 8.", 18, 20), "PC-XBN in training", runs="Table 7.1", where=_CURVES),
    Item("Thesis", _numbered("Figure 8.", 21, 23), "SC-XBN in training", runs="Table 5.17", where=_CURVES),
)
_OF_NORM_SOFTMAX = (
    Item("NormSoftmax", ("Table 1",), "NormSoftmax"),
    Item("NormSoftmax", ("Table 2",), "NormSoftmax"),
    Item("NormSoftmax", ("Table 3",), "NormSoftmax"),
    Item("NormSoftmax", _numbered("Table ", 1, 3), "all other rows", reason=_QUOTED),
    Item("NormSoftmax", ("Table 4",), "all columns; 72 and 74 images where 75 are no multiple"),
    Item("NormSoftmax", ("Table 5",), "NormSoftmax and LMCL*"),
    Item("NormSoftmax", ("Table 6",), "NormSoftmax and LMCL*"),
    Item(
        "NormSoftmax",
        _numbered("Table ", 5, 6),
        "LMCL 512",
        reason="run on the network that the authors of LMCL recommend, which the paper does not describe",
    ),
    Item("NormSoftmax", _numbered("Table ", 5, 6), "all other rows", reason=_QUOTED),
    Item("NormSoftmax", ("Figure 1",), "the network", reason=_DRAWING),
    Item(
        "NormSoftmax",
        ("Figure 2",),
        "all curves, at the dimensions of the tables: the axis is not in the text",
    ),
    Item(
        "NormSoftmax",
        ("Figure 3",),
        "without layer normalization; with it is Table 3's 512 on CUB",
        where=_CURVES,
    ),
    Item("NormSoftmax", ("Figure 4",), "the shares that the text names"),
)
_OF_SGSL = (
    Item("SGSL", ("Table 1",), "SGSL"),
    Item("SGSL", ("Table 2",), "SGSL"),
    Item("SGSL", _numbered("Table ", 1, 2), "all other rows", reason=_QUOTED),
    Item("SGSL", ("Table 3",), "Softmax 512; Softmax + SGSL are those of Tables 1 and 2"),
    Item("SGSL", ("Table 3",), "Softmax 2,048", reason=f"{_QUOTED}: they are Table 1's Cross-Entropy-cos"),
    Item(
        "SGSL",
        ("Table 3",),
        "L2-Norm, Triplet, SoftMargin and Ring Loss",
        reason="losses beside the softmax loss, whose weights and margins the paper does not give",
    ),
    Item("SGSL", ("Table 4",), "all rows; γ = 30 is Table 1's"),
    Item(
        "SGSL",
        ("Table 5",),
        "the criterion; softmax is taken without RBR",
        where=f"the columns `separability_…` of {_DISTANCES}",
    ),
    Item("SGSL", ("Table 6",), "all rows"),
    Item("SGSL", _numbered("Figure ", 1, 2), "the loss and the network", reason=_DRAWING),
    Item("SGSL", ("Figure 3",), "features of Fashion-MNIST", reason=_PICTURES),
    Item(
        "SGSL", ("Figure 4",), "−1 and 0 modules", runs="Table 4", where="its rows Softmax + RBR and Softmax"
    ),
    Item(
        "SGSL",
        ("Figure 4",),
        "1 module and more",
        reason="made to show that they hurt; no model here has more BN and ReLU than its own",
    ),
)

INVENTORY = (*_OF_AXBN, *_OF_XBM, *_OF_THESIS, *_OF_NORM_SOFTMAX, *_OF_SGSL)
