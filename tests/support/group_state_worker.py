"""Saves the memories of two groups of ranks, and loads them on other ranks."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from group_worker import STEPS, D, M, batch_of, of_group, own_group, train
from pytorch_metric_learning.losses import SupConLoss
from safetensors.torch import load_file, save_file
from sharded_worker import assert_close
from torch import Tensor, distributed
from torch.distributed import checkpoint

from pml_xbn import AXBNWrapper

OPTIONS: dict[str, Any] = {"measurement_noise": 20.0, "memory_dtype": torch.float64}


def build(**options: Any) -> AXBNWrapper:
    return AXBNWrapper(SupConLoss(), D, M, **(OPTIONS | options))


def save(folder: Path) -> None:
    """Of each of two groups: one checkpoint of all ranks, and a file that holds all rows."""
    group, name = own_group(), f"group {distributed.get_rank() % 2}"
    loss_fn = build(shard_distributed=True, process_group=group)
    for _ in train(loss_fn, "unequal", [distributed.get_rank(group)]):
        pass
    checkpoint.save({name: loss_fn.state_dict()}, checkpoint_id=folder / "distributed")
    whole = {
        key: value.full_tensor() if hasattr(value, "full_tensor") else value
        for key, value in loss_fn.state_dict().items()
    }
    rows = of_group(loss_fn.embedding_memory, group)
    if distributed.get_rank(group) == 0:
        save_file(whole, folder / f"{name}.safetensors")
        torch.save(rows, folder / f"{name}.rows")


def load_in_groups(folder: Path) -> None:
    """Each group loads what the other has saved."""
    group, name = own_group(), f"group {1 - distributed.get_rank() % 2}"
    loss_fn = build(shard_distributed=True, process_group=group)
    state = {name: loss_fn.state_dict()}
    checkpoint.load(state, checkpoint_id=folder / "distributed")
    loss_fn.load_state_dict(state[name])
    assert torch.equal(of_group(loss_fn.embedding_memory, group), torch.load(folder / f"{name}.rows"))


def load(folder: Path) -> None:
    """All ranks, or one process, load either file of either group, and go on as one process does."""
    for name in ("group 0", "group 1"):
        rows = torch.load(folder / f"{name}.rows")
        first, *others = (
            after(loss_fn, rows)
            for option in ("gather_distributed", "shard_distributed")
            for loss_fn in loaded(folder, name, {option: True})
        )
        for other in others:
            for one, another in zip(first, other, strict=True):
                assert_close(one, another)


def loaded(folder: Path, name: str, options: dict[str, Any]) -> Iterator[AXBNWrapper]:
    loss_fn = build(**options)
    state = {name: loss_fn.state_dict()}
    checkpoint.load(state, checkpoint_id=folder / "distributed")
    loss_fn.load_state_dict(state[name])
    yield loss_fn
    loss_fn = build(**options)
    loss_fn.load_state_dict(load_file(folder / f"{name}.safetensors"))
    yield loss_fn
    # A memory of another dtype rounds what it loads, and goes on.
    loss_fn = build(**(options | {"memory_dtype": torch.float32}))
    loss_fn.load_state_dict(load_file(folder / f"{name}.safetensors"))
    torch.testing.assert_close(rows_of(loss_fn), torch.load(folder / f"{name}.rows").float())
    for step in range(2):
        loss_fn(*own_batch(step))
    assert torch.isfinite(rows_of(loss_fn)).all()


def after(loss_fn: AXBNWrapper, rows: Tensor) -> list[Tensor]:
    """Returns losses and rows of a few more steps."""
    assert torch.equal(rows_of(loss_fn), rows)
    losses = [loss_fn(*own_batch(STEPS + step)) for step in range(3)]
    return [*losses, rows_of(loss_fn)]


def rows_of(loss_fn: AXBNWrapper) -> Tensor:
    rows = loss_fn.embedding_memory
    return of_group(rows, distributed.group.WORLD) if loss_fn._is_sharded else rows


def own_batch(step: int) -> tuple[Tensor, Tensor]:
    return batch_of(0, distributed.get_rank(), step, 3)
