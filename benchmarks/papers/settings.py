"""Everything that a training run depends on; every field is a flag and a key of config files."""

# ruff: noqa: RUF009 (the call is that of dataclasses.field, with metadata)

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.engine.flag_values import natural, positive
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


def share(text: str) -> float:
    if not 0 < float(text) <= 1:
        raise ValueError(f"{text} is not above 0 and at most 1")
    return float(text)


def probability(text: str) -> float:
    if not 0 <= float(text) < 1:
        raise ValueError(f"{text} is not from 0 up and below 1")
    return float(text)


def at_least_1(text: str) -> float:
    if not 1 <= float(text) < float("inf"):
        raise ValueError(f"{text} is not a finite number from 1 up")
    return float(text)


def not_negative(text: str) -> float:
    if not 0 <= float(text) < float("inf"):
        raise ValueError(f"{text} is not a finite number from 0 up")
    return float(text)


def _setting(
    default: Any,
    explanation: str,
    parse: Any = str,
    *,
    choices: tuple[str, ...] | None = None,
    affects_result: bool = True,
) -> Any:
    """A field; ``parse`` reads a flag's text, bool and dict stand for switches and name=value pairs."""
    metadata = {
        "help": explanation,
        "parse": parse,
        "choices": choices,
        "affects_result": affects_result,
    }
    if parse is dict:
        return field(default_factory=lambda: dict(default), metadata=metadata)
    return field(default=default, metadata=metadata)


@dataclass(frozen=True)
class Settings:
    """The defaults are the protocol of the AXBN paper (§5.1); see `presets` for the others."""

    # -- the experiment
    preset: str = _setting("axbn", "a paper's settings", choices=PRESETS, affects_result=False)

    # -- data
    dataset: str = _setting("glyphs", "data set", choices=DATASETS)
    root: Path = _setting(Path("data"), "folder of the data set", Path, affects_result=False)
    download: bool = _setting(False, "download the data set where possible", bool, affects_result=False)
    test_size: str = _setting("small", "test set of VehicleID", choices=("small", "medium", "large"))
    gallery_draws: int = _setting(
        10, "VehicleID: galleries to draw, and to average the figures over", positive
    )
    protocol: str = _setting("axbn", "whose classes DeepFashion2 has", choices=("axbn", "xbm"))
    limit_classes: int | None = _setting(None, "train and test on so many classes each", positive)
    image_size: int | None = _setting(None, "side in pixels; default: 32 for Glyphs, else 224", positive)
    augmentation: str = _setting(
        "timm",
        "timm's; random crops and mirroring; or random resized crops, colours and mirroring; "
        "Glyphs are distorted",
        choices=("timm", "crop", "resized-crop"),
    )
    rand_augment: str = _setting("rand-m9-mstd0.5", "timm's name of a RandAugment profile, or none")
    random_erasing: float = _setting(0.2, "probability of erasing a rectangle", not_negative)
    crop_scale: float = _setting(0.16, "resized-crop: smallest share of the image", share)
    crop_ratio: float = _setting(4 / 3, "resized-crop: largest ratio of the sides", at_least_1)
    color_jitter: float = _setting(
        0.0, "resized-crop: largest change of brightness, contrast and saturation", not_negative
    )
    hue_jitter: float = _setting(0.0, "resized-crop: largest change of hue, up to 0.5", not_negative)
    workers: int = _setting(4, "processes that load images", natural, affects_result=False)

    # -- model
    backbone: str = _setting("resnet50", "any of timm's models, with or without the tag of its weights")
    pretrained: bool = _setting(True, "start from pretrained weights", bool)
    weights: str | None = _setting(None, "file of the pretrained weights; default: timm fetches them")
    pooling: str | None = _setting(None, "in place of the backbone's own", choices=("avg", "max"))
    freeze_bn: bool = _setting(False, "BN of the backbone keeps its statistics from pretraining", bool)
    head: str = _setting("linear", "what follows the backbone", choices=HEADS)
    embedding_size: int = _setting(512, "length d of an embedding", positive)
    normalize: bool = _setting(True, "the model returns embeddings of unit length", bool)
    remove_last_bn_relu: bool = _setting(False, "RBR: drop the backbone's last BN and ReLU", bool)
    dropout: float = _setting(0.0, "share of an embedding that the loss does not see", probability)

    # -- method
    method: str = _setting("axbn", "how the loss sees past batches", choices=METHODS)
    loss: str = _setting("SupConLoss", "a loss of PML; norm-softmax and sgsl bring their own")
    loss_options: dict[str, Any] = _setting({}, "name=value arguments of the loss", dict)
    loss_per_anchor: bool = _setting(False, "divide the loss by the batch size, for one that sums", bool)
    miner: str = _setting("PairMarginMiner", "a miner of PML, or none")
    miner_options: dict[str, Any] = _setting(
        {"pos_margin": 0.2, "neg_margin": 0.8}, "name=value arguments of the miner", dict
    )
    memory_ratio: float = _setting(0.5, "rows in memory as a share of the training images", share)
    memory_warmup: int = _setting(0, "iterations before rows are stored", natural)
    fill_memory: bool = _setting(False, "fill the memory with random training images after that", bool)
    batch_loss_weight: float = _setting(0.0, "weight of the batch's own loss beside it", not_negative)
    delay: int = _setting(15, "delayed: epochs τ before rows are adapted", natural)
    momentum: float = _setting(0.1, "ema: momentum of the batch moments", not_negative)
    mean_lambda: float = _setting(0.5, "per-class, super-class: λμ", not_negative)
    std_lambda: float = _setting(1.0, "per-class, super-class: λσ", not_negative)
    process_noise: float = _setting(1.0, "axbn: q", not_negative)
    measurement_noise: float = _setting(0.01, "axbn: r", not_negative)
    initial_variance: float = _setting(1.0, "axbn: p0", not_negative)
    gain_update_interval: int = _setting(100, "axbn: iterations between Kalman gains", positive)
    temperature: float = _setting(0.05, "norm-softmax: σ", not_negative)
    class_ratio: float = _setting(1.0, "norm-softmax: share of the classes per iteration", share)
    gamma: float = _setting(30.0, "sgsl: γ", not_negative)
    sgsl_start: float = _setting(3.0, "sgsl: joins where the softmax loss is below; 0: never", not_negative)
    label_smoothing: float = _setting(
        0.1, "sgsl: share of the softmax's target for other classes", probability
    )

    # -- optimisation
    batch_size: int = _setting(64, "images per iteration, over all ranks", positive)
    images_per_class: int = _setting(4, "images of each class in a batch", positive)
    warmup_epochs: int = _setting(2, "epochs of the new layers alone, without memory", natural)
    warmup_learning_rate: float = _setting(1e-3, "of SGD in these epochs", not_negative)
    epochs: int = _setting(50, "epochs of all layers", positive)
    iterations: int | None = _setting(None, "iterations of all layers, in place of epochs", positive)
    steps_per_epoch: int | None = _setting(None, "cut epochs short", positive)
    optimizer: str = _setting("adamw", "of all layers", choices=("adamw", "adam", "sgd"))
    learning_rate: float = _setting(1e-4, "of all layers, at first", not_negative)
    weight_decay: float = _setting(2e-5, "in both stages", not_negative)
    decay_vectors: bool = _setting(False, "weight decay of biases and of the scales of BN too", bool)
    sgd_momentum: float = _setting(0.9, "of SGD, in both stages", not_negative)
    nesterov: bool = _setting(True, "SGD with momentum is Nesterov's, in both stages", bool)
    warmup_steps: int = _setting(0, "iterations in which the learning rate of all layers rises", natural)
    schedule: str = _setting("step", "of the learning rate", choices=("step", "cosine", "constant"))
    decay: float = _setting(0.33, "factor of the step schedule", not_negative)
    decay_every: int = _setting(15, "epochs between its steps", positive)
    decay_at: int | None = _setting(None, "its one step, an iteration, in place of decay_every", positive)
    clip_gradient: float = _setting(10.0, "largest norm of the gradient; 0 for no limit", not_negative)
    mixed_precision: str = _setting("fp16", "on GPUs", choices=("no", "fp16", "bf16"))

    # -- evaluation
    binary: bool = _setting(False, "evaluate the signs of the embeddings", bool)
    nmi: bool = _setting(True, "cluster the best epoch's embeddings and print NMI", bool)

    # -- run
    seed: int = _setting(0, "of weights, batches and augmentation", natural)
    repeat: int = _setting(1, "runs, with seeds from the given one up", positive, affects_result=False)
    output: Path | None = _setting(
        None, "folder of all results; default: runs/PRESET-DATASET-METHOD", Path, affects_result=False
    )
    resume: bool = _setting(False, "go on from the checkpoints in output", bool, affects_result=False)
    sync_bn: bool = _setting(
        True, "on many ranks, batch normalization sees the batch of all", bool, affects_result=False
    )
    cpu: bool = _setting(False, "leave GPUs alone", bool, affects_result=False)
    log_every: int = _setting(20, "iterations between entries of the log", positive, affects_result=False)
    diagnostics_every: int = _setting(
        200,
        "iterations between entries of the log on staleness, push, valid pairs and drift; 0: none",
        natural,
        affects_result=False,
    )
