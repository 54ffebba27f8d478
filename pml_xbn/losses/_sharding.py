"""What a memory can do whose rows are spread over the ranks."""

from __future__ import annotations

from typing import Any

from ..adapters.base_adapter import BaseAdapter
from ..pairwise import SHARDED_LOSSES, SHARDED_MINERS, can_be_sharded


def check_sharded(
    loss: Any, miner: Any, *, gather_distributed: bool, normalize_memory: bool, update: str
) -> None:
    """Refuses what needs all rows in one place.

    Raises:
        ValueError: it says what works instead.
    """
    if gather_distributed:
        raise ValueError(
            "gather_distributed=True and shard_distributed=True: pass the first for all rows on every rank, "
            "or the second to spread them over the ranks"
        )
    if normalize_memory or update != "queue":
        raise ValueError(
            f"shard_distributed=True with normalize_memory={normalize_memory} and update={update!r}: pass "
            "False and 'queue', or gather_distributed=True instead"
        )
    if not can_be_sharded(loss, miner):
        losses, miners = (
            ", ".join(sorted(kind.__name__ for kind in kinds)) for kinds in (SHARDED_LOSSES, SHARDED_MINERS)
        )
        raise ValueError(
            f"shard_distributed=True with a {type(loss).__name__} and a {type(miner).__name__}: pass a loss "
            f"of {losses}, without a regularizer, and no miner or one of {miners}, without "
            "statistics, or pass gather_distributed=True instead"
        )


def check_sharded_hook(hook: Any) -> None:
    """Refuses a hook that is called with all rows."""
    if not isinstance(hook, BaseAdapter):
        raise ValueError(
            f"hook is a {type(hook).__name__}, which needs all rows, and shard_distributed=True spreads "
            "them: register an adapter such as MomentMatching, or pass gather_distributed=True instead"
        )
