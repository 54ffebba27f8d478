"""Cross-batch memories for pytorch-metric-learning whose rows keep up with the model."""

from . import adapters, datasets, heads, losses
from .losses import AXBNWrapper, PerClassXBN, SuperClassXBN, XBNWrapper

__version__ = "0.1.0"

__all__ = [
    "AXBNWrapper",
    "PerClassXBN",
    "SuperClassXBN",
    "XBNWrapper",
    "adapters",
    "datasets",
    "heads",
    "losses",
]
