"""Classification is a Strong Baseline for Deep Metric Learning: the rows of ResNet-50."""

from __future__ import annotations

from collections.abc import Sequence

from benchmarks.papers.tables.experiment import Experiment, Figures, recall

_SOP, _IN_SHOP, _FINE = (1, 10, 100), (1, 10, 20, 30), (1, 2, 4, 8)
_AT: dict[str, Sequence[int]] = {"sop": _SOP, "in-shop": _IN_SHOP, "cars": _FINE, "cub": _FINE}
_TABLE = {"sop": 5, "in-shop": 5, "cars": 6, "cub": 6}

# Embedding size -> data set -> figures.
_FIGURES: dict[str, dict[str, Figures]] = {
    "128": {
        "sop": (75.2, 88.7, 95.2),
        "in-shop": (86.6, 96.8, 97.8, 98.3),
        "cars": (81.6, 88.7, 93.4, 96.3),
        "cub": (56.5, 69.6, 79.9, 87.6),
    },
    "512": {
        "sop": (78.2, 90.6, 96.2),
        "in-shop": (88.6, 97.5, 98.4, 98.8),
        "cars": (84.2, 90.4, 94.4, 96.9),
        "cub": (61.3, 73.9, 83.5, "90.0"),
    },
    "2048": {
        "sop": (79.5, 91.5, 96.7),
        "in-shop": (89.4, 97.8, 98.7, "99.0"),
        "cars": (89.3, 94.1, 96.4, "98.0"),
        "cub": (65.3, 76.7, 85.4, 91.8),
    },
    "2048 bits": {
        "sop": (78.2, 90.9, 96.4),
        "in-shop": (88.8, 97.8, 98.5, 98.8),
        "cars": (88.7, 93.7, 96.4, "98.0"),
        "cub": (63.3, 75.2, 84.3, "91.0"),
    },
}
_NMI = {  # Table 3
    ("128", "sop"): 90.4,
    ("128", "cars"): 72.9,
    ("128", "cub"): 66.9,
    ("512", "sop"): "91.0",
    ("512", "cars"): "74.0",
    ("512", "cub"): 69.7,
}
# Share of the classes -> Recall@1 on SOP. The size of the embeddings is not given; 512 is taken.
_SUBSAMPLING = {0.1: "within 1 of 78.2", 0.01: "75.7", 0.001: "72.0"}


def _figures(size: str, dataset: str) -> dict[str, str]:
    figures = recall(*_FIGURES[size][dataset], at=_AT[dataset])
    nmi = _NMI.get((size, dataset))
    return figures if nmi is None else {**figures, "nmi": str(nmi)}


EXPERIMENTS = (
    *(
        Experiment(
            "norm-softmax-" + size.replace(" ", "-"),
            f"NormSoftmax {size}",
            dataset,
            "--preset norm-softmax --embedding-size "
            + (size if size.isdecimal() else f"{size.split()[0]} --binary"),
            f"NormSoftmax, Table {_TABLE[dataset]}" + (", NMI Table 3" if (size, dataset) in _NMI else ""),
            _figures(size, dataset),
        )
        for size, by_dataset in _FIGURES.items()
        for dataset in by_dataset
    ),
    *(
        Experiment(
            f"class-ratio-{ratio}",
            f"NormSoftmax, {100 * ratio:g} % of the classes",
            "sop",
            f"--preset norm-softmax --class-ratio {ratio}",
            "NormSoftmax, §4.5, Figure 4",
            recall(figure),
        )
        for ratio, figure in _SUBSAMPLING.items()
    ),
)
