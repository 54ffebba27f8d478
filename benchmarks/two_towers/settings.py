"""What the experiment is run with."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args

from benchmarks.engine import settings as common
from benchmarks.engine.results import RESULTS
from benchmarks.engine.settings import Natural, Positive, Share, check

# The second trains for twice the epochs, which takes as long as a memory or longer.
Method = Literal["no-memory", "no-memory-twice", "stale", "stale-star", "adapted", "adapted-star"]
METHODS = get_args(Method)
Data = Literal[
    "glyphs", "names", "names-10", "definitions", "frozen-names", "frozen-names-10", "frozen-definitions"
]


@dataclass(frozen=True)
class Experiment:
    """What a result depends on."""

    data: Data = "glyphs"  # which pairs; frozen: only projectors train
    epochs: Positive = 4  # epochs in all
    warmup_epochs: Natural = 1  # epochs of these without memory
    batch_size: Positive = 64  # pairs per step
    memory_ratio: Share = 0.25  # rows in each memory as a share of the training pairs
    classes: Positive | None = None  # train and test on so many classes each
    constant_rate: bool = False  # else the learning rate falls to 0 on half a cosine


@dataclass(frozen=True)
class Running(common.Running):
    """What it does not depend on."""

    methods: tuple[Method, ...] = METHODS  # what is compared
    seeds: tuple[int, ...] = (0, 1, 2)  # of weights, batches and distortion; none: write the table anew
    root: Path = Path("data/emoji")  # folder of the packages of all data but glyphs
    results: Path = RESULTS  # folder of the CSV file and the page


@dataclass(frozen=True)
class Settings(Experiment, Running):
    """Everything that a result depends on, and where it goes."""

    embedding_size: int = 128
    temperature: float = 0.1
    learning_rate: float = 1e-3

    def __post_init__(self) -> None:
        check(self)
