"""What training with a memory takes beside it: batches, frozen batch normalization, large batches, resume."""

from .class_batches import ClassBatches
from .freeze_batch_norm import freeze_batch_norm
from .frozen_batch_norm import FrozenBatchNorm
from .grad_cache import GradCache
from .keep_loss import keep_loss

__all__ = ["ClassBatches", "FrozenBatchNorm", "GradCache", "freeze_batch_norm", "keep_loss"]
