"""Drop-in replacements for PML's ``CrossBatchMemory``, and the losses that it is compared with."""

from .adaptive_cross_batch_memory import AdaptiveCrossBatchMemory
from .axbn_wrapper import AXBNWrapper
from .batch_loss import BatchLoss
from .per_class_xbn import PerClassXBN
from .sampled_normalized_softmax_loss import SampledNormalizedSoftmaxLoss
from .stop_gradient_softmax_loss import StopGradientSoftmaxLoss
from .super_class_xbn import SuperClassXBN
from .two_tower_memory import TwoTowerMemory
from .xbn_wrapper import XBNWrapper

__all__ = [
    "AXBNWrapper",
    "AdaptiveCrossBatchMemory",
    "BatchLoss",
    "PerClassXBN",
    "SampledNormalizedSoftmaxLoss",
    "StopGradientSoftmaxLoss",
    "SuperClassXBN",
    "TwoTowerMemory",
    "XBNWrapper",
]
