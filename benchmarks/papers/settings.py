"""Everything that a training run depends on; every field is a flag and a key of config files."""

from __future__ import annotations

import ast
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, get_args

from tyro.constructors import PrimitiveConstructorSpec

from benchmarks.engine import settings as common
from benchmarks.engine.methods import MethodName
from benchmarks.engine.settings import (
    AtLeastOne,
    BelowOne,
    Natural,
    NotNegative,
    Positive,
    Probability,
    Share,
    check,
)

if TYPE_CHECKING:
    Method = str
else:
    Method = Literal[MethodName, "norm-softmax", "sgsl"]
Dataset = Literal[
    "glyphs", "han", "sop", "in-shop", "deep-fashion2", "vehicle-id", "cifar10", "cifar100", "cub", "cars"
]
Preset = Literal["axbn", "xbm", "thesis", "thesis-margins", "norm-softmax", "sgsl"]
Head = Literal["linear", "layer-norm", "bn", "mbn", "ln", "bn-neck", "gem", "gem-bn-neck"]
CHARACTERS = ("glyphs", "han")  # grey, 32 pixels; distorted in training
METHODS, DATASETS, PRESETS = get_args(Method), get_args(Dataset), get_args(Preset)


def _named(words: Sequence[str]) -> dict[str, Any]:
    """Returns the values of flags ``name=value`` by name: Python literals, and anything else as text."""
    found: dict[str, Any] = {}
    for word in words:
        name, equals, value = word.partition("=")
        if not (name and equals):
            raise ValueError(f"{word!r} is not of the form name=value")
        try:
            found[name] = ast.literal_eval(value)
        except (ValueError, SyntaxError):
            found[name] = value
    return found


NamedValues = Annotated[
    dict[str, Any],
    PrimitiveConstructorSpec(
        nargs="*",
        metavar="NAME=VALUE",
        instance_from_str=_named,
        is_instance=lambda value: isinstance(value, dict),
        str_from_instance=lambda values: [f"{name}={value}" for name, value in values.items()],
    ),
]


@dataclass(frozen=True)
class Data:
    """What is trained on, and how it is augmented."""

    dataset: Dataset = "glyphs"  # data set
    test_size: Literal["small", "medium", "large"] = "small"  # test set of VehicleID
    gallery_draws: Positive = 10  # VehicleID: galleries to draw, and to average the figures over
    protocol: Literal["axbn", "xbm"] = "axbn"  # whose classes DeepFashion2 has
    limit_classes: Positive | None = None  # train and test on so many classes each
    image_size: Positive | None = None  # side in pixels; default: 32 for Glyphs and Han, else 224
    resize: Positive | None = None  # side before a crop; default: 8/7 of image_size
    augmentation: Literal["timm", "crop", "resized-crop"] = "timm"
    """timm's; random crops and mirroring; resized crops, colours, mirroring; characters are distorted"""
    rand_augment: str = "rand-m9-mstd0.5"  # timm's name of a RandAugment profile, or none
    random_erasing: Probability = 0.2  # probability of erasing a rectangle
    crop_scale: Share = 0.16  # resized-crop: smallest share of the image
    crop_ratio: AtLeastOne = 4 / 3  # resized-crop: largest ratio of the sides
    color_jitter: NotNegative = 0.0
    """resized-crop: largest change of brightness, contrast and saturation"""
    hue_jitter: NotNegative = 0.0  # resized-crop: largest change of hue, up to 0.5


@dataclass(frozen=True)
class Model:
    """Backbone and head."""

    backbone: str = "resnet50"
    """googlenet, bninception or any of timm's models, with or without the tag of its weights"""
    pretrained: bool = True  # start from pretrained weights
    weights: str | None = None  # file of the pretrained weights; default: timm fetches them
    pooling: Literal["avg", "max"] | None = None  # in place of the backbone's own
    freeze_bn: bool = False  # BN of the backbone keeps its statistics from pretraining
    head: Head = "linear"  # what follows the backbone
    embedding_size: Positive = 512  # length d of an embedding
    normalize: bool = True  # the model returns embeddings of unit length
    remove_last_bn_relu: bool = False  # RBR: drop the backbone's last BN and ReLU
    dropout: BelowOne = 0.0  # share of an embedding that the loss does not see


@dataclass(frozen=True)
class Loss:
    """The method, loss and memory."""

    method: Method = "axbn"  # how the loss sees past batches
    loss: str = "SupConLoss"  # a loss of PML; norm-softmax and sgsl bring their own
    loss_options: NamedValues = field(default_factory=dict)  # name=value arguments of the loss
    loss_per_anchor: bool = False  # divide the loss by the batch size, for one that sums
    miner: str = "PairMarginMiner"  # a miner of PML, or none
    miner_options: NamedValues = field(default_factory=lambda: {"pos_margin": 0.2, "neg_margin": 0.8})
    """name=value arguments of the miner"""
    memory_ratio: Share = 0.5  # rows in memory as a share of the training images
    memory_warmup: Natural = 0  # iterations before rows are stored
    fill_memory: bool = False  # fill the memory with random training images after that
    update: Literal["queue", "average", "gradient"] = "queue"
    """rows of images that come again are new; are averaged; or, like all others, moved by the gradient"""
    update_momentum: BelowOne = 0.0  # average, gradient: m
    update_learning_rate: NotNegative = 0.0  # gradient: α
    update_factor: Positive = 1  # batches that are stored in every iteration; one of them has the loss
    batch_loss_weight: NotNegative = 0.0  # weight of the batch's own loss beside it
    beside: str = "none"  # a loss of the batch that is added to the method's: one that --loss takes, or none
    beside_options: NamedValues = field(default_factory=dict)  # name=value arguments of it
    beside_weight: NotNegative = 1.0  # its weight
    delay: Natural = 15  # delayed: epochs τ before rows are adapted
    momentum: NotNegative = 0.1  # ema: momentum of the batch moments
    mean_lambda: NotNegative = 0.5  # per-class, super-class: λμ
    std_lambda: NotNegative = 1.0  # per-class, super-class: λσ
    process_noise: NotNegative = 1.0  # axbn: q
    measurement_noise: NotNegative = 0.01  # axbn: r
    initial_variance: NotNegative = 1.0  # axbn: p0
    gain_update_interval: Positive = 100  # axbn: iterations between Kalman gains
    temperature: NotNegative = 0.05  # norm-softmax: σ
    class_ratio: Share = 1.0  # norm-softmax: share of the classes per iteration
    gamma: NotNegative = 30.0  # sgsl: γ
    sgsl_start: NotNegative = 3.0  # sgsl: joins where the softmax loss is below; 0: never
    sgsl_weight: NotNegative = 1.0  # sgsl: β
    label_smoothing: BelowOne = 0.1  # sgsl: share of the softmax's target for other classes


@dataclass(frozen=True)
class Optimisation:
    """Batches, lengths and rates."""

    seed: Natural = 0  # of weights, batches and augmentation
    batch_size: Positive = 64  # images per iteration, over all ranks
    accumulate: Positive = 1
    """parts of a batch that are embedded and back-propagated one at a time: less memory, about a third more
    time; loss and memory see the whole batch, batch normalization a part"""
    images_per_class: Natural = 4  # images of each class in a batch; 0: at random from all
    warmup_epochs: Natural = 2  # epochs of the new layers alone, without memory
    warmup_learning_rate: NotNegative = 1e-3  # of SGD in these epochs
    epochs: Positive = 50  # epochs of all layers
    iterations: Positive | None = None  # iterations of all layers, in place of epochs
    steps_per_epoch: Positive | None = None  # cut epochs short
    optimizer: Literal["adamw", "adam", "sgd"] = "adamw"  # of all layers
    learning_rate: NotNegative = 1e-4  # of all layers, at first
    weight_decay: NotNegative = 2e-5  # in both stages
    decay_vectors: bool = False  # weight decay of biases and of the scales of BN too
    sgd_momentum: NotNegative = 0.9  # of SGD, in both stages
    nesterov: bool = True  # SGD with momentum is Nesterov's, in both stages
    warmup_steps: Natural = 0  # iterations in which the learning rate of all layers rises
    schedule: Literal["step", "cosine", "constant"] = "step"  # of the learning rate
    decay: NotNegative = 0.33  # factor of the step schedule
    decay_every: Positive = 15  # epochs between its steps
    decay_at: Positive | None = None  # its one step, an iteration, in place of decay_every
    clip_gradient: NotNegative = 10.0  # largest norm of the gradient; 0 for no limit
    mixed_precision: Literal["no", "fp16", "bf16"] = "fp16"  # on GPUs


@dataclass(frozen=True)
class Testing:
    """What is measured, and which epoch is the result."""

    select: Literal["best-recall", "best-map", "last"] = "best-recall"
    """the epoch that is the result: that of the best test Recall@1, of the best MAP@R, or the last"""
    binary: bool = False  # evaluate the signs of the embeddings
    eval_every: Positive = 1  # epochs between evaluations; the last one is evaluated too
    nmi: bool = True  # cluster the selected epoch's embeddings and print NMI


@dataclass(frozen=True)
class Running(common.Running):
    """Where a run takes place and what it tells of itself."""

    resume: bool = False  # go on from the checkpoints in output
    preset: Preset = "axbn"  # a paper's settings
    root: Path = Path("data")  # folder of the data set
    download: bool = False  # download the data set where possible
    workers: Natural = 4  # processes that load images
    repeat: Positive = 1  # runs, with seeds from the given one up
    output: Path | None = None  # folder of all results; default: runs/PRESET-DATASET-METHOD
    compile: str | None = None
    """backend of torch.compile for the backbone, such as inductor: faster steps after slow first ones;
    beside --accumulate it needs a newer torch than 2.1"""
    sync_bn: bool = True  # on many GPUs, batch normalization sees the batch (or part) of all
    cpu: bool = False  # leave GPUs alone
    log_every: Positive = 20  # iterations between entries of the log
    checkpoint: Natural = 0  # save the state every so many iterations too, not after epochs alone
    evaluate: Path | None = None  # train nothing: the accuracy of a selected.pt or last.pt


@dataclass(frozen=True)
class Settings(Data, Model, Loss, Optimisation, Testing, Running):
    """The defaults are the protocol of the AXBN paper (§5.1); see `presets` for the others."""

    def __post_init__(self) -> None:
        check(self)
