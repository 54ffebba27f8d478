"""Losses, miners and reducers of PML's between anchors and stored rows."""

from ._loss import Comparison, KnownGradients, Share, loss_against, share_against
from ._miners import Miner
from ._pairs import IndicesTuple, appended, drop_own_rows, mapped
from ._plain import only_looks
from ._supported import (
    SHARDED_LOSSES,
    SHARDED_MINERS,
    can_be_sharded,
    check_supported,
    recipe_to_share,
)

__all__ = [
    "SHARDED_LOSSES",
    "SHARDED_MINERS",
    "Comparison",
    "IndicesTuple",
    "KnownGradients",
    "Miner",
    "Share",
    "appended",
    "can_be_sharded",
    "check_supported",
    "drop_own_rows",
    "loss_against",
    "mapped",
    "only_looks",
    "recipe_to_share",
    "share_against",
]
