"""Models under ``fully_shard`` train with a memory of the ranks that have batches of their own."""

from __future__ import annotations

from importlib.util import find_spec

import pytest
from on_ranks import on_ranks

pytestmark = pytest.mark.skipif(
    find_spec("torch.distributed.fsdp._fully_shard") is None, reason="fully_shard is public since torch 2.6"
)


def test_a_mesh_trains_as_one_process_does() -> None:
    import mesh_worker

    on_ranks(mesh_worker.check, ranks=4)
