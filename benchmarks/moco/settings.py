"""What the experiment of Adaptive Cross Batch Normalization, Appendix B, is run with."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from benchmarks.engine import settings as common
from benchmarks.engine.settings import setting

# As everywhere, but for the queue as it is: PML's CrossBatchMemory with a whole state_dict.
METHODS = ("moco", "xbn", "axbn", "centre")
DATASETS = {"glyphs": "Glyphs", "cifar10": "CIFAR-10", "cifar100": "CIFAR-100"}

# Of PML's notebook on CIFAR; on Glyphs what shows the course of the curves in a few minutes.
DEFAULT_EPOCHS = {"glyphs": 5, "cifar10": 200, "cifar100": 200}


@dataclass(frozen=True)
class Settings:
    """The paper gives the batch size and the encoder's momentum; everything else is that of PML's notebook
    "MoCo on CIFAR10", which it follows.

    Attributes:
        embedding_size: length of an embedding.
        learning_rate, sgd_momentum, weight_decay: of SGD.
        knn_k, knn_temperature: of the weighted kNN classifier that measures accuracy.

    Raises:
        ValueError: a value out of range.
    """

    dataset: str = setting("glyphs", "data set", choices=tuple(DATASETS))
    epochs: int = setting(DEFAULT_EPOCHS["glyphs"], "over which the rate falls; on CIFAR 200", int)
    batch_size: int = setting(128, "images per step; each gives a query and a key", int)
    queue: int = setting(4096, "keys in memory", int)
    momentum: float = setting(0.99, "of the key encoder", float)
    temperature: float = setting(0.1, "of InfoNCE", float)
    bn_splits: int = setting(8, "groups of a batch with BN statistics of their own; 1: ordinary BN", int)
    seed: int = common.seed()
    classes: int | None = setting(None, "train and test on so many classes", int)
    diagnostics_every: int = common.diagnostics_every()
    methods: tuple[str, ...] = setting(
        ("moco", "xbn", "axbn"), "what is compared", tuple, choices=METHODS, affects_result=False
    )
    root: Path = setting(Path("data"), "folder of CIFAR", Path, affects_result=False)
    download: bool = setting(False, "download CIFAR into root unless it is there", bool, affects_result=False)
    workers: int = setting(2, "processes that load CIFAR", int, affects_result=False)
    device: str = common.device()
    output: Path = common.output(Path("runs/moco"))
    resume: bool = common.resume()

    embedding_size: int = 128
    learning_rate: float = 0.03
    sgd_momentum: float = 0.9
    weight_decay: float = 5e-4
    knn_k: int = 200
    knn_temperature: float = 0.1

    def __post_init__(self) -> None:
        if self.dataset not in DATASETS:
            raise ValueError(f"dataset is {self.dataset!r}; choose one of {', '.join(DATASETS)}")
        for name in ("epochs", "batch_size", "queue", "bn_splits"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} is {getattr(self, name)}; it must be 1 or more")
        if self.diagnostics_every < 0:
            raise ValueError(f"diagnostics_every is {self.diagnostics_every}; it must be 0 or more")
        if self.classes is not None and self.classes < 2:
            raise ValueError(f"classes is {self.classes}; it must be 2 or more")
        if not 0 <= self.momentum < 1:
            raise ValueError(
                f"momentum is {self.momentum}; it must be in [0, 1): at 1 the keys would never learn"
            )
        if not 0 < self.temperature < float("inf"):
            raise ValueError(f"temperature is {self.temperature}; it must be above 0")
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
