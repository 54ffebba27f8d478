"""Every adapter, for labels 0 to 3."""

from __future__ import annotations

from pml_xbn.adapters import GroupMomentMatching, KalmanMomentMatching, MomentMatching

ADAPTERS = {
    "xbn": MomentMatching,
    "centre": lambda **kw: MomentMatching(match_std=False, **kw),
    "ema": lambda **kw: MomentMatching(momentum=0.5, **kw),
    "axbn": lambda **kw: KalmanMomentMatching(measurement_noise=50.0, gain_update_interval=2, **kw),
    "per-class": lambda **kw: GroupMomentMatching(0.3, 0.4, **kw),
    "per-class, absent stay": lambda **kw: GroupMomentMatching(normalize_absent=False, **kw),
    "super-class": lambda **kw: GroupMomentMatching(superclasses=[0, 1, 0, 1], **kw),
}
