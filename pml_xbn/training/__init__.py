"""What training with a memory takes beside it, from batches to the encoder that a run leaves for a search."""

from .class_batches import ClassBatches
from .encoder import Encoder, load_encoder
from .fill_from import fill_from
from .freeze_batch_norm import freeze_batch_norm
from .frozen_batch_norm import FrozenBatchNorm
from .grad_cache import GradCache
from .image_files import find_images, open_image, unreadable_images
from .keep_loss import keep_loss
from .seeded_augmentation import SeededAugmentation

__all__ = [
    "ClassBatches",
    "Encoder",
    "FrozenBatchNorm",
    "GradCache",
    "SeededAugmentation",
    "fill_from",
    "find_images",
    "freeze_batch_norm",
    "keep_loss",
    "load_encoder",
    "open_image",
    "unreadable_images",
]
