"""The kinds of memories that tests go through: each as a memory, as an adapter, and as its equation.

A new wrapper gets a line in :data:`KINDS`, and the tests of the contract run with it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from float64 import Adapt, Axbn, Gain, GroupXbn, Xbn
from pytorch_metric_learning.losses import CrossBatchMemory

from pml_xbn import AXBNWrapper, PerClassXBN, SuperClassXBN, XBNWrapper
from pml_xbn.adapters import (
    BaseAdapter,
    GroupMomentMatching,
    KalmanMomentMatching,
    MeasuredGain,
    MomentMatching,
)
from pml_xbn.losses import AdaptiveCrossBatchMemory

# Every label of a test has a superclass; of the labels 0, 1 and 2 the last two share one.
SUPERCLASSES = [0, 1, 1, 0] * 100


@dataclass(frozen=True)
class Kind:
    """A class of memories, the adapter that it registers, and the equation in float64 that its rows follow.

    Attributes:
        options: What is passed to the class of the memory and to that of the adapter.
    """

    memory_class: type[AdaptiveCrossBatchMemory]
    adapter_class: type[BaseAdapter] | None
    equation: Callable[[], Adapt]
    options: dict[str, Any] = field(default_factory=dict)

    def memory(self, *args: Any, **options: Any) -> AdaptiveCrossBatchMemory:
        """Returns a memory; arguments are those of its class, and replace the options of the kind."""
        return self.memory_class(*args, **{**self.options, **options})

    def adapter(self, **options: Any) -> BaseAdapter:
        """Returns the adapter alone."""
        assert self.adapter_class is not None, "this kind of memory adapts no rows"
        return self.adapter_class(**{**self.options, **options})


class MeasuredGainMemory(AdaptiveCrossBatchMemory):
    """As users make one, who register the adapter."""

    def __init__(self, *args: Any, window: int = 20, **options: Any) -> None:
        super().__init__(*args, **options)
        self.adapter = MeasuredGain(window, collect_stats=self.collect_stats)
        self.register_memory_hook(self.adapter)


KINDS = {
    "plain": Kind(AdaptiveCrossBatchMemory, None, lambda: lambda rows, *_: rows),
    "xbn": Kind(XBNWrapper, MomentMatching, Xbn),
    "centre": Kind(XBNWrapper, MomentMatching, lambda: Xbn(match_std=False), {"match_std": False}),
    "momentum": Kind(XBNWrapper, MomentMatching, lambda: Xbn(momentum=0.5), {"momentum": 0.5}),
    "axbn": Kind(
        AXBNWrapper,
        KalmanMomentMatching,
        lambda: Axbn(q=0.5, r=20.0, p0=3.0, interval=2),
        {
            "process_noise": 0.5,
            "measurement_noise": 20.0,
            "initial_variance": 3.0,
            "gain_update_interval": 2,
        },
    ),
    "measured gain": Kind(MeasuredGainMemory, MeasuredGain, lambda: Gain(window=2), {"window": 2}),
    "per class": Kind(
        PerClassXBN,
        GroupMomentMatching,
        lambda: GroupXbn(mean_lambda=0.3, std_lambda=0.4),
        {"mean_lambda": 0.3, "std_lambda": 0.4},
    ),
    "absent stay": Kind(
        PerClassXBN,
        GroupMomentMatching,
        lambda: GroupXbn(normalize_absent=False),
        {"normalize_absent": False},
    ),
    "super-class": Kind(
        SuperClassXBN,
        GroupMomentMatching,
        lambda: GroupXbn(0.3, 0.5, normalize_absent=False, group_of=SUPERCLASSES.__getitem__),
        {"superclasses": SUPERCLASSES, "mean_lambda": 0.3, "std_lambda": 0.5, "normalize_absent": False},
    ),
}
# One kind of each wrapper.
WRAPPERS = ("xbn", "axbn", "per class", "super-class")

ADAPTERS: dict[str, Callable[..., BaseAdapter]] = {
    name: kind.adapter for name, kind in KINDS.items() if kind.adapter_class is not None
}

# The memories that diagnostics look at, PML's own first. The plain ones store rows and change them no more.
PLAIN: dict[str, Callable[..., CrossBatchMemory]] = {
    "pml": CrossBatchMemory,
    "plain": KINDS["plain"].memory,
    "delayed": lambda *args, **options: XBNWrapper(*args, delay=10_000, **options),
}
ADAPTED: dict[str, Callable[..., CrossBatchMemory]] = {
    name: KINDS[name].memory for name in ("xbn", "centre", *WRAPPERS[1:])
}
MEMORIES = PLAIN | ADAPTED
