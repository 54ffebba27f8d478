"""A call in which a rank fails in the middle of its step."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from typing import Any
from unittest.mock import patch

from torch import Tensor, nn

from pml_xbn.adapters import BaseAdapter, GroupMomentMatching, MomentMatching
from pml_xbn.memory._rows import Rows
from pml_xbn.pairwise import _pairs
from pml_xbn.pairwise._distances import Distances
from pml_xbn.pairwise._fused_losses import Elements
from pml_xbn.pairwise._reductions import Count, Largest, LogSumExp, Max, Sum


class FailsAt:
    """Raises at one of the places that a rank passes where it computes something with its own rows.

    Attributes:
        left: how many places the rank passes before that one.
        has_failed: whether it came so far.
    """

    PLACES = (
        (Distances, "measure"),
        (Rows, "weighted_sum"),
        (Rows, "written_"),
        *((kind, "result") for kind in (Count, Largest, LogSumExp, Max, Sum)),
        (_pairs, "without_self_pairs"),
        (Elements, "totals"),
        (Elements, "total_of_anchors"),
        (BaseAdapter, "estimate"),
        (MomentMatching, "map"),
        (GroupMomentMatching, "map_groups"),
        (Rows, "group_moments"),
    )

    def __init__(self, number: int) -> None:
        self.left = number
        self.has_failed = False

    def __call__(self, loss_fn: nn.Module, *arguments: Any, **options: Any) -> Tensor:
        with ExitStack() as patches:
            for kind, name in self.PLACES:
                patches.enter_context(patch.object(kind, name, self._counted(getattr(kind, name))))
            return loss_fn(*arguments, **options)  # type: ignore[no-any-return]

    def _counted(self, method: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            self.left -= 1
            if self.left == -1:
                self.has_failed = True
                raise OSError("disk on fire")
            return method(*args, **kwargs)

        return call
