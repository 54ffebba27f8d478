"""Cross-Batch Memory for Embedding Learning."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from benchmarks.papers.tables.experiment import Experiment, Figures, recall

_AT: dict[str, Sequence[int]] = {
    "sop": (1, 10, 100, 1000),
    "in-shop": (1, 10, 20, 30, 40, 50),
    "vehicle-id": (1, 5),
    "deep-fashion2": (1, 10, 20),
    "cub": (1, 2, 4, 8, 16, 32),
    "cars": (1, 2, 4, 8, 16, 32),
}
_NETWORKS = {
    "R128": ("xbm-paper", ""),
    "G512": ("xbm-googlenet", "--backbone googlenet --embedding-size 512"),
    "B512": ("xbm-bninception", "--backbone bninception --embedding-size 512"),
}
# The margins and weights are those of the authors' code.
_LOSSES = {
    "Contrastive": ("contrastive", ""),
    "Triplet": (
        "triplet",
        "--loss TripletMarginLoss --loss-options margin=0.1 distance=CosineSimilarity reducer=SumReducer",
    ),
    "MS": (
        "ms",
        "--loss MultiSimilarityLoss --loss-options alpha=2 beta=40 base=0.5 --no-loss-per-anchor "
        "--miner MultiSimilarityMiner --miner-options epsilon=0.1",
    ),
}

# Of VehicleID the small, the medium and the large test set, one after the other.
_TABLE_1: dict[str, dict[str, Figures]] = {
    "Contrastive": {
        "sop": ("64.0", 81.4, 92.1, 97.8),
        "in-shop": (77.1, "93.0", 95.2, 96.1, 96.8, 97.1),
        "vehicle-id": (79.5, 91.6, 76.2, 89.3, "70.0", "86.0"),
    },
    "Contrastive w/ M": {
        "sop": (77.8, 89.8, 95.4, 98.5),
        "in-shop": (89.1, 97.3, 98.1, 98.4, 98.7, 98.8),
        "vehicle-id": (94.1, 96.2, 93.1, 95.5, 92.5, 95.5),
    },
    "Triplet": {
        "sop": (61.6, 80.2, 91.6, 97.7),
        "in-shop": (79.8, 94.8, 96.5, 97.4, 97.8, 98.2),
        "vehicle-id": (86.9, 94.8, 84.8, 93.4, 79.7, 91.4),
    },
    "Triplet w/ M": {
        "sop": (74.2, 87.4, 94.2, "98.0"),
        "in-shop": (82.9, 95.7, 96.9, 97.4, 97.8, "98.0"),
        "vehicle-id": (93.3, 95.8, "92.0", "95.0", 91.3, 94.8),
    },
    "MS": {
        "sop": (69.7, 84.2, 93.1, 97.9),
        "in-shop": (85.1, 96.7, 97.8, 98.3, 98.7, 98.8),
        "vehicle-id": ("91.0", 96.1, 89.4, 94.8, 86.7, 93.8),
    },
    "MS w/ M": {
        "sop": (76.2, 89.3, 95.4, 98.6),
        "in-shop": (87.1, 97.1, "98.0", 98.4, 98.7, 98.9),
        "vehicle-id": (94.1, 96.7, "93.0", 95.8, 92.1, 95.6),
    },
}
_SUPPL_TABLE_3: dict[str, dict[str, Figures]] = {
    "Contrastive": {
        "cub": (57.5, "69.0", 78.8, 86.3, "92.0", "96.0"),
        "cars": (72.5, 81.3, 87.9, 92.4, 95.3, 97.5),
    },
    "Triplet": {
        "cub": (58.1, 69.6, 79.7, 87.5, 92.8, 96.2),
        "cars": (72.4, 81.7, 88.1, 92.7, 95.5, 97.3),
    },
    "MS": {
        "cub": (58.2, 69.8, 79.9, 87.3, 92.8, "96.0"),
        "cars": (75.7, 84.6, 90.1, 94.4, 96.9, 98.4),
    },
}
# Network -> data set -> figures: Tables 3, 4 and 5, and Table 5 of the supplement.
_BEST: dict[str, dict[str, Figures]] = {
    "R128": {
        "sop": (80.6, 91.6, 96.2, 98.7),
        "in-shop": (91.3, 97.8, 98.4, 98.7, "99.0", 99.1),
        "vehicle-id": (94.7, 96.8, 93.7, 95.8, "93.0", 95.8),
        "deep-fashion2": (41.9, 64.6, 70.7),
    },
    "G512": {
        "sop": (77.4, 89.6, 95.4, 98.4),
        "in-shop": (89.4, 97.5, 98.3, 98.6, 98.7, 98.9),
        "vehicle-id": ("94.0", 96.3, 93.2, 95.4, 92.5, 95.5),
        "deep-fashion2": (40.5, 63.2, 69.4),
    },
    "B512": {
        "sop": (79.5, 90.8, 96.1, 98.7),
        "in-shop": (89.9, 97.6, 98.4, 98.6, 98.8, 98.9),
        "vehicle-id": (94.6, 96.9, 93.4, "96.0", "93.0", 96.1),
        "deep-fashion2": (40.9, 63.3, 69.6),
    },
}
_PLACE = {"sop": "Table 3", "in-shop": "Table 4", "vehicle-id": "Table 5", "deep-fashion2": "suppl. Table 5"}
# With 1 and 100 % of the training set, and without memory.
_TABLE_2 = {
    ("Cont. bs. 256", "--method no-xbm --batch-size 256"): 71.7,
    ("Cont. bs. 64", "--method no-xbm"): 63.9,
    ("Cont. w/ 1% R_M", "--memory-ratio 0.01"): 69.8,
}
_SUPPL_TABLE_1 = {"sop": 78.2, "in-shop": 89.3, "cub": 60.3, "cars": 78.8}
_LARGE = ("sop", "in-shop", "vehicle-id")
# Beside the 64 of the tables. Read from the text: the curves' other values cannot be read.
_BATCH_SIZES = (16, 32, 256)
# Share of the training set -> Recall@1 that the text gives, at batch size 16.
_MEMORY_RATIOS: dict[float, dict[str, Figures]] = {0.01: {"in-shop": (79.4,)}, 0.1: {}, 1: {"sop": (78.2,)}}
_GOOGLENET = _NETWORKS["G512"][1]


def _experiments(
    key: str, title: str, dataset: str, flags: str, source: str, figures: Figures = ()
) -> Iterator[Experiment]:
    """One experiment, or on VehicleID one for each of the test sets."""
    flags = " ".join(["--preset xbm", *flags.split()])
    at = _AT[dataset]
    if dataset != "vehicle-id":
        yield Experiment(key, title, dataset, flags, f"XBM, {source}", recall(*figures, at=at))
        return
    for number, size in enumerate(("small", "medium", "large")):
        of_size = figures[2 * number : 2 * number + 2]
        yield Experiment(
            key, title, dataset, f"{flags} --test-size {size}", f"XBM, {source}", recall(*of_size, at=at)
        )


def _pair_based(title: str, dataset: str, source: str, figures: Figures) -> Iterator[Experiment]:
    """A loss with GoogLeNet, with or without memory."""
    loss, _, memory = title.partition(" w/ ")
    key, flags = _LOSSES[loss]
    method = "" if memory else "--method no-xbm"
    name = f"xbm-{key}" if memory else f"xbm-{key}-no-memory"
    yield from _experiments(
        name, f"{title}, G512", dataset, f"{_GOOGLENET} {method} {flags}", source, figures
    )


def _figure_1() -> Iterator[Experiment]:
    for size in _BATCH_SIZES:
        batch = f"{_GOOGLENET} --method no-xbm --batch-size {size}"
        for loss, (key, flags) in _LOSSES.items():
            for dataset in _LARGE if loss == "Contrastive" else ("sop",):
                # The text gives one point of the curves.
                figures = (52.0,) if (loss, dataset, size) == ("Contrastive", "in-shop", 16) else ()
                yield from _experiments(
                    f"xbm-{key}-batch-{size}",
                    f"{loss}, batch {size}",
                    dataset,
                    f"{batch} {flags}",
                    "Figure 1",
                    figures,
                )
    for ratio, known in _MEMORY_RATIOS.items():
        for dataset in _LARGE:
            yield from _experiments(
                f"xbm-batch-16-memory-{ratio}",
                f"Contrastive w/ M, batch 16, R_M = {ratio}",
                dataset,
                f"{_GOOGLENET} --batch-size 16 --memory-ratio {ratio}",
                "Figure 1",
                known.get(dataset, ()),
            )


def _figure_6() -> Iterator[Experiment]:
    for size in (*_BATCH_SIZES, 64):
        for key, title, flags in (
            ("", "Contrastive w/ M", ""),
            ("-random", "Contrastive w/ M*", "--images-per-class 0"),
            ("-random-no-memory", "Contrastive*", "--images-per-class 0 --method no-xbm"),
        ):
            if size != 64 or key:
                yield from _experiments(
                    f"xbm-batch-{size}{key}",
                    f"{title}, batch {size}",
                    "sop",
                    f"{_GOOGLENET} --batch-size {size} {flags}",
                    "Figure 6",
                )


EXPERIMENTS = (
    *(
        experiment
        for network, by_dataset in _BEST.items()
        for dataset, figures in by_dataset.items()
        for experiment in _experiments(
            _NETWORKS[network][0],
            f"Cont. w/M, {network}",
            dataset,
            _NETWORKS[network][1],
            _PLACE[dataset]
            # These have the same command, and figures of their own.
            + (", Table 2, suppl. Table 6, Figure 4" if (network, dataset) == ("G512", "sop") else ""),
            figures,
        )
    ),
    *(
        experiment
        for source, rows in (("Table 1", _TABLE_1), ("suppl. Table 3", _SUPPL_TABLE_3))
        for title, by_dataset in rows.items()
        for dataset, figures in by_dataset.items()
        for experiment in _pair_based(title, dataset, source, figures)
    ),
    *_pair_based("Contrastive", "deep-fashion2", "suppl. Table 5", (29.3, 51.9, 60.3)),
    *(
        experiment
        for (title, flags), figure in _TABLE_2.items()
        for experiment in _experiments(
            "xbm-" + title.lower().replace("% r_m", "-percent").translate(str.maketrans(" ", "-", "./")),
            title,
            "sop",
            f"{_GOOGLENET} {flags}",
            "Table 2",
            (figure,),
        )
    ),
    *(
        experiment
        for dataset, figure in _SUPPL_TABLE_1.items()
        for experiment in _experiments(
            "xbm-contrastive",
            "Contrastive w/ M, m = 0 and α = 0, G512",
            dataset,
            _GOOGLENET,
            "suppl. Table 1, suppl. Table 2",
            (figure,),
        )
    ),
    *_figure_1(),
    *_figure_6(),
    *_experiments(
        "xbm-drift",
        "Feature drift, from scratch",
        "sop",
        f"{_GOOGLENET} --method no-xbm --no-pretrained --diagnostics-every 100",
        "Figure 3",
    ),
)
