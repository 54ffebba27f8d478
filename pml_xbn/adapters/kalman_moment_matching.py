"""Adaptive Cross Batch Normalization."""

from __future__ import annotations

from .._number_checks import check_integer, check_non_negative
from .moment_matching import MomentMatching


class KalmanMomentMatching(MomentMatching):
    r"""Gives the memory a Kalman filter's estimate of the moments of the whole data set.

    The estimate starts at the first batch's moments, and goes the share K of the way to those of every other.
    With the first batch, and every ``gain_update_interval`` batches,

    .. math:: p^- = p + q, \quad K = \frac{p^-}{p^- + r / |B|}, \quad p = (1 - K)\, p^-

    (Adaptive Cross Batch Normalization, Algorithm 1 and §3.2; r/\|B\| as in §3.2.1). r = 0 gives K = 1,
    plain moment matching, and the paper's noises, the defaults, at least 0.99. Once settled, K depends on r/q
    alone, and is 0.62 at r/q = \|B\|. A larger ``measurement_noise`` smooths more.

    Args:
        process_noise: q, variance by which the data set's moments move between updates.
        measurement_noise: r, variance of the moments of a single-row batch.
        initial_variance: p₀, variance of the first estimate; forgotten after a few updates.
        gain_update_interval: batches per update of K and p.
        collect_stats: also record ``kalman_gain``; see :class:`BaseAdapter`.

    Raises:
        ValueError: a negative or non-finite noise or variance, or an interval below 1.

    Example:
        >>> adapter = KalmanMomentMatching(measurement_noise=64.0, gain_update_interval=1)
        >>> [round(adapter.gain(batch_size=64), 3) for _ in range(4)]
        [0.667, 0.625, 0.619, 0.618]
    """

    _state = ("num_batches", "variance", "current_gain")

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
        super().__init__(collect_stats=collect_stats)
        self.process_noise, self.measurement_noise = process_noise, measurement_noise
        self.initial_variance = self.variance = initial_variance
        self.gain_update_interval = gain_update_interval
        self.record_stats("kalman_gain")

    def gain(self, batch_size: int) -> float:
        """Kalman gain K for this batch; advances the filter's variance p when an update is due."""
        if self.num_batches % self.gain_update_interval == 0:
            predicted = self.variance + self.process_noise
            noise = self.measurement_noise / batch_size
            # Without noise the measurement is the truth, also where p⁻ = 0 makes the ratio 0/0.
            self.current_gain = predicted / (predicted + noise) if noise else 1.0
            self.variance = (1 - self.current_gain) * predicted
        if self.collect_stats:
            self.kalman_gain = self.current_gain
        return self.current_gain
