"""Processes that ``torch.multiprocessing`` starts and gives a memory have a memory of their own each."""

from __future__ import annotations

import sent_memory_worker
from on_ranks import on_ranks
from sent_memory_worker import batch_of, memory


def test_a_memory_that_is_sent_to_processes_is_copied() -> None:
    sent = memory(), memory(gather_distributed=True), memory(shard_distributed=True)
    for loss_fn in sent:
        for step in range(3):  # from where on rows are written in place
            loss_fn(*batch_of(step))
    before = [str(loss_fn.state_dict()) for loss_fn in sent]
    on_ranks(sent_memory_worker.check, *sent)
    assert [str(loss_fn.state_dict()) for loss_fn in sent] == before
