"""The papers' settings, as far as they differ from the defaults, which are those of the AXBN paper.

Where a paper says nothing, the comment at the value says so.
"""

from __future__ import annotations

from typing import Any

# §5.1 of the AXBN paper is the default of every setting. It is silent on these, which are timm's or
# PML's defaults: weight decay 2e-5, SGD momentum 0.9, the temperature 0.1 of SupConLoss; on the miner in
# the epochs of the last layer alone, which is the same as later; on the interpolation of images.
_AXBN: dict[str, Any] = {}
_AXBN_BY_DATASET: dict[str, dict[str, Any]] = {
    "deep-fashion2": {"memory_ratio": 1.0, "gain_update_interval": 10},
    # A batch of 64 with 4 images per class needs 16 classes. The thesis has "at least 4" (§5.2).
    "cifar10": {"images_per_class": 8},
}

# Cross-Batch Memory, §4.1, §3.3 and its Table 7. Silent on: K, taken as 4 images per class; the margin λ of
# the contrastive loss, taken as 0.5; gradient clipping and mixed precision, taken as none. The weight 1 of
# the batch's own loss is that of its code, as the AXBN paper reports (§5.3.1). Pairs are summed, as in
# Eq. 1, whose 1/m Adam does not see. The ratios R_M of Table 7 are read as shares, not per cent: at 1 its
# SOP run is the 77.4 of Table 3, which Table 2 gives for 100 %. For CUB and Cars it has none; all is taken.
_XBM: dict[str, Any] = {
    "method": "xbm-star",
    "loss": "ContrastiveLoss",
    "loss_options": {
        "pos_margin": 1,
        "neg_margin": 0.5,
        "distance": "CosineSimilarity",
        "reducer": "SumReducer",
    },
    "miner": "none",
    "embedding_size": 128,
    "augmentation": "crop",
    "memory_warmup": 1000,
    "fill_memory": True,
    "batch_loss_weight": 1.0,
    "warmup_epochs": 0,
    "optimizer": "adam",
    "weight_decay": 5e-4,
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

# The thesis repeats the AXBN protocol (§5.2); λμ 0.5, λσ 1 and the delay of 15 epochs are its own
# (§4.3) and the defaults here. Its §9 widens the margins for PC-XBN and SC-XBN.
_THESIS_MARGINS: dict[str, Any] = {"miner_options": {"pos_margin": 0.1, "neg_margin": 2.0}}

# Classification is a Strong Baseline, §4.1. Silent on: the learning rate of the epoch of the new layers,
# taken as that of the others; gradient clipping and mixed precision, taken as none.
_NORM_SOFTMAX: dict[str, Any] = {
    "method": "norm-softmax",
    "head": "layer-norm",
    "augmentation": "crop",
    "batch_size": 75,
    "images_per_class": 5,
    "warmup_epochs": 1,
    "warmup_learning_rate": 0.01,
    "epochs": 30,
    "optimizer": "sgd",
    "learning_rate": 0.01,
    "weight_decay": 1e-4,
    "decay": 0.1,
    "decay_every": 15,
    "clip_gradient": 0.0,
    "mixed_precision": "no",
}
_NORM_SOFTMAX_BY_DATASET: dict[str, dict[str, Any]] = {
    "cub": {"images_per_class": 25, "learning_rate": 0.001, "warmup_learning_rate": 0.001},
    "cars": {"images_per_class": 25},
}

# Stop-Gradient Softmax Loss, Implementation Details. Silent on, with "other settings" those of a paper that
# it cites: the optimizer, its learning rate and weight decay, taken from NormSoftmax; the amount of label
# smoothing, taken as 0.1; a start with the new layers alone and gradient clipping, taken as none.
_SGSL: dict[str, Any] = {
    "method": "sgsl",
    "head": "gem-bn-neck",
    "normalize": False,
    "remove_last_bn_relu": True,
    "embedding_size": 2048,
    "augmentation": "crop",
    "batch_size": 64,
    "images_per_class": 4,
    "warmup_epochs": 0,
    "epochs": 100,
    "optimizer": "sgd",
    "learning_rate": 0.01,
    "weight_decay": 1e-4,
    "schedule": "cosine",
    "clip_gradient": 0.0,
}
_SGSL_BY_DATASET: dict[str, dict[str, Any]] = {"cub": {"learning_rate": 0.001}}

_PRESETS: dict[str, tuple[dict[str, Any], dict[str, dict[str, Any]]]] = {
    "axbn": (_AXBN, _AXBN_BY_DATASET),
    "xbm": (_XBM, _XBM_BY_DATASET),
    "thesis": (_AXBN, _AXBN_BY_DATASET),
    "thesis-margins": (_THESIS_MARGINS, _AXBN_BY_DATASET),
    "norm-softmax": (_NORM_SOFTMAX, _NORM_SOFTMAX_BY_DATASET),
    "sgsl": (_SGSL, _SGSL_BY_DATASET),
}


def preset_values(preset: str, dataset: str) -> dict[str, Any]:
    """The settings of a preset on a data set that are not the defaults."""
    everywhere, by_dataset = _PRESETS[preset]
    return {**everywhere, **by_dataset.get(dataset, {})}
