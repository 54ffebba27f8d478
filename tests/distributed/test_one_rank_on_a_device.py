"""One rank that acts as one of many sends its tensors through NCCL, or on a CPU through gloo."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest
import torch
from every_memory import D, M, batch
from kinds import KINDS, WRAPPERS
from pytorch_metric_learning.losses import SupConLoss
from torch import Tensor, distributed

from pml_xbn.distributed._group import Group
from pml_xbn.losses import AdaptiveCrossBatchMemory


@pytest.fixture
def group(device: torch.device, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    distributed.init_process_group(
        "nccl" if device.type == "cuda" else "gloo",
        init_method=(tmp_path / "group").as_uri(),
        rank=0,
        world_size=1,
        timeout=timedelta(seconds=60),
    )
    monkeypatch.setattr(Group, "has_others", True)  # a memory of one rank would send nothing
    yield
    monkeypatch.undo()
    distributed.destroy_process_group()


def step(memory: AdaptiveCrossBatchMemory, number: int, device: torch.device) -> list[Tensor]:
    embeddings, labels = batch(number)
    embeddings = embeddings.detach().to(device).requires_grad_()
    loss = memory(embeddings, labels.to(device))
    return [loss.detach().cpu(), *(x.cpu() for x in torch.autograd.grad(loss, embeddings))]


@pytest.mark.usefixtures("group")
@pytest.mark.parametrize("option", ["gather_distributed", "shard_distributed"])
@pytest.mark.parametrize("kind", WRAPPERS)
def test_it_takes_the_steps_of_a_process_alone(kind: str, option: str, device: torch.device) -> None:
    memory = KINDS[kind].memory(SupConLoss(), D, M, **{option: True}).to(device)
    alone = KINDS[kind].memory(SupConLoss(), D, M)
    for number in range(12):
        for found, expected in zip(
            step(memory, number, device), step(alone, number, torch.device("cpu")), strict=True
        ):
            torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-4)
    if option == "gather_distributed":  # the rows of the other are spread
        torch.testing.assert_close(
            memory.embedding_memory.cpu(), alone.embedding_memory, rtol=1e-3, atol=1e-3
        )
