"""The maths of adaptation: hooks that give stored embeddings the mean and spread of new ones."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .base_adapter import BaseAdapter
from .covariance_matching import CovarianceMatching
from .group_moment_matching import GroupMomentMatching
from .kalman_moment_matching import KalmanMomentMatching
from .measured_gain import MeasuredGain
from .moment_matching import MomentMatching
from .moments import Affine, Moments, match_moments, moments
from .superclass_lookup import SuperclassLookup

if TYPE_CHECKING:
    # It runs adapters in a memory, which they do not know. So pml_xbn itself puts it here.
    from ..testing import check_adapter

__all__ = [
    "Affine",
    "BaseAdapter",
    "CovarianceMatching",
    "GroupMomentMatching",
    "KalmanMomentMatching",
    "MeasuredGain",
    "MomentMatching",
    "Moments",
    "SuperclassLookup",
    "check_adapter",
    "match_moments",
    "moments",
]
