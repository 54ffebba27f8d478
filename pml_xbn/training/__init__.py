"""Batches that a resumed run draws again, and the loss's state in a Trainer's checkpoints."""

from .class_batches import ClassBatches
from .keep_loss import keep_loss

__all__ = ["ClassBatches", "keep_loss"]
