"""Checkpoints that version 0.1.0 wrote load, and the run goes on as it did with that version."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from float64 import Adapt, GroupXbn, Memory, Xbn
from pytorch_metric_learning.losses import ContrastiveLoss
from torch import nn

import pml_xbn.losses

FOLDER = Path(__file__).with_name("checkpoints_of_0_1_0")
CASES = ["plain", "xbn", "xbn_momentum", "xbn_centre", "axbn", "per_class", "super_class"]
FILES = [f"{case}_{filling}" for case in CASES for filling in ("partial", "wrapped")]
SUPERCLASSES = [0, 1, 1, 0, 1]
# Adapters without estimates of their own: the stored rows are all that a later call depends on.
STATELESS: dict[str, Callable[[], Adapt]] = {
    "plain": lambda: lambda memory, *_: memory,
    "xbn": Xbn,
    "xbn_centre": lambda: Xbn(match_std=False),
    "per_class": GroupXbn,
    "super_class": lambda: GroupXbn(group_of=SUPERCLASSES.__getitem__),
}


def saved_in(name: str) -> dict[str, Any]:
    saved: dict[str, Any] = torch.load(FOLDER / f"{name}.pt", weights_only=True)
    return saved


def loaded(saved: dict[str, Any]) -> nn.Module:
    loss_fn = getattr(pml_xbn.losses, saved["class"])(ContrastiveLoss(), 4, 20, **saved["options"])
    loss_fn.load_state_dict(saved["state"])
    return loss_fn


def test_every_file_is_tested() -> None:
    assert sorted(path.stem for path in FOLDER.glob("*.pt")) == sorted(FILES)


@pytest.mark.parametrize("name", FILES)
def test_the_memory_is_the_saved_one(name: str) -> None:
    saved = saved_in(name)
    loss_fn = loaded(saved)
    n = saved["num_rows"]
    assert loss_fn.num_rows == n == (12 if name.endswith("partial") else 20)
    assert loss_fn.queue_idx == saved["queue_idx"]
    assert loss_fn.num_calls == saved["num_calls"]
    assert torch.equal(loss_fn.label_memory[:n], saved["state"]["label_memory"][:n])
    torch.testing.assert_close(
        loss_fn.embedding_memory[:n], saved["state"]["embedding_memory"][:n], rtol=1e-4, atol=1e-5
    )


@pytest.mark.parametrize("name", FILES)
def test_further_calls_give_the_losses_and_rows_of_0_1_0(name: str) -> None:
    saved = saved_in(name)
    loss_fn = loaded(saved)
    calls = zip(saved["batches"], saved["losses"], saved["rows"], strict=True)
    for batch, expected_loss, (rows, labels) in calls:
        assert loss_fn(*batch).item() == pytest.approx(expected_loss, rel=1e-4, abs=1e-5)
        assert loss_fn.num_rows == len(rows)
        torch.testing.assert_close(loss_fn.embedding_memory[: len(rows)], rows, rtol=1e-4, atol=1e-5)
        assert torch.equal(loss_fn.label_memory[: len(rows)], labels)


@pytest.mark.parametrize("name", [name for name in FILES if name.rpartition("_")[0] in STATELESS])
def test_further_rows_follow_the_equation(name: str) -> None:
    saved = saved_in(name)
    loss_fn = loaded(saved)
    reference = Memory(20, 4, STATELESS[name.rpartition("_")[0]]())
    reference.rows = saved["state"]["embedding_memory"][: saved["num_rows"]].numpy().astype(np.float64)
    reference.labels = saved["state"]["label_memory"][: saved["num_rows"]].tolist()
    reference.next = saved["queue_idx"]
    for embeddings, labels in saved["batches"]:
        loss_fn(embeddings, labels)
        reference.step(embeddings.numpy().astype(np.float64), labels.tolist())
        rows = loss_fn.embedding_memory[: loss_fn.num_rows].numpy()
        np.testing.assert_allclose(rows, reference.rows, rtol=1e-4, atol=1e-5)
        assert loss_fn.label_memory[: loss_fn.num_rows].tolist() == reference.labels
