"""What a result depends on, but for the method."""

from __future__ import annotations

from dataclasses import dataclass

DATASETS = {"glyphs": "Glyphs", "cifar10": "CIFAR-10", "cifar100": "CIFAR-100"}

# Of PML's notebook on CIFAR; on Glyphs what shows the course of the curves in a few minutes.
DEFAULT_EPOCHS = {"glyphs": 5, "cifar10": 200, "cifar100": 200}


@dataclass(frozen=True)
class Settings:
    """The experiment of Adaptive Cross Batch Normalization, Appendix B.

    The paper gives the batch size and the encoder's momentum; everything else is that of PML's notebook
    "MoCo on CIFAR10", which it follows.

    Attributes:
        dataset: a key of ``DATASETS``.
        epochs: epochs, over which the learning rate falls along half a cosine.
        batch_size: images per step; each gives a query and a key.
        queue: number of keys in memory.
        momentum: m, with which the key encoder follows the query encoder.
        temperature: of InfoNCE.
        bn_splits: groups of a batch that are normalised apart from each other; 1 for ordinary BN.
        seed: initial weights, batches and augmentation; the test images are fixed.
        classes: use only so many classes of each split; None for all.
        embedding_size: length of an embedding.
        learning_rate, sgd_momentum, weight_decay: of SGD.
        knn_k, knn_temperature: of the weighted kNN classifier that measures accuracy.
        diagnostics_every: steps from one measurement of the diagnostics to the next; 0 for none.

    Raises:
        ValueError: a value out of range.
    """

    dataset: str = "glyphs"
    epochs: int = DEFAULT_EPOCHS["glyphs"]
    batch_size: int = 128
    queue: int = 4096
    momentum: float = 0.99
    temperature: float = 0.1
    bn_splits: int = 8
    seed: int = 0
    classes: int | None = None
    embedding_size: int = 128
    learning_rate: float = 0.03
    sgd_momentum: float = 0.9
    weight_decay: float = 5e-4
    knn_k: int = 200
    knn_temperature: float = 0.1
    diagnostics_every: int = 200

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
