"""Adaptive Cross Batch Normalization for Metric Learning."""

from __future__ import annotations

from benchmarks.papers.tables.experiment import Experiment, Figures, recall

_NAMES = {"no-xbm": "No-XBM", "xbm": "XBM", "xbm-star": "XBM*", "xbn": "XBN", "axbn": "AXBN"}

# Method -> data set -> Recall@1 and Recall@10; means of three runs.
_TABLE_2: dict[str, dict[str, Figures]] = {
    "no-xbm": {
        "sop": ("75.94 ± 0.03", "89.74 ± 0.05"),
        "in-shop": ("88.76 ± 0.15", "97.76 ± 0.13"),
    },
    "xbm": {
        "sop": ("76.80 ± 2.65", "89.34 ± 1.90"),
        "in-shop": ("86.17 ± 0.18", "96.58 ± 0.28"),
    },
    "xbm-star": {
        "sop": ("79.53 ± 0.09", "91.64 ± 0.01"),
        "in-shop": ("90.91 ± 0.10", "98.20 ± 0.03"),
    },
    "xbn": {
        "sop": ("80.62 ± 0.17", "91.85 ± 0.11"),
        "in-shop": ("91.49 ± 0.07", "98.31 ± 0.10"),
    },
    "axbn": {
        "sop": ("80.73 ± 0.30", "91.98 ± 0.15"),
        "in-shop": ("91.51 ± 0.20", "98.35 ± 0.09"),
    },
}
_TABLE_1: dict[str, dict[str, Figures]] = {
    "no-xbm": {"deep-fashion2": ("36.45 ± 0.06", "61.44 ± 0.31")},
    "xbm": {"deep-fashion2": ("41.22 ± 2.96", "62.24 ± 3.54")},
    "xbn": {"deep-fashion2": ("45.12 ± 0.08", "66.32 ± 0.17")},
    "axbn": {"deep-fashion2": ("45.33 ± 0.28", "66.26 ± 0.63")},
}
_LARGER_BATCH = {
    "sop": ("79.63 ± 0.13", "91.76 ± 0.02"),
    "in-shop": ("90.39 ± 0.01", "98.18 ± 0.03"),
}
# Head -> method -> figures, on SOP. The best epochs of BN and MBN were in the warm-up, hence equal.
_TABLE_3: dict[str, dict[str, Figures]] = {
    "bn": {"no-xbm": (48.96, 65.06), "xbm": (48.96, 65.06), "xbn": (48.96, 65.06)},
    "mbn": {"no-xbm": (48.96, 65.06), "xbm": (48.96, 65.06), "xbn": (48.96, 65.06)},
    "ln": {"no-xbm": (75.77, 89.54), "xbm": (79.51, 91.17), "xbn": (80.58, 91.77)},
}
# Batch size -> method -> figures, on SOP. The paper does not say which Swin, nor which weights: taken are the
# base one and timm's default, trained on ImageNet-22k first.
_SWIN = "swin_base_patch4_window7_224.ms_in22k_ft_in1k"
_TABLE_4: dict[int, dict[str, Figures]] = {
    16: {
        "no-xbm": ("77.80", "90.70"),
        "xbm": (61.18, 76.95),
        "xbn": (86.25, 94.89),
        "axbn": ("86.40", 94.96),
    },
    32: {"no-xbm": (81.81, 92.91), "xbm": (86.99, 95.39), "xbn": (87.59, 95.57), "axbn": (87.74, 95.66)},
}
# On SOP.
_TABLE_6 = {"no-xbm": (78.69, 91.21), "xbm": (78.38, 90.39), "xbn": (79.96, 91.02), "axbn": (80.31, 91.31)}

EXPERIMENTS = (
    *(
        Experiment(
            method,
            _NAMES[method],
            dataset,
            f"--preset axbn --method {method} --repeat 3",
            f"AXBN, Table {table}",
            recall(*figures),
        )
        for table, rows in ((2, _TABLE_2), (1, _TABLE_1))
        for method, by_dataset in rows.items()
        for dataset, figures in by_dataset.items()
    ),
    *(
        Experiment(
            "no-xbm-512",
            "No-XBM, batch 512",
            dataset,
            "--preset axbn --method no-xbm --batch-size 512 --repeat 3",
            "AXBN, Table 2",
            recall(*figures),
        )
        for dataset, figures in _LARGER_BATCH.items()
    ),
    Experiment(
        "ema",
        "XBN+EMA",
        "sop",
        "--preset axbn --method ema --momentum 0.1",
        "AXBN, Table 5",
        recall(80.48, 91.95),
    ),
    *(
        Experiment(
            f"{head}-{method}",
            f"{_NAMES[method]}, L2+{head.upper()}",
            "sop",
            f"--preset axbn --method {method} --head {head}",
            "AXBN, Table 3",
            recall(*figures),
        )
        for head, by_method in _TABLE_3.items()
        for method, figures in by_method.items()
    ),
    *(
        Experiment(
            f"swin-{batch_size}-{method}",
            f"{_NAMES[method]}, Swin, batch {batch_size}",
            "sop",
            f"--preset axbn --method {method} --backbone {_SWIN} --batch-size {batch_size}",
            "AXBN, Table 4",
            recall(*figures),
        )
        for batch_size, by_method in _TABLE_4.items()
        for method, figures in by_method.items()
    ),
    *(
        Experiment(
            f"batch-256-{method}",
            f"{_NAMES[method]}, batch 256",
            "sop",
            f"--preset axbn --method {method} --batch-size 256",
            "AXBN, Table 6",
            recall(*figures),
        )
        for method, figures in _TABLE_6.items()
    ),
)
