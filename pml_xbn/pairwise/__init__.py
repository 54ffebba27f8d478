"""Losses, miners and reducers of PML's between anchors and stored rows."""

from ._forms import recipe_of
from ._indices import IndicesTuple, appended, drop_own_rows, mapped
from ._loss import (
    SHARDED_LOSSES,
    SHARDED_MINERS,
    Comparison,
    can_be_sharded,
    chosen_pairs,
    loss_against,
    recipe_to_share,
    share_against,
)
from ._miners import Miner
from ._over_rows import OverRows
from ._plain import learned_tensors, only_looks
from ._reducers import check_reducers
from ._share import Share, attached
from ._supported import check_supported

__all__ = [
    "SHARDED_LOSSES",
    "SHARDED_MINERS",
    "Comparison",
    "IndicesTuple",
    "Miner",
    "OverRows",
    "Share",
    "appended",
    "attached",
    "can_be_sharded",
    "check_reducers",
    "check_supported",
    "chosen_pairs",
    "drop_own_rows",
    "learned_tensors",
    "loss_against",
    "mapped",
    "only_looks",
    "recipe_of",
    "recipe_to_share",
    "share_against",
]
