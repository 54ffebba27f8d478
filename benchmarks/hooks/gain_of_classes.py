"""A measured gain whose noise is that between the classes of a batch."""

from __future__ import annotations

from torch import Tensor


class GainOfClasses:
    """Moves the rows' mean by a K whose noise is that between the batch's classes, over their number.

    Where batch normalization trains, means of batches differ by less than their classes make expect.

    Args:
        window: as that of :class:`pml_xbn.adapters.MeasuredGain`.
    """

    def __init__(self, window: int = 20) -> None:
        self.window, self.num_calls, self.gain = window, 0, 1.0
        self._square = self._noise = 0.0

    def __call__(
        self, memory: Tensor, memory_labels: Tensor, batch: Tensor, batch_labels: Tensor
    ) -> Tensor | None:
        if min(len(memory), len(batch)) < 2 or len(batch_labels.unique()) < 2:
            return None
        self.num_calls += 1
        gap = batch.mean(dim=0) - memory.mean(dim=0)
        weight = 1 / min(self.num_calls, self.window)  # a plain mean at first
        self._square += weight * (float(gap.square().mean()) - self._square)
        self._noise += weight * (float(noise_of_classes(batch, batch_labels).mean()) - self._noise)
        if self.num_calls > self.window:
            self.gain = max(0.0, 1 - self._noise / self._square)
        return memory + self.gain * gap


def noise_of_classes(batch: Tensor, labels: Tensor) -> Tensor:
    """Returns the variance of the batch's mean, (d,), from that between the means of its classes."""
    _, numbers, counts = labels.unique(return_inverse=True, return_counts=True)
    sums = batch.new_zeros(len(counts), batch.shape[1]).index_add(0, numbers, batch)
    return (sums / counts[:, None]).var(dim=0) / len(counts)
