"""What the experiment of Adaptive Cross Batch Normalization, Appendix B, is run with."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal, get_args

import torch

from benchmarks.engine import settings as common
from benchmarks.engine.settings import BelowOne, Must, Natural, Positive, check

# As everywhere, but for the queue as it is: PML's CrossBatchMemory with a whole state_dict.
Method = Literal["moco", "xbn", "axbn", "centre"]
METHODS = get_args(Method)
DATASETS = {"glyphs": "Glyphs", "cifar10": "CIFAR-10", "cifar100": "CIFAR-100"}
AboveZero = Annotated[float, Must(lambda value: 0 < value < float("inf"), "a finite number above 0")]
AboveOne = Annotated[int, Must(lambda value: value > 1, "2 or more")]


@dataclass(frozen=True)
class Experiment:
    """What a result depends on."""

    dataset: Literal["glyphs", "cifar10", "cifar100"] = "glyphs"  # data set
    epochs: Positive = 5  # over which the rate falls; on CIFAR 200, as in PML's notebook
    batch_size: Positive = 128  # images per step; each gives a query and a key
    queue: Positive = 4096  # keys in memory
    momentum: BelowOne = 0.99  # of the key encoder; at 1 the keys would never learn
    temperature: AboveZero = 0.1  # of InfoNCE
    bn_splits: Positive = 8  # groups of a batch with BN statistics of their own; 1: ordinary BN
    seed: Natural = 0  # of weights, batches and augmentation
    classes: AboveOne | None = None  # train and test on so many classes


@dataclass(frozen=True)
class Running(common.Running):
    """What it does not depend on."""

    resume: bool = False  # go on from the checkpoints in output
    methods: tuple[Method, ...] = ("moco", "xbn", "axbn")  # what is compared
    root: Path = Path("data")  # folder of CIFAR
    download: bool = False  # download CIFAR into root unless it is there
    workers: Natural = 2  # processes that load CIFAR
    device: str = "cuda" if torch.cuda.is_available() else "cpu"  # where training takes place
    output: Path = Path("runs/moco")  # folder of all results
    checkpoint: Natural = 0  # save the state every so many steps too, not after epochs alone


@dataclass(frozen=True)
class Settings(Experiment, Running):
    """The paper gives the batch size and the encoder's momentum; everything else is that of PML's notebook
    "MoCo on CIFAR10", which it follows.
    """

    embedding_size: int = 128
    learning_rate: float = 0.03
    sgd_momentum: float = 0.9
    weight_decay: float = 5e-4
    knn_k: int = 200
    knn_temperature: float = 0.1

    def __post_init__(self) -> None:
        check(self)
        if self.batch_size % self.bn_splits or self.batch_size < 2 * self.bn_splits:
            raise ValueError(
                f"batch_size is {self.batch_size}; it must be a multiple of bn_splits={self.bn_splits}, and "
                "at least twice as large, for batch normalization of every group on its own"
            )
        if self.queue < self.batch_size:
            raise ValueError(
                f"queue is {self.queue}; the keys of a batch, {self.batch_size}, must fit: pass "
                "a longer queue or smaller batches"
            )
