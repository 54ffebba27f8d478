"""What training with a memory takes beside it: batches, a fill, frozen batch normalization, resume."""

from .class_batches import ClassBatches
from .fill_from import fill_from
from .freeze_batch_norm import freeze_batch_norm
from .grad_cache import GradCache
from .keep_loss import keep_loss

__all__ = ["ClassBatches", "GradCache", "fill_from", "freeze_batch_norm", "keep_loss"]
