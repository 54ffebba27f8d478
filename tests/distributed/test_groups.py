"""Two groups of two ranks each hold two independent memories."""

from __future__ import annotations

from collections.abc import Callable
from importlib.util import find_spec

import group_worker
import pytest
from losses_on_ranks import SHARE
from on_ranks import on_ranks


def test_a_group_has_rows_loss_and_gradient_of_one_process() -> None:
    on_ranks(group_worker.check_memories, min(SHARE, 5), ranks=4, timeout=1200 if SHARE == 1 else 300)


@pytest.mark.parametrize(
    "check",
    [
        group_worker.check_others,
        group_worker.check_copies,
        group_worker.check_failures,
        group_worker.check_uneven_inputs,
        group_worker.check_refusals,
    ],
)
def test_of_groups(check: Callable[[], None]) -> None:
    on_ranks(check, ranks=4)


@pytest.mark.skipif(find_spec("torch.distributed.device_mesh") is None, reason="since torch 2.2")
def test_a_dimension_of_a_mesh_is_a_group() -> None:
    on_ranks(group_worker.check_meshes, ranks=4)
