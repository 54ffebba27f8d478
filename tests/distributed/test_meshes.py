"""Models under ``fully_shard`` train with a memory of the ranks that have batches of their own."""

from __future__ import annotations

import pytest
from on_ranks import has_fully_shard, on_ranks


@pytest.mark.skipif(not has_fully_shard(), reason="fully_shard is public since torch 2.6")
def test_a_mesh_trains_as_one_process_does() -> None:
    import mesh_worker

    on_ranks(mesh_worker.check, ranks=4)
