"""The maths of adaptation: hooks that give stored embeddings the mean and spread of new ones."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import TYPE_CHECKING, Any

from .affine import Affine
from .base_adapter import BaseAdapter
from .covariance_matching import CovarianceMatching
from .group_moment_matching import GroupMomentMatching
from .kalman_moment_matching import KalmanMomentMatching
from .moment_matching import MomentMatching
from .moments import Moments, match_moments, moments
from .superclass_lookup import SuperclassLookup

__all__ = [
    "Affine",
    "BaseAdapter",
    "CovarianceMatching",
    "GroupMomentMatching",
    "KalmanMomentMatching",
    "MomentMatching",
    "Moments",
    "SuperclassLookup",
    "check_adapter",
    "match_moments",
    "moments",
]

# `check_adapter` lives in `pml_xbn.testing`, which imports the adapters. Here it is an alias. It is
# looked up when somebody asks for it, so that neither module needs the other to be imported first.
check_adapter: Callable[..., None]

if not TYPE_CHECKING:

    def __getattr__(name: str) -> Any:
        if name == "check_adapter":
            return import_module("pml_xbn.testing").check_adapter
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

    def __dir__() -> list[str]:
        return sorted({*globals(), "check_adapter"})
