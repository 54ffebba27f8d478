"""Adaptive Cross Batch Normalization."""

from __future__ import annotations

import torch
from torch import Tensor

from .._checks import check_integer, check_non_negative
from .._tracing import can_read
from .moment_matching import MomentMatching


class KalmanMomentMatching(MomentMatching):
    r"""Gives the memory a Kalman filter's estimate of the moments of the whole data set.

    You may want it when batches are so small that their own moments are noisy. The estimate starts at the
    moments of the first batch. Every later batch moves it the fraction K of the way to its own moments.
    The gain K and the estimate's variance p are updated with the first batch and then every
    ``gain_update_interval`` batches:

    .. math:: p^- = p + q, \quad K = \frac{p^-}{p^- + r / |B|}, \quad p = (1 - K)\, p^-

    (Adaptive Cross Batch Normalization, Algorithm 1 and §3.2; r/\|B\| as in §3.2.1). With r = 0 the gain is
    1, which is plain moment matching. With the paper's noises, which are the defaults, it is at least 0.99,
    so that AXBN hardly differs from XBN. After some updates K settles at a value that depends on r/q and the
    batch size alone: 0.62 where r/q = \|B\|. A larger ``measurement_noise`` smooths more.

    Args:
        process_noise: q (default 1), the variance by which the data set's moments move between updates.
        measurement_noise: r (default 0.01), the variance of the moments of a batch of one row.
        initial_variance: p₀ (default 1), the variance of the first estimate. It is forgotten after a few
            updates.
        gain_update_interval: the number of batches from one update of K and p to the next (default 100).
        collect_stats: also records ``kalman_gain``; see :class:`BaseAdapter`.

    Raises:
        ValueError: a noise or variance is negative or not finite, or the interval is below 1.

    Example:
        >>> adapter = KalmanMomentMatching(measurement_noise=64.0, gain_update_interval=1)
        >>> [round(adapter.gain(batch_size=64), 3) for _ in range(4)]
        [0.667, 0.625, 0.619, 0.618]
    """

    def __init__(
        self,
        process_noise: float = 1.0,
        measurement_noise: float = 0.01,
        initial_variance: float = 1.0,
        gain_update_interval: int = 100,
        *,
        collect_stats: bool = False,
    ) -> None:
        check_non_negative("process_noise", process_noise)
        check_non_negative("measurement_noise", measurement_noise)
        check_non_negative("initial_variance", initial_variance)
        check_integer("gain_update_interval", gain_update_interval, at_least=1)
        self.initial_variance = initial_variance  # first, as super().__init__ reads it
        super().__init__(collect_stats=collect_stats)
        self.process_noise, self.measurement_noise = process_noise, measurement_noise
        self.gain_update_interval = gain_update_interval
        self.record_stats("kalman_gain")

    def _first_numbers(self) -> Tensor:  # how many batches, the variance p, and the gain K
        return super()._first_numbers().new_tensor([0.0, self.initial_variance, 1.0])

    @property
    def variance(self) -> float:
        """The variance p of the estimate."""
        return float(self._numbers[1])

    @property
    def current_gain(self) -> float:
        """The Kalman gain K of the newest batch."""
        return float(self._numbers[2])

    def gain(self, batch_size: int) -> float | Tensor:
        """Returns the Kalman gain K for this batch, and updates K and p when that is due.

        It is a 0-d tensor on a GPU, which would have to be waited for.
        """
        num_batches, variance, gain = self._numbers.unbind()
        predicted, noise = variance + self.process_noise, self.measurement_noise / batch_size
        # Without noise the measurement is the truth, also where p⁻ = 0 makes the ratio 0/0.
        new_gain = predicted / (predicted + noise) if noise else torch.ones_like(gain)
        is_due = num_batches % self.gain_update_interval == 0
        gain = torch.where(is_due, new_gain, gain)
        variance = torch.where(is_due, (1 - new_gain) * predicted, variance)
        self._numbers = torch.stack([num_batches, variance, gain])
        if self.collect_stats:
            self.kalman_gain = gain.item()
        return gain.item() if can_read(gain) else gain

    def _count_batch(self, numbers: Tensor) -> Tensor:
        return numbers + numbers.new_tensor([1.0, 0.0, 0.0])
