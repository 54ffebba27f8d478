"""What two groups of two ranks have saved loads on any number of ranks."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from across_ranks import of_all_ranks
from pytorch_metric_learning.losses import SupConLoss
from ranks import Pools, on_ranks
from torch import Tensor, distributed
from torch.distributed import checkpoint
from two_groups import STEPS, D, M, assert_close, batch_of, own_group, train

from pml_xbn import AXBNWrapper

safetensors = pytest.importorskip("safetensors.torch")
pytest.importorskip("torch.distributed.tensor", reason="needs torch 2.5")

NAMES = ("group 0", "group 1")


def build(memory_dtype: torch.dtype = torch.float64, **options: Any) -> AXBNWrapper:
    return AXBNWrapper(SupConLoss(), D, M, measurement_noise=20.0, memory_dtype=memory_dtype, **options)


def save(folder: Path) -> None:
    """Of each of two groups: one checkpoint of all ranks, and a file that holds all rows."""
    group, name = own_group(), NAMES[distributed.get_rank() % 2]
    loss_fn = build(shard_distributed=True, process_group=group)
    for _ in train(loss_fn, "unequal", [distributed.get_rank(group)]):
        pass
    checkpoint.save({name: loss_fn.state_dict()}, checkpoint_id=folder / "distributed")
    whole = {
        key: value.full_tensor() if hasattr(value, "full_tensor") else value
        for key, value in loss_fn.state_dict().items()
    }
    rows = torch.cat(of_all_ranks(loss_fn.embedding_memory, group))
    if distributed.get_rank(group) == 0:
        safetensors.save_file(whole, folder / f"{name}.safetensors")
        torch.save(rows, folder / f"{name}.rows")


@pytest.fixture(scope="module")
def folder(pools: Pools, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("groups")
    pools.run(save, 4, folder=folder)
    return folder


def load_checkpoint(loss_fn: AXBNWrapper, folder: Path, name: str) -> None:
    state = {name: loss_fn.state_dict()}
    checkpoint.load(state, checkpoint_id=folder / "distributed")
    loss_fn.load_state_dict(state[name])


def load_file(loss_fn: AXBNWrapper, folder: Path, name: str) -> None:
    loss_fn.load_state_dict(safetensors.load_file(folder / f"{name}.safetensors"))


def rows_of(loss_fn: AXBNWrapper) -> Tensor:
    rows = loss_fn.embedding_memory
    return torch.cat(of_all_ranks(rows)) if loss_fn._is_sharded else rows


def own_batch(step: int) -> tuple[Tensor, Tensor]:
    return batch_of(0, distributed.get_rank(), step, 3)


@on_ranks(4)
def test_a_group_loads_what_the_other_has_saved(folder: Path) -> None:
    group, name = own_group(), NAMES[1 - distributed.get_rank() % 2]
    loss_fn = build(shard_distributed=True, process_group=group)
    load_checkpoint(loss_fn, folder, name)
    rows = torch.cat(of_all_ranks(loss_fn.embedding_memory, group))
    assert torch.equal(rows, torch.load(folder / f"{name}.rows"))


@pytest.mark.parametrize("name", NAMES)
@on_ranks(1, 2, 3, 4)
def test_all_ranks_load_it_and_go_on_as_one_process_does(folder: Path, name: str) -> None:
    """Of either file, whether rows are on all ranks or spread over them."""

    def after_loading(way: str, load: Callable[[AXBNWrapper, Path, str], None]) -> list[Tensor]:
        """Returns losses and rows of a few more steps."""
        loss_fn = build(**{way: True})
        load(loss_fn, folder, name)
        assert torch.equal(rows_of(loss_fn), torch.load(folder / f"{name}.rows"))
        return [*(loss_fn(*own_batch(STEPS + step)) for step in range(3)), rows_of(loss_fn)]

    expected = after_loading("gather_distributed", load_checkpoint)
    assert_close(after_loading("gather_distributed", load_file), expected)
    assert_close(after_loading("shard_distributed", load_checkpoint), expected)
    assert_close(after_loading("shard_distributed", load_file), expected)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("way", ["gather_distributed", "shard_distributed"])
@on_ranks(1, 2, 3, 4)
def test_a_memory_of_another_dtype_rounds_what_it_loads_and_goes_on(
    folder: Path, way: str, name: str
) -> None:
    loss_fn = build(torch.float32, **{way: True})
    load_file(loss_fn, folder, name)
    torch.testing.assert_close(rows_of(loss_fn), torch.load(folder / f"{name}.rows").float())
    for step in range(2):
        loss_fn(*own_batch(step))
    assert torch.isfinite(rows_of(loss_fn)).all()
