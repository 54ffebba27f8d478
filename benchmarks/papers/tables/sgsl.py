"""Stop-Gradient Softmax Loss for Deep Metric Learning."""

from __future__ import annotations

from collections.abc import Sequence

from benchmarks.papers.tables.experiment import Experiment, Figures, recall

_AT: dict[str, Sequence[int]] = {
    "sop": (1, 10, 100),
    "in-shop": (1, 10, 20, 40),
    "cars": (1, 2, 4, 8),
    "cub": (1, 2, 4, 8),
}

# Embedding size -> data set -> figures.
_FIGURES: dict[int, dict[str, Figures]] = {
    512: {
        "cub": ("72.0", 81.1, 88.3, 93.1),
        "cars": (94.1, 96.7, "98.0", "99.0"),
        "sop": (81.4, 91.8, 96.2),
        "in-shop": (93.5, 98.6, 99.1, 99.3),
    },
    2048: {
        "cub": (75.9, "85.0", 90.7, 94.5),
        "cars": (94.7, 97.2, 98.3, 99.1),
        "sop": (83.1, "93.0", "97.0"),
        "in-shop": ("93.0", 98.6, 99.1, 99.3),
    },
}
_SOFTMAX = "--sgsl-start 0 --no-remove-last-bn-relu"
# Title and flags -> figures on Cars, with 2048 dimensions.
_TABLE_4: dict[tuple[str, str, str], Figures] = {
    ("softmax", "Softmax", _SOFTMAX): (91.9, 95.6, 97.4, 98.7),
    ("softmax-rbr", "Softmax + RBR", "--sgsl-start 0"): (92.4, "96.0", 97.8, 98.9),
    ("sgsl-gamma-1", "Softmax + RBR + SGSL (γ = 1)", "--gamma 1"): (94.1, 96.9, 98.1, "99.0"),
    ("sgsl-gamma-10", "Softmax + RBR + SGSL (γ = 10)", "--gamma 10"): (94.6, 97.1, 98.3, 99.1),
    ("sgsl-gamma-50", "Softmax + RBR + SGSL (γ = 50)", "--gamma 50"): (94.5, "97.0", 98.3, 99.1),
    ("sgsl-gamma-70", "Softmax + RBR + SGSL (γ = 70)", "--gamma 70"): (94.4, 97.2, 98.4, "99.0"),
}
# Data set -> figures of softmax alone, with 512 dimensions. At 2,048 the paper quotes others.
_TABLE_3: dict[str, Figures] = {
    "cub": (67.9, 78.5, "86.0", 91.8),
    "cars": (92.1, 95.7, 97.5, 98.7),
    "in-shop": (92.7, 98.5, "99.0"),
}
# Data set -> class separability of softmax and of softmax + SGSL, with 2048 dimensions.
_TABLE_5 = {"cub": ("33.0", "36.0"), "cars": (39.4, 41.3), "sop": (7.6, 8.9), "in-shop": (13.4, 14.2)}
# β -> figures on Cars, with 2048 dimensions; of 1.0 they are those of Table 1.
_TABLE_6: dict[float, Figures] = {
    0.1: (93.2, 96.4, "98.0", 98.8),
    0.5: (94.1, 96.8, 98.1, 98.9),
    1.0: (94.7, 97.2, 98.3, 99.1),
    2.0: (93.5, 96.7, 97.9, 98.9),
    10.0: ("93.0", 96.2, 97.8, 98.9),
}
EXPERIMENTS = (
    *(
        Experiment(
            f"sgsl-{size}",
            f"SGSL {size}",
            dataset,
            f"--preset sgsl --embedding-size {size}",
            f"SGSL, Table {2 if dataset == 'in-shop' else 1}",
            recall(*figures, at=_AT[dataset]),
        )
        for size, by_dataset in _FIGURES.items()
        for dataset, figures in by_dataset.items()
    ),
    *(
        Experiment(
            key,
            title,
            "cars",
            f"--preset sgsl --embedding-size 2048 {flags}",
            "SGSL, Table 4",
            recall(*figures, at=_AT["cars"]),
        )
        for (key, title, flags), figures in _TABLE_4.items()
    ),
    *(
        Experiment(
            "softmax-512",
            "Softmax",
            dataset,
            f"--preset sgsl --embedding-size 512 {_SOFTMAX}",
            "SGSL, Table 3",
            recall(*figures, at=_AT[dataset]),
        )
        for dataset, figures in _TABLE_3.items()
    ),
    *(
        Experiment(
            key,
            title,
            dataset,
            f"--preset sgsl --embedding-size 2048{flags}",
            "SGSL, Table 5",
            {"separability_criterion": str(figure)},
        )
        for dataset, figures in _TABLE_5.items()
        for (key, title, flags), figure in zip(
            (("softmax", "Softmax", f" {_SOFTMAX}"), ("sgsl-2048", "Softmax+SGSL", "")), figures, strict=True
        )
    ),
    *(
        Experiment(
            f"sgsl-beta-{beta:g}",
            f"SGSL, β = {beta}",
            "cars",
            f"--preset sgsl --embedding-size 2048 --sgsl-weight {beta:g}",
            "SGSL, Table 6",
            recall(*figures, at=_AT["cars"]),
        )
        for beta, figures in _TABLE_6.items()
    ),
)
