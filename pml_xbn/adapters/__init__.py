"""The maths of adaptation: hooks that move stored embeddings to where the current model puts them."""

from .affine import Affine
from .base_adapter import BaseAdapter
from .check_adapter import check_adapter
from .covariance_matching import CovarianceMatching
from .group_moment_matching import GroupMomentMatching
from .kalman_moment_matching import KalmanMomentMatching
from .linear import Linear
from .moment_matching import MomentMatching
from .moments import Moments, match_moments, moments
from .superclass_lookup import SuperclassLookup

__all__ = [
    "Affine",
    "BaseAdapter",
    "CovarianceMatching",
    "GroupMomentMatching",
    "KalmanMomentMatching",
    "Linear",
    "MomentMatching",
    "Moments",
    "SuperclassLookup",
    "check_adapter",
    "match_moments",
    "moments",
]
