"""The whole of it in a loop, on the device of the tests as on a CPU."""

from __future__ import annotations

import pytest
import torch
from kinds import MEMORIES
from pytorch_metric_learning.losses import SupConLoss
from pytorch_metric_learning.miners import PairMarginMiner
from torch import nn

from pml_xbn.diagnostics import (
    FeatureDrift,
    RowTracker,
    WatchedLoss,
    class_separability,
    embedding_distances,
    memory_rows,
    scalars,
    superclass_neighbours,
)

CPU = torch.device("cpu")


def measure(memory: str, device: torch.device) -> list[dict[str, float]]:
    torch.manual_seed(0)
    images, labels = torch.randn(48, 5, dtype=torch.float64), torch.arange(48) % 4
    model = nn.Linear(5, 4).double().to(device)
    images, labels = images.to(device), labels.to(device)
    options = {} if memory == "pml" else {"memory_dtype": torch.float64}
    loss_fn = MEMORIES[memory](SupConLoss(), 4, 20, PairMarginMiner(0.1, 1.5), **options)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    drift = FeatureDrift(lambda: model(images[:12]), (1, 2), 1)
    tracker, logged = RowTracker(loss_fn), []
    for step, batch in enumerate(torch.arange(48).split(8)):
        numbers = scalars("drift", drift.update(step))
        stored = loss_fn.embedding_memory.clone()
        with WatchedLoss(loss_fn) as seen:
            loss = loss_fn(model(images[batch]), labels[batch])
        tracker.update(step, batch)
        numbers |= scalars("staleness", tracker.staleness(stored, lambda i: model(images[i])))
        rows, row_labels = memory_rows(loss_fn)
        numbers |= scalars("pairs", seen.valid_pairs()) | scalars("push", seen.common_mode_push())
        numbers |= scalars("of_memory", seen.common_mode_push(memory_only=True))
        numbers |= scalars("distances", embedding_distances(rows, row_labels))
        numbers |= scalars("separability", class_separability(rows, row_labels))
        superclasses = row_labels // 2
        numbers |= {
            f"top_{k}": float(share) for k, share in enumerate(superclass_neighbours(rows, superclasses), 1)
        }
        logged.append(numbers)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return logged


@pytest.mark.parametrize("memory", MEMORIES)
def test_numbers_do_not_depend_on_the_device(memory: str, device: torch.device) -> None:
    logged = measure(memory, device)
    for numbers, expected in zip(logged, measure(memory, CPU), strict=True):
        assert numbers == pytest.approx(expected, rel=1e-6, abs=1e-9)
    last = logged[-1]
    assert len(last) == 30
    assert last["staleness_before_mean"] > 0.01
    assert last["pairs_negatives_from_memory"] > last["pairs_negatives_from_batch"] > 0
