"""The methods that can be compared, by name."""

from collections.abc import Callable
from dataclasses import dataclass

from pytorch_metric_learning.losses import CrossBatchMemory, SupConLoss
from pytorch_metric_learning.miners import PairMarginMiner
from torch import Tensor, nn

from pml_xbn import AXBNWrapper, PerClassXBN, SuperClassXBN, XBNWrapper
from pml_xbn.losses import AdaptiveCrossBatchMemory, BatchLoss


@dataclass(frozen=True)
class MemorySetup:
    """What the losses need to know of the task.

    Attributes:
        embedding_size: length of an embedding.
        memory_size: rows in memory.
        steps_per_epoch: forward calls per epoch.
        superclasses: (number of classes,) label -> superclass.
    """

    embedding_size: int
    memory_size: int
    steps_per_epoch: int
    superclasses: Tensor


def _loss() -> SupConLoss:
    return SupConLoss(temperature=0.1)


def _miner() -> PairMarginMiner:
    return PairMarginMiner(pos_margin=0.2, neg_margin=0.8)


def _memory(cls: type[CrossBatchMemory], setup: MemorySetup, **options: object) -> CrossBatchMemory:
    return cls(_loss(), setup.embedding_size, setup.memory_size, _miner(), **options)


METHODS: dict[str, Callable[[MemorySetup], nn.Module]] = {
    "no-xbm": lambda setup: BatchLoss(_loss(), _miner()),
    "xbm": lambda setup: _memory(CrossBatchMemory, setup),
    "xbm-star": lambda setup: _memory(AdaptiveCrossBatchMemory, setup, batch_loss_weight=1.0),
    "xbn": lambda setup: _memory(XBNWrapper, setup),
    "axbn": lambda setup: _memory(AXBNWrapper, setup),
    "ema": lambda setup: _memory(XBNWrapper, setup, momentum=0.5),
    "centre": lambda setup: _memory(XBNWrapper, setup, match_std=False),
    "unit-norm": lambda setup: _memory(XBNWrapper, setup, normalize_memory=True),
    "delayed": lambda setup: _memory(XBNWrapper, setup, delay=setup.steps_per_epoch),
    "per-class": lambda setup: _memory(PerClassXBN, setup),
    "super-class": lambda setup: _memory(SuperClassXBN, setup, superclasses=setup.superclasses),
}
