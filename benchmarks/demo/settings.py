"""What the demo is run with."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch

from benchmarks.engine import settings as common
from benchmarks.engine.methods import MethodName
from benchmarks.engine.settings import Natural, Positive, check


@dataclass(frozen=True)
class Experiment:
    """What a result depends on."""

    methods: tuple[MethodName, ...] = ("no-xbm", "xbm", "xbn", "axbn")  # what is compared
    epochs: Positive = 3  # epochs with memory
    warmup_epochs: Positive = 1  # shared epochs without memory
    batch_size: int = 16  # images per step, a multiple of 4
    memory_ratio: float = 0.03  # rows in memory as a share of the training images
    classes: Positive | None = None  # train and test on so many classes each
    seed: Natural = 0  # of weights, batches and augmentation


@dataclass(frozen=True)
class Running(common.Running):
    """What it does not depend on."""

    resume: bool = False  # go on from the checkpoints in output
    output: Path = Path("runs/glyphs_demo")  # folder of all results
    device: str = "cuda" if torch.cuda.is_available() else "cpu"  # where training takes place
    checkpoint: Natural = 0  # save the state every so many steps too, not after epochs alone


@dataclass(frozen=True)
class Settings(Experiment, Running):
    """Everything that a result depends on, and where it goes."""

    images_per_class: int = 4
    embedding_size: int = 128
    learning_rate: float = 1e-3
    weight_decay: float = 1e-2
    decay: float = 0.33  # of the learning rate, after every second epoch
    distortion: float = 1.0  # strength of that of all images
    drift_every: int = 20  # steps between measurements of drift
    norm: str = "batch"  # or "group"

    def __post_init__(self) -> None:
        check(self)
