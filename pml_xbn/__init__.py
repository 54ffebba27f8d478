"""Cross-batch memories for pytorch-metric-learning whose rows keep up with the model."""

from . import adapters, datasets, diagnostics, heads, losses, training
from .losses import AXBNWrapper, PerClassXBN, SuperClassXBN, TwoTowerMemory, XBNWrapper
from .testing import check_adapter

adapters.check_adapter = check_adapter  # where people look for it; no adapter imports what it needs

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
