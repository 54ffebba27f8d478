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
# Title and flags -> figures on Cars, with 2048 dimensions.
_TABLE_4: dict[tuple[str, str, str], Figures] = {
    ("softmax", "Softmax", "--sgsl-start 0 --no-remove-last-bn-relu"): (91.9, 95.6, 97.4, 98.7),
    ("softmax-rbr", "Softmax + RBR", "--sgsl-start 0"): (92.4, "96.0", 97.8, 98.9),
    ("sgsl-gamma-1", "Softmax + RBR + SGSL (γ = 1)", "--gamma 1"): (94.1, 96.9, 98.1, "99.0"),
    ("sgsl-gamma-10", "Softmax + RBR + SGSL (γ = 10)", "--gamma 10"): (94.6, 97.1, 98.3, 99.1),
    ("sgsl-gamma-50", "Softmax + RBR + SGSL (γ = 50)", "--gamma 50"): (94.5, "97.0", 98.3, 99.1),
    ("sgsl-gamma-70", "Softmax + RBR + SGSL (γ = 70)", "--gamma 70"): (94.4, 97.2, 98.4, "99.0"),
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
)
