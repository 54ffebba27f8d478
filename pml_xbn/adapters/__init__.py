"""The maths of adaptation: hooks that move stored embeddings to where the current model puts them."""

from .affine import Affine
from .base_adapter import BaseAdapter
from .group_moment_matching import GroupMomentMatching
from .kalman_moment_matching import KalmanMomentMatching
from .moment_matching import MomentMatching
from .moments import Moments, match_moments, moments
from .superclass_lookup import SuperclassLookup

__all__ = [
    "Affine",
    "BaseAdapter",
    "GroupMomentMatching",
    "KalmanMomentMatching",
    "MomentMatching",
    "Moments",
    "SuperclassLookup",
    "match_moments",
    "moments",
]
