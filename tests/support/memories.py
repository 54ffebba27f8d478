"""Every cross-batch memory that diagnostics are tested on, PML's own first."""

from __future__ import annotations

from collections.abc import Callable

from pytorch_metric_learning.losses import CrossBatchMemory

from pml_xbn import AXBNWrapper, PerClassXBN, SuperClassXBN, XBNWrapper
from pml_xbn.losses import AdaptiveCrossBatchMemory

# Memories that store rows and change them no more.
PLAIN: dict[str, Callable[..., CrossBatchMemory]] = {
    "pml": CrossBatchMemory,
    "ours": AdaptiveCrossBatchMemory,
    "delayed": lambda *args, **kwargs: XBNWrapper(*args, delay=10_000, **kwargs),
}
ADAPTED: dict[str, Callable[..., CrossBatchMemory]] = {
    "xbn": XBNWrapper,
    "centre": lambda *args, **kwargs: XBNWrapper(*args, match_std=False, **kwargs),
    "axbn": AXBNWrapper,
    "per-class": PerClassXBN,
    "super-class": lambda *args, **kwargs: SuperClassXBN(*args, superclasses=[0, 1] * 50, **kwargs),
}
MEMORIES = PLAIN | ADAPTED
