"""The maths of adaptation: hooks that give stored embeddings the mean and spread of new ones."""

from typing import Any

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


def __getattr__(name: str) -> Any:
    """Finds ``check_adapter``, which puts adapters through a memory and so imports this package."""
    if name == "check_adapter":
        from ..testing import check_adapter

        return check_adapter
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
