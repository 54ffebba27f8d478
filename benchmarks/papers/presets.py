"""The papers' settings, as far as they differ from the defaults, which are those of the AXBN paper.

Where every value comes from, and which of them no paper states, is in docs/presets.md.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from benchmarks.engine import command_line
from benchmarks.papers.settings import Settings

_AXBN: dict[str, Any] = {}
_AXBN_BY_DATASET: dict[str, dict[str, Any]] = {
    "deep-fashion2": {"memory_ratio": 1.0, "gain_update_interval": 10},
    # A batch of 64 with 4 images per class needs 16 classes. The thesis has "at least 4" (§5.2).
    "cifar10": {"images_per_class": 8},
}

_XBM: dict[str, Any] = {
    "method": "xbm-star",
    "loss": "ContrastiveLoss",
    "loss_options": {
        "pos_margin": 1,
        "neg_margin": 0.5,
        "distance": "CosineSimilarity",
        "reducer": "SumReducer",
    },
    # With the sums, Eq. 1. Adam would hardly see the factor but for the weight decay, which it adds to the
    # gradient: of a loss 64 times as large it would be a 64th.
    "loss_per_anchor": True,
    "miner": "none",
    "backbone": "resnet50.tv_in1k",
    "pooling": "max",
    "embedding_size": 128,
    "augmentation": "crop",
    "memory_warmup": 1000,
    "fill_memory": True,
    "batch_loss_weight": 1.0,
    "select": "best-map",
    "warmup_epochs": 0,
    "optimizer": "adam",
    "weight_decay": 5e-4,
    "decay_vectors": True,
    "decay": 0.1,
    "clip_gradient": 0.0,
    "mixed_precision": "no",
}
_XBM_BY_DATASET: dict[str, dict[str, Any]] = {
    "sop": {"learning_rate": 3e-4, "decay_at": 24_000, "iterations": 34_000, "memory_ratio": 1.0},
    "in-shop": {"learning_rate": 3e-4, "decay_at": 24_000, "iterations": 34_000, "memory_ratio": 0.2},
    "vehicle-id": {"learning_rate": 1e-4, "decay_at": 30_000, "iterations": 50_000, "memory_ratio": 0.5},
    "deep-fashion2": {
        "protocol": "xbm",
        "learning_rate": 3e-4,
        "decay_at": 20_000,
        "iterations": 36_000,
        "memory_ratio": 1.0,
    },
    "cub": {"learning_rate": 3e-5, "schedule": "constant", "iterations": 1_400, "memory_ratio": 1.0},
    "cars": {"learning_rate": 1e-4, "decay_at": 1_400, "iterations": 2_000, "memory_ratio": 1.0},
}

_THESIS_MARGINS: dict[str, Any] = {"miner_options": {"pos_margin": 0.1, "neg_margin": 2.0}}

_NORM_SOFTMAX: dict[str, Any] = {
    "method": "norm-softmax",
    "backbone": "resnet50.tv_in1k",
    "head": "layer-norm",
    "augmentation": "crop",
    "batch_size": 75,
    "images_per_class": 5,
    "select": "last",
    "warmup_epochs": 1,
    "warmup_learning_rate": 0.01,
    "epochs": 30,
    "optimizer": "sgd",
    "nesterov": False,
    "learning_rate": 0.01,
    "weight_decay": 1e-4,
    "decay_vectors": True,
    "decay": 0.1,
    "decay_every": 15,
    "clip_gradient": 0.0,
    "mixed_precision": "no",
}
_NORM_SOFTMAX_BY_DATASET: dict[str, dict[str, Any]] = {
    "cub": {"images_per_class": 25, "learning_rate": 0.001, "warmup_learning_rate": 0.001},
    "cars": {"images_per_class": 25},
}

_SGSL: dict[str, Any] = {
    "method": "sgsl",
    "backbone": "resnet50.tv_in1k",
    "freeze_bn": True,
    "head": "gem-bn-neck",
    "normalize": False,
    "dropout": 0.5,
    "remove_last_bn_relu": True,
    "embedding_size": 2048,
    "augmentation": "resized-crop",
    "batch_size": 64,
    "images_per_class": 4,
    "warmup_epochs": 0,
    "epochs": 100,
    "optimizer": "sgd",
    "sgd_momentum": 0.0,
    "nesterov": False,
    "learning_rate": 0.02,
    "weight_decay": 5e-4,
    "schedule": "cosine",
    "warmup_steps": 100,
    "clip_gradient": 0.0,
}
_SGSL_LARGE = {"learning_rate": 0.003, "sgd_momentum": 0.99, "nesterov": True}
_SGSL_BY_DATASET: dict[str, dict[str, Any]] = {
    "cub": {"color_jitter": 0.25},
    "cars": {"learning_rate": 0.05, "color_jitter": 0.3, "hue_jitter": 0.1, "crop_ratio": 1.0},
    "sop": _SGSL_LARGE,
    "in-shop": _SGSL_LARGE,
    # Here the backbone is untrained, and has no statistics to keep.
    "glyphs": {"freeze_bn": False},
}

_PRESETS: dict[str, tuple[dict[str, Any], dict[str, dict[str, Any]]]] = {
    "axbn": (_AXBN, _AXBN_BY_DATASET),
    "xbm": (_XBM, _XBM_BY_DATASET),
    "thesis": (_AXBN, _AXBN_BY_DATASET),
    "thesis-margins": (_THESIS_MARGINS, _AXBN_BY_DATASET),
    "norm-softmax": (_NORM_SOFTMAX, _NORM_SOFTMAX_BY_DATASET),
    "sgsl": (_SGSL, _SGSL_BY_DATASET),
}


# Flags that only some values of another setting know: that setting, these values, the flags. Glyphs, on which
# every command can be tried, ignores those of other data sets.
_ONLY_WITH: tuple[tuple[str, tuple[str, ...], tuple[str, ...]], ...] = (
    ("dataset", ("vehicle-id",), ("test_size", "gallery_draws")),
    ("dataset", ("deep-fashion2",), ("protocol",)),
    ("augmentation", ("resized-crop",), ("crop_scale", "crop_ratio", "color_jitter", "hue_jitter")),
    ("augmentation", ("crop", "resized-crop"), ("resize",)),
    ("augmentation", ("timm",), ("rand_augment", "random_erasing")),
    ("method", ("delayed",), ("delay",)),
    ("update", ("average", "gradient"), ("update_momentum",)),
    ("update", ("gradient",), ("update_learning_rate",)),
    ("method", ("ema",), ("momentum",)),
    ("method", ("per-class", "super-class"), ("mean_lambda", "std_lambda")),
    ("method", ("axbn",), ("process_noise", "measurement_noise", "initial_variance", "gain_update_interval")),
    ("method", ("norm-softmax",), ("temperature", "class_ratio")),
    ("method", ("sgsl",), ("gamma", "sgsl_start", "sgsl_weight", "label_smoothing")),
)


def preset_values(preset: str, dataset: str) -> dict[str, Any]:
    """The settings of a preset on a data set that are not the defaults."""
    everywhere, by_dataset = _PRESETS.get(preset, ({}, {}))
    return {**everywhere, **by_dataset.get(dataset, {})}


def read_settings(arguments: Sequence[str] | None = None, description: str | None = None) -> Settings:
    """The settings of a command line: flags, then the config file, then the preset, then the defaults.

    Raises:
        ValueError: a value is impossible, or has no effect.
    """

    def preset(named: dict[str, str]) -> dict[str, Any]:
        return preset_values(*(named.get(name, getattr(Settings, name)) for name in ("preset", "dataset")))

    settings, named = command_line.read(Settings, description, arguments, preset)
    for other, values, names in _ONLY_WITH:
        value, idle = getattr(settings, other), [name for name in names if name in named]
        if idle and value not in (*values, "glyphs"):
            raise ValueError(
                f"--{idle[0].replace('_', '-')} has no effect with --{other} {value}; "
                f"it is of {' and '.join(values)}"
            )
    return settings
