"""Everything that a training run depends on; every field is a flag and a key of config files."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.engine import settings as common
from benchmarks.engine.settings import (
    at_least_1,
    natural,
    not_negative,
    positive,
    probability,
    setting,
    share,
)
from pml_xbn.heads import HEADS

METHODS = (
    "no-xbm",
    "xbm",
    "xbm-star",
    "xbn",
    "axbn",
    "ema",
    "per-class",
    "super-class",
    "delayed",
    "centre",
    "unit-norm",
    "norm-softmax",
    "sgsl",
)
DATASETS = (
    "glyphs",
    "sop",
    "in-shop",
    "deep-fashion2",
    "vehicle-id",
    "cifar10",
    "cifar100",
    "cub",
    "cars",
)
PRESETS = ("axbn", "xbm", "thesis", "thesis-margins", "norm-softmax", "sgsl")


@dataclass(frozen=True)
class Settings:
    """The defaults are the protocol of the AXBN paper (§5.1); see `presets` for the others."""

    # -- the experiment
    preset: str = setting("axbn", "a paper's settings", choices=PRESETS, affects_result=False)

    # -- data
    dataset: str = setting("glyphs", "data set", choices=DATASETS)
    root: Path = setting(Path("data"), "folder of the data set", Path, affects_result=False)
    download: bool = setting(False, "download the data set where possible", bool, affects_result=False)
    test_size: str = setting("small", "test set of VehicleID", choices=("small", "medium", "large"))
    gallery_draws: int = setting(
        10, "VehicleID: galleries to draw, and to average the figures over", positive
    )
    protocol: str = setting("axbn", "whose classes DeepFashion2 has", choices=("axbn", "xbm"))
    limit_classes: int | None = setting(None, "train and test on so many classes each", positive)
    image_size: int | None = setting(None, "side in pixels; default: 32 for Glyphs, else 224", positive)
    augmentation: str = setting(
        "timm",
        "timm's; random crops and mirroring; or random resized crops, colours and mirroring; "
        "Glyphs are distorted",
        choices=("timm", "crop", "resized-crop"),
    )
    rand_augment: str = setting("rand-m9-mstd0.5", "timm's name of a RandAugment profile, or none")
    random_erasing: float = setting(0.2, "probability of erasing a rectangle", not_negative)
    crop_scale: float = setting(0.16, "resized-crop: smallest share of the image", share)
    crop_ratio: float = setting(4 / 3, "resized-crop: largest ratio of the sides", at_least_1)
    color_jitter: float = setting(
        0.0, "resized-crop: largest change of brightness, contrast and saturation", not_negative
    )
    hue_jitter: float = setting(0.0, "resized-crop: largest change of hue, up to 0.5", not_negative)
    workers: int = setting(4, "processes that load images", natural, affects_result=False)

    # -- model
    backbone: str = setting("resnet50", "any of timm's models, with or without the tag of its weights")
    pretrained: bool = setting(True, "start from pretrained weights", bool)
    weights: str | None = setting(None, "file of the pretrained weights; default: timm fetches them")
    pooling: str | None = setting(None, "in place of the backbone's own", choices=("avg", "max"))
    freeze_bn: bool = setting(False, "BN of the backbone keeps its statistics from pretraining", bool)
    head: str = setting("linear", "what follows the backbone", choices=HEADS)
    embedding_size: int = setting(512, "length d of an embedding", positive)
    normalize: bool = setting(True, "the model returns embeddings of unit length", bool)
    remove_last_bn_relu: bool = setting(False, "RBR: drop the backbone's last BN and ReLU", bool)
    dropout: float = setting(0.0, "share of an embedding that the loss does not see", probability)

    # -- method
    method: str = setting("axbn", "how the loss sees past batches", choices=METHODS)
    loss: str = setting("SupConLoss", "a loss of PML; norm-softmax and sgsl bring their own")
    loss_options: dict[str, Any] = setting({}, "name=value arguments of the loss", dict)
    loss_per_anchor: bool = setting(False, "divide the loss by the batch size, for one that sums", bool)
    miner: str = setting("PairMarginMiner", "a miner of PML, or none")
    miner_options: dict[str, Any] = setting(
        {"pos_margin": 0.2, "neg_margin": 0.8}, "name=value arguments of the miner", dict
    )
    memory_ratio: float = setting(0.5, "rows in memory as a share of the training images", share)
    memory_warmup: int = setting(0, "iterations before rows are stored", natural)
    fill_memory: bool = setting(False, "fill the memory with random training images after that", bool)
    batch_loss_weight: float = setting(0.0, "weight of the batch's own loss beside it", not_negative)
    delay: int = setting(15, "delayed: epochs τ before rows are adapted", natural)
    momentum: float = setting(0.1, "ema: momentum of the batch moments", not_negative)
    mean_lambda: float = setting(0.5, "per-class, super-class: λμ", not_negative)
    std_lambda: float = setting(1.0, "per-class, super-class: λσ", not_negative)
    process_noise: float = setting(1.0, "axbn: q", not_negative)
    measurement_noise: float = setting(0.01, "axbn: r", not_negative)
    initial_variance: float = setting(1.0, "axbn: p0", not_negative)
    gain_update_interval: int = setting(100, "axbn: iterations between Kalman gains", positive)
    temperature: float = setting(0.05, "norm-softmax: σ", not_negative)
    class_ratio: float = setting(1.0, "norm-softmax: share of the classes per iteration", share)
    gamma: float = setting(30.0, "sgsl: γ", not_negative)
    sgsl_start: float = setting(3.0, "sgsl: joins where the softmax loss is below; 0: never", not_negative)
    label_smoothing: float = setting(
        0.1, "sgsl: share of the softmax's target for other classes", probability
    )

    # -- optimisation
    batch_size: int = setting(64, "images per iteration, over all ranks", positive)
    images_per_class: int = setting(4, "images of each class in a batch", positive)
    warmup_epochs: int = setting(2, "epochs of the new layers alone, without memory", natural)
    warmup_learning_rate: float = setting(1e-3, "of SGD in these epochs", not_negative)
    epochs: int = setting(50, "epochs of all layers", positive)
    iterations: int | None = setting(None, "iterations of all layers, in place of epochs", positive)
    steps_per_epoch: int | None = setting(None, "cut epochs short", positive)
    optimizer: str = setting("adamw", "of all layers", choices=("adamw", "adam", "sgd"))
    learning_rate: float = setting(1e-4, "of all layers, at first", not_negative)
    weight_decay: float = setting(2e-5, "in both stages", not_negative)
    decay_vectors: bool = setting(False, "weight decay of biases and of the scales of BN too", bool)
    sgd_momentum: float = setting(0.9, "of SGD, in both stages", not_negative)
    nesterov: bool = setting(True, "SGD with momentum is Nesterov's, in both stages", bool)
    warmup_steps: int = setting(0, "iterations in which the learning rate of all layers rises", natural)
    schedule: str = setting("step", "of the learning rate", choices=("step", "cosine", "constant"))
    decay: float = setting(0.33, "factor of the step schedule", not_negative)
    decay_every: int = setting(15, "epochs between its steps", positive)
    decay_at: int | None = setting(None, "its one step, an iteration, in place of decay_every", positive)
    clip_gradient: float = setting(10.0, "largest norm of the gradient; 0 for no limit", not_negative)
    mixed_precision: str = setting("fp16", "on GPUs", choices=("no", "fp16", "bf16"))

    # -- evaluation
    binary: bool = setting(False, "evaluate the signs of the embeddings", bool)
    nmi: bool = setting(True, "cluster the best epoch's embeddings and print NMI", bool)

    # -- run
    seed: int = common.seed()
    repeat: int = setting(1, "runs, with seeds from the given one up", positive, affects_result=False)
    output: Path | None = common.output(None, "folder of all results; default: runs/PRESET-DATASET-METHOD")
    resume: bool = common.resume()
    sync_bn: bool = setting(
        True, "on many ranks, batch normalization sees the batch of all", bool, affects_result=False
    )
    cpu: bool = setting(False, "leave GPUs alone", bool, affects_result=False)
    log_every: int = setting(20, "iterations between entries of the log", positive, affects_result=False)
    diagnostics_every: int = common.diagnostics_every()
