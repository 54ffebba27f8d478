"""Classification is a Strong Baseline for Deep Metric Learning."""

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

# With 512 dimensions. GoogLeNet's crops are 227 × 227 (§4.1).
_OF_NETWORK = {
    "GoogleNet": ("googlenet", "--backbone googlenet --image-size 227 --resize 256"),
    "BNInception": ("bninception", "--backbone bninception"),
}
# Network -> data set -> Recall@K and NMI: Tables 1 and 2.
_TABLES_1_AND_2: dict[str, dict[str, Figures]] = {
    "GoogleNet": {
        "sop": ("69.0", 84.5, 93.1, 88.2),
        "cars": (75.2, 84.7, 90.4, 94.2, 64.5),
        "cub": (55.3, "67.0", 77.6, 85.4, 62.8),
    },
    "BNInception": {
        "sop": (73.8, 88.1, "95.0", 89.8),
        "cars": (81.7, 88.9, 93.4, "96.0", 70.5),
        "cub": (59.6, "72.0", 81.2, 88.4, 66.2),
    },
}
# Of Tables 5 and 6: BN-Inception with 1024 dimensions, and LMCL on the paper's own network. Neither margin
# nor scale is given: PML's are taken.
_OTHERS: dict[tuple[str, str, str], dict[str, Figures]] = {
    (
        "norm-softmax-bninception-1024",
        "NormSoftmax 1024, BNInception",
        "--backbone bninception --embedding-size 1024",
    ): {
        "sop": (74.7, 88.3, 95.2),
        "in-shop": (86.6, "97.0", "98.0", 98.5),
        "cars": (87.9, 93.2, 96.2, 98.1),
        "cub": (62.2, 73.9, 82.7, 89.4),
    },
    (
        "lmcl-2048",
        "LMCL* 2048",
        "--method no-xbm --miner none --loss CosFaceLoss --loss-options weight_init_func=linear "
        "--embedding-size 2048",
    ): {
        "sop": (77.4, 89.7, 95.3),
        "in-shop": (89.8, 97.8, 98.6, 98.8),
        "cars": (88.3, 93.1, 95.7, 97.4),
        "cub": (61.2, 71.4, 80.4, 87.4),
    },
}
# Samples per class, and in a batch -> Recall@1 on CUB with 512 dimensions.
_TABLE_4: dict[tuple[int, int], float | str] = {
    (0, 75): 59.5,  # no class balancing
    (1, 75): 59.6,
    (3, 75): "60.0",
    (12, 72): 60.8,
    (25, 75): 61.3,
    (37, 74): 59.6,
    (75, 75): 40.9,
}
# The dimensions of Figure 2 cannot be read: taken are those of the tables.
_FIGURE_2 = ("128", "512", "2048")


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
            f"NormSoftmax, Table {_TABLE[dataset]}"
            + (", NMI Table 3" if (size, dataset) in _NMI else "")
            + (", Figure 2" if dataset in ("cars", "cub") else ""),
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
    *(
        Experiment(
            f"norm-softmax-{key}",
            f"NormSoftmax 512, {network}",
            dataset,
            f"--preset norm-softmax {flags}",
            f"NormSoftmax, Table {number}",
            {**recall(*figures[:-1], at=_AT[dataset]), "nmi": str(figures[-1])},
        )
        for number, (network, (key, flags)) in enumerate(_OF_NETWORK.items(), start=1)
        for dataset, figures in _TABLES_1_AND_2[network].items()
    ),
    *(
        Experiment(
            key,
            title,
            dataset,
            f"--preset norm-softmax {flags}",
            f"NormSoftmax, Table {_TABLE[dataset]}",
            recall(*figures, at=_AT[dataset]),
        )
        for (key, title, flags), by_dataset in _OTHERS.items()
        for dataset, figures in by_dataset.items()
    ),
    *(
        Experiment(
            f"samples-per-class-{samples}",
            f"NormSoftmax 512, {samples or 'any'} samples per class",
            "cub",
            f"--preset norm-softmax --images-per-class {samples} --batch-size {batch_size}",
            "NormSoftmax, Table 4",
            recall(figure),
        )
        for (samples, batch_size), figure in _TABLE_4.items()
    ),
    Experiment(
        "no-layer-norm",
        "NormSoftmax 512 without layer normalization",
        "cub",
        "--preset norm-softmax --head linear",
        "NormSoftmax, Figure 3",
        {},
    ),
    *(
        Experiment(
            f"norm-softmax-{network}-{size}{'-bits' if bits else ''}",
            f"NormSoftmax {size}{' bits' if bits else ''}, {network}",
            dataset,
            f"--preset norm-softmax {flags} --embedding-size {size}{' --binary' if bits else ''}",
            "NormSoftmax, Figure 2",
            {},
        )
        for network, flags in (("ResNet50", ""), ("GoogleNet", _OF_NETWORK["GoogleNet"][1]))
        for size in _FIGURE_2
        for bits in (False, True)
        for dataset in ("cars", "cub")
        if network == "GoogleNet" or (bits and size != "2048")
    ),
)
