"""Per-class and super-class rows behind a ReLU, whose units die in turn, against the equations in float64.

Some classes have equal rows in a dimension, or nearly equal ones, and then a batch brings them a spread.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
import torch
from float64 import GroupXbn, Memory
from pytorch_metric_learning.losses import ContrastiveLoss
from torch import Tensor

from pml_xbn import PerClassXBN, SuperClassXBN
from pml_xbn.losses import AdaptiveCrossBatchMemory

D, M, CLASSES, STEPS = 8, 64, 12, 2000
SUPERCLASSES = [label // 3 for label in range(CLASSES)]
Array = np.ndarray


def batches() -> Iterator[tuple[Tensor, Tensor]]:
    """Sixteen rows of four classes; a unit is dead for three steps, and then the next one."""
    generator = torch.Generator().manual_seed(0)
    centres = torch.randn(CLASSES, D, generator=generator)
    for step in range(STEPS):
        labels = torch.randperm(CLASSES, generator=generator)[:4].repeat_interleave(4)
        rows = torch.relu(centres[labels] + torch.randn(16, D, generator=generator))
        yield rows * (step // 3 % D != torch.arange(D)), labels


def make(kind: str, dtype: torch.dtype) -> tuple[AdaptiveCrossBatchMemory, GroupXbn]:
    if kind == "per class":
        return PerClassXBN(ContrastiveLoss(), D, M, memory_dtype=dtype), GroupXbn()
    memory = SuperClassXBN(ContrastiveLoss(), D, M, memory_dtype=dtype, superclasses=SUPERCLASSES)
    return memory, GroupXbn(group_of=SUPERCLASSES.__getitem__)


def step(memory: AdaptiveCrossBatchMemory, rows: Tensor, labels: Tensor) -> None:
    memory(rows, labels, None, torch.ones(len(rows), dtype=torch.bool))  # without anchors there is no loss


@pytest.mark.parametrize("kind", ["per class", "super-class"])
def test_float32_equals_the_replay_of_the_whole_run(kind: str) -> None:
    memory, adapt = make(kind, torch.float32)
    replay, spread = Memory(M, D, adapt), np.zeros(D)
    for number, (rows, labels) in enumerate(batches()):
        step(memory, rows, labels)
        replay.step(rows.double().numpy(), labels.numpy())
        spread = np.maximum(spread, replay.rows.std(axis=0))
        if number % 7 == 0:
            found = memory.embedding_memory[: memory.num_rows].double().numpy()
            assert (np.abs(found - replay.rows) <= 5e-5 * spread).all(), number


def shifted(rows: Array, groups: Array, wanted: Array) -> Array:
    """Rows whose groups have the means that are wanted, and the spread that they had."""
    out = rows.copy()
    for group in set(groups):
        of_group = groups == group
        out[of_group] += wanted[of_group].mean(axis=0) - rows[of_group].mean(axis=0)
    return out


def spreads_of_groups(rows: Array, groups: Array) -> Array:
    """The standard deviation of a row's group, (n, d)."""
    return np.stack([rows[groups == group].std(axis=0) for group in groups])


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("kind", ["per class", "super-class"])
def test_half_precision_equals_every_step_of_the_replay(kind: str, dtype: torch.dtype) -> None:
    """From the rows as they were read before. What may be rounding of equal rows may count as no spread."""
    memory, adapt = make(kind, dtype)
    eps = torch.finfo(dtype).eps
    for number, (batch, labels) in enumerate(batches()):
        count = memory.num_rows
        before = memory.embedding_memory[:count].double().numpy()
        old_labels = memory.label_memory[:count].numpy().copy()
        step(memory, batch, labels)
        if number == 0:
            continue
        groups = np.array([adapt.group_of(int(label)) for label in old_labels])
        wide = batch.double().numpy()
        expected = adapt(before, old_labels, wide, labels.numpy())
        found = memory.embedding_memory[:count].double().numpy()
        spreads = spreads_of_groups(before, groups)
        error = np.abs(found - expected)
        if_shifted = np.abs(found - shifted(before, groups, expected))
        has_spread = spreads > 16 * eps * (before.std(axis=0) + spreads.max(axis=0))
        error = np.where(has_spread, error, np.minimum(error, if_shifted))
        # Rows that the batch did not overwrite, and that are long enough to be told from zeros.
        is_held = np.ones(memory.num_rows, dtype=bool)
        is_held[memory.curr_batch_idx.numpy()] = False
        is_held = is_held[:count] & (before != 0).any(axis=1)
        size = np.abs(expected - wide.mean(axis=0)) + 4 * wide.std(axis=0) + 1e-9
        assert (error <= 4 * eps * size)[is_held].all(), number
