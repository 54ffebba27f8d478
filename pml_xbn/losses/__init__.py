"""Drop-in replacements for PML's ``CrossBatchMemory``."""

from .adaptive_cross_batch_memory import AdaptiveCrossBatchMemory
from .axbn_wrapper import AXBNWrapper
from .per_class_xbn import PerClassXBN
from .super_class_xbn import SuperClassXBN
from .xbn_wrapper import XBNWrapper

__all__ = [
    "AXBNWrapper",
    "AdaptiveCrossBatchMemory",
    "PerClassXBN",
    "SuperClassXBN",
    "XBNWrapper",
]
