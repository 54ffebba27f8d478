"""Cross-batch memories for pytorch-metric-learning whose rows keep up with the model."""

from . import adapters, datasets, diagnostics, heads, losses, training
from .losses import AXBNWrapper, PerClassXBN, SuperClassXBN, TwoTowerMemory, XBNWrapper

__version__ = "1.0.0"

__all__ = [
    "AXBNWrapper",
    "PerClassXBN",
    "SuperClassXBN",
    "TwoTowerMemory",
    "XBNWrapper",
    "adapters",
    "datasets",
    "diagnostics",
    "heads",
    "losses",
    "training",
]
