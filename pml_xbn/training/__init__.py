"""What training with a memory takes beside it: batches, frozen batch normalization, large batches, resume."""

from .class_batches import ClassBatches
from .freeze_batch_norm import freeze_batch_norm
from .grad_cache import GradCache
from .keep_loss import keep_loss

__all__ = ["ClassBatches", "GradCache", "freeze_batch_norm", "keep_loss"]
