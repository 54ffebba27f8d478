from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from pytorch_metric_learning.losses import CrossBatchMemory, SupConLoss
from pytorch_metric_learning.utils.distributed import DistributedLossWrapper

from pml_xbn import XBNWrapper
from pml_xbn.training import ClassBatches, keep_loss

data_loader = pytest.importorskip("accelerate.data_loader")
pytest.importorskip("transformers")


def memory() -> XBNWrapper:
    return XBNWrapper(SupConLoss(), embedding_size=4, memory_size=16)


def test_a_resume_finds_the_memory_of_its_checkpoint_and_warns_without(tmp_path: Path) -> None:
    arguments = SimpleNamespace(output_dir=str(tmp_path), should_save=True)
    state = SimpleNamespace(global_step=5)
    (tmp_path / "checkpoint-5").mkdir()
    saved, resumed = memory(), memory()
    saved(torch.randn(8, 4), torch.arange(8) % 2)
    with pytest.warns(UserWarning, match=r"checkpoint-5.loss_fn.pt is missing"):
        keep_loss(resumed).on_train_begin(arguments, state, None)
    keep_loss(saved).on_save(arguments, state, None)
    keep_loss(resumed).on_train_begin(arguments, state, None)
    assert torch.equal(resumed.embedding_memory, saved.embedding_memory)


def test_a_memory_of_which_a_rank_holds_a_part_is_refused() -> None:
    sharded = XBNWrapper(SupConLoss(), embedding_size=4, shard_distributed=True)
    with pytest.raises(ValueError, match=r"save it with torch.distributed.checkpoint, or pass gather"):
        keep_loss(torch.nn.ModuleList([sharded]))


def test_memories_of_which_each_rank_has_its_own_are_refused(tmp_path: Path) -> None:
    arguments = SimpleNamespace(output_dir=str(tmp_path), world_size=2)
    of_pml = CrossBatchMemory(SupConLoss(), 4, 16)
    for loss_fn, message in (
        (memory(), "not all ranks hold the rows of this XBNWrapper"),
        (of_pml, "wrap it in DistributedLossWrapper"),
    ):
        with pytest.raises(ValueError, match=message):
            keep_loss(loss_fn).on_train_begin(arguments, SimpleNamespace(global_step=0), None)
    wrapped = DistributedLossWrapper(of_pml)  # in which all ranks hold the same rows
    keep_loss(wrapped).on_train_begin(arguments, SimpleNamespace(global_step=0), None)


def test_a_new_run_loads_nothing(tmp_path: Path) -> None:
    arguments = SimpleNamespace(output_dir=str(tmp_path))
    keep_loss(memory()).on_train_begin(arguments, SimpleNamespace(global_step=0), None)


def test_a_run_resumed_within_an_epoch_draws_what_is_left_of_it_on_many_ranks() -> None:
    batches = ClassBatches([0, 0, 1, 1, 2, 2, 3, 3], m=2, batch_size=4, num_batches=6)
    batches.set_epoch(2)
    left = list(batches)[2::2]  # of the first of two ranks, which has drawn one
    batches.set_epoch(0)
    rest = data_loader.SkipBatchSampler(data_loader.BatchSamplerShard(batches, 2, 0), skip_batches=1)
    loader = torch.utils.data.DataLoader(range(8), batch_sampler=rest, collate_fn=list)
    keep_loss(memory()).on_epoch_begin(None, SimpleNamespace(epoch=2.5), None, train_dataloader=loader)
    assert list(loader) == left
