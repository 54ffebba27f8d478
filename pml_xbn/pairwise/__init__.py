"""Losses, miners and reducers of PML's between anchors and stored rows."""

from ._indices import IndicesTuple, appended, drop_own_rows, mapped
from ._loss import Comparison, can_be_shared, chosen_pairs, loss_against, loss_and_row_gradient, share_against
from ._miners import Miner
from ._over_rows import OverRows
from ._plain import only_looks
from ._reducers import check_reducers
from ._share import Share
from ._supported import check_supported

__all__ = [
    "Comparison",
    "IndicesTuple",
    "Miner",
    "OverRows",
    "Share",
    "appended",
    "can_be_shared",
    "check_reducers",
    "check_supported",
    "chosen_pairs",
    "drop_own_rows",
    "loss_against",
    "loss_and_row_gradient",
    "mapped",
    "only_looks",
    "share_against",
]
