"""The papers' equations in float64 on the CPU, written apart from the package, row by row and group by group.

Memories of `memories.KINDS` are compared with these after many steps.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from benchmarks.on_gpu.contract.memories import MEASUREMENT_NOISE, NUM_ROWS, SUPERCLASSES, batches

Moments = tuple[Tensor, Tensor]
Adapt = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]  # of rows, their labels, batch, its labels


def replay(kind: str, steps: int) -> Tensor:
    """Returns the rows (n, d) that a memory of this kind holds after so many batches."""
    adapt = _ADAPT[kind]()
    first = next(batches(1))
    rows = first.embeddings.double()[:0]
    labels, position = first.labels[:0], 0
    for batch in batches(steps):
        new, new_labels = batch.embeddings.double(), batch.labels
        if len(rows) >= 2:
            rows = adapt(rows, labels, new, new_labels)
        else:
            adapt(new, new_labels, new, new_labels)  # an estimate begins with the first batch
        missing = min(NUM_ROWS, position + len(new)) - len(rows)
        if missing > 0:
            rows, labels = torch.cat([rows, new[:missing]]), torch.cat([labels, new_labels[:missing]])
        places = (position + torch.arange(len(new))) % NUM_ROWS
        rows, labels = rows.clone(), labels.clone()
        rows[places], labels[places] = new, new_labels
        position = (position + len(new)) % NUM_ROWS
    return rows


def _moments(rows: Tensor) -> Moments:
    return rows.mean(dim=0), rows.std(dim=0)


def _match(rows: Tensor, target: Moments) -> Tensor:
    """Adaptive Cross Batch Normalization, Eq. 6."""
    (mean, std), (new_mean, new_std) = _moments(rows), target
    return (rows - mean) / std * new_std + new_mean


def _xbn() -> Adapt:
    return lambda rows, labels, batch, batch_labels: _match(rows, _moments(batch))


def _axbn() -> Adapt:
    """Adaptive Cross Batch Normalization, Algorithm 1 with r / |B|; the gain moves every ten batches."""
    variance, gain, calls = 1.0, 1.0, 0
    estimate: Moments | None = None

    def adapt(rows: Tensor, labels: Tensor, batch: Tensor, batch_labels: Tensor) -> Tensor:
        nonlocal variance, gain, calls, estimate
        if calls % 10 == 0:
            predicted = variance + 1.0
            gain = predicted / (predicted + MEASUREMENT_NOISE / len(batch))
            variance = (1 - gain) * predicted
        calls += 1
        mean, std = _moments(batch)
        if estimate is not None:
            mean = estimate[0] + gain * (mean - estimate[0])
            std = estimate[1] + gain * (std - estimate[1])
        estimate = mean, std
        return _match(rows, estimate)

    return adapt


def _per_group(group_of: Tensor | None) -> Adapt:
    """A Study of Cross Batch Memory, Eq. 4.3, or 4.4 with groups; λ is 0.5 for μ and 1 for σ."""

    def adapt(rows: Tensor, labels: Tensor, batch: Tensor, batch_labels: Tensor) -> Tensor:
        if group_of is not None:
            labels, batch_labels = group_of[labels], group_of[batch_labels]
        mean, std = _moments(batch)
        adapted = _match(rows, (mean, std))
        for group in batch_labels.unique():
            mine, theirs = labels == group, batch[batch_labels == group]
            if mine.sum() >= 2 and len(theirs) >= 2:
                target = 0.5 * mean + 0.5 * theirs.mean(dim=0), std
                adapted[mine] = _match(rows[mine], target)
        return adapted

    return adapt


_ADAPT: dict[str, Callable[[], Adapt]] = {
    "XBN": _xbn,
    "AXBN": _axbn,
    "PC-XBN": lambda: _per_group(None),
    "SC-XBN": lambda: _per_group(torch.tensor(SUPERCLASSES)),
}
