"""How far adaptation puts the rows of a model that does not move: docs/diagnostics.md says what to expect."""

from __future__ import annotations

import pytest
import torch
from pytorch_metric_learning.losses import SupConLoss
from torch import Tensor

from pml_xbn import XBNWrapper

D, CLASSES, ROWS, WITHIN = 16, 500, 640, 0.5


def batch_of(centres: Tensor, num_classes: int, draw: torch.Generator) -> tuple[Tensor, Tensor]:
    labels = torch.randperm(CLASSES, generator=draw)[:num_classes].repeat_interleave(2)
    return centres[labels] + WITHIN * torch.randn(len(labels), D, generator=draw), labels


@pytest.mark.parametrize("num_classes", [8, 32])
@pytest.mark.parametrize("age", [1, 2, 15])
def test_a_row_is_two_noises_of_a_mean_away_at_any_age_but_was_not_a_step_after_it_came(
    num_classes: int, age: int
) -> None:
    """Centring gives a row the noise of its own batch's mean and that of the newest one."""
    draw = torch.Generator().manual_seed(0)
    centres, size = torch.randn(CLASSES, D, generator=draw), 2 * num_classes
    memory = XBNWrapper(SupConLoss(), embedding_size=D, memory_size=ROWS, match_std=False)
    fresh, before, after = torch.zeros(ROWS, D), [], []
    for step in range(ROWS // size + 300):
        batch, labels = batch_of(centres, num_classes, draw)
        first = memory.queue_idx
        stored = memory.embedding_memory.clone()
        memory(batch, labels)
        if step > ROWS // size:
            indices = (first - age * size + torch.arange(size)) % ROWS
            for rows, found in ((stored, before), (memory.embedding_memory, after)):
                found.append(float((rows[indices] - fresh[indices]).square().sum(dim=1).mean()))
        fresh[(first + torch.arange(size)) % ROWS] = batch
    # Classes are drawn without replacement, of all; two images share what the class gives them.
    of_mean = (centres.var(dim=0) * (1 - num_classes / CLASSES) + WITHIN**2 / 2).sum() / num_classes
    assert torch.tensor(after).mean() == pytest.approx(2 * float(of_mean), rel=0.12)
    assert torch.tensor(before).mean() == pytest.approx(
        0 if age == 1 else 2 * float(of_mean), rel=0.12, abs=1e-6
    )
