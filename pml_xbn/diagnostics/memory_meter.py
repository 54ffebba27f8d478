"""Whether a memory is likely to help, from the first few hundred steps of a run."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from statistics import fmean
from types import TracebackType
from typing import NamedTuple

from pytorch_metric_learning.losses import CrossBatchMemory

from .._number_checks import check_integer
from ..losses import AdaptiveCrossBatchMemory
from .watched_loss import WatchedLoss

MEASUREMENTS = 7  # that an outlook is of
EFFECTS = ("harm", "do nothing", "help")
# Of a multinomial logistic regression on the study's runs, for each effect: the intercept, and the weights of
# push share, displacement and log(1 + positives). `benchmarks.study.meter` fits them.
Coefficients = tuple[tuple[float, ...], ...]
COEFFICIENTS: Coefficients = (
    (-1.31, -0.94, 5.58, 0.72),
    (0.34, -4.28, 1.71, 2.07),
    (0.97, 5.22, -7.3, -2.79),
)


class MemoryOutlook(NamedTuple):
    """What a memory is likely to do to Recall@1: more than a point of harm, nothing, or a point of help.

    Attributes:
        effect: the likeliest of ``EFFECTS``.
        probabilities: of each of ``EFFECTS``.
        push_share: how much of the gradient all anchors have in common, from 0 to 1.
        displacement: of the memory's mean from the anchors'.
        positives: valid positive pairs with rows of earlier batches, per one within the batch.
    """

    effect: str
    probabilities: tuple[float, ...]
    push_share: float
    displacement: float
    positives: float

    def __str__(self) -> str:
        ranked = sorted(zip(self.probabilities, EFFECTS, strict=True), reverse=True)
        (first, effect), *others = ((f"{100 * share:.0f} %", name) for share, name in ranked)
        rest = ", ".join(f"{name} {share}" for share, name in others)
        return (
            f"the memory is likely to {effect} ({first}; {rest}): push share {self.push_share:.2f}, "
            f"displacement {self.displacement:.2f}, {self.positives:.1f} valid positives from memory per one "
            "from the batch"
        )


def memory_outlook(
    push_share: float, displacement: float, positives: float, coefficients: Coefficients = COEFFICIENTS
) -> MemoryOutlook:
    """The outlook of a run, by a logistic regression on the runs of a study.

    Args:
        push_share: ``CommonModePush.share`` of the whole gradient, a mean over measured calls.
        displacement: ``CommonModePush.displacement``, a mean likewise; of unit vectors where the loss
            compares directions.
        positives: valid positives from memory over those from the batch.
        coefficients: as ``COEFFICIENTS``, of another fit.

    Example:
        >>> memory_outlook(push_share=0.4, displacement=0.8, positives=0.5).effect
        'harm'
    """
    measured = (1.0, push_share, displacement, math.log1p(positives))
    logits = [sum(w * x for w, x in zip(weights, measured, strict=True)) for weights in coefficients]
    powers = [math.exp(logit - max(logits)) for logit in logits]
    probabilities = tuple(power / sum(powers) for power in powers)
    effect = EFFECTS[probabilities.index(max(probabilities))]
    return MemoryOutlook(effect, probabilities, push_share, displacement, positives)


def means_of(measurements: Iterable[Sequence[float]]) -> tuple[float, float, float]:
    """What :func:`memory_outlook` takes.

    Args:
        measurements: of each the push's share, the displacement, and valid positives from memory and batch.
    """
    share, displacement, from_memory, from_batch = (fmean(x) for x in zip(*measurements, strict=True))
    return share, displacement, from_memory / max(1.0, from_batch)


class MemoryMeter:
    """Says whether a memory is likely to help, do nothing or harm.

    A context in which the memory is called once per step; some of the calls are watched, at the cost of
    :class:`WatchedLoss`, and none once there are enough measurements.

    It was fitted on runs of a few epochs on one data set; docs/which_variant.md says how often it was right
    there. A memory pays late: one that does nothing in such a run may help in one that goes on until a batch
    alone holds nothing hard any more. Take the outlook for a reason to measure, not for a result.

    Args:
        memory: PML's ``CrossBatchMemory`` or a subclass, with a loss that computes a matrix of distances.
        every: calls from one that is watched to the next.
        measurements: how many there are to be. Calls with no rows of earlier batches are none.

    Example:
        >>> import torch
        >>> from pytorch_metric_learning.losses import SupConLoss
        >>> loss_fn = CrossBatchMemory(SupConLoss(), embedding_size=4, memory_size=32)
        >>> meter = MemoryMeter(loss_fn, every=2)
        >>> for _ in range(8):
        ...     embeddings = torch.randn(8, 4, requires_grad=True)
        ...     with meter:
        ...         loss = loss_fn(embeddings, torch.arange(8) // 2)
        ...     loss.backward()
        >>> meter.outlook().effect in EFFECTS
        True
    """

    def __init__(self, memory: CrossBatchMemory, every: int = 40, measurements: int = MEASUREMENTS) -> None:
        check_integer("every", every, at_least=1)
        check_integer("measurements", measurements, at_least=1)
        self._watched = WatchedLoss(memory)
        self._memory, self._every, self._measurements = memory, every, measurements
        self._num_calls, self._is_watching = 0, False
        self._found: list[tuple[float, ...]] = []

    def __enter__(self) -> MemoryMeter:
        self._is_watching = self._num_calls % self._every == 0 and len(self._found) < self._measurements
        self._num_calls += 1
        if self._is_watching:
            self._watched = WatchedLoss(self._memory).__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if not self._is_watching:
            return
        seen, self._is_watching = self._watched, False
        seen.__exit__(kind, error, trace)
        if kind is None and not seen.is_from_batch.all():
            # Of what the loss compares, which for most is directions.
            unit = getattr(getattr(self._memory.loss, "distance", None), "normalize_embeddings", False)
            push, pairs = seen.common_mode_push(normalize=unit), seen.valid_pairs()
            numbers = *push[1::2], pairs.positives_from_memory, pairs.positives_from_batch
            self._found.append(tuple(float(number) for number in numbers))

    def outlook(self) -> MemoryOutlook:
        """What the measurements so far say.

        Raises:
            ValueError: there are none yet.
        """
        if not self._found:
            raise ValueError(
                "no call has been measured with rows of earlier batches in memory: call the memory within "
                f"the meter for more than {self._every} steps"
            )
        return memory_outlook(*means_of(self._found))

    def __str__(self) -> str:
        """The outlook, and what to try next."""
        outlook, memory = self.outlook(), self._memory
        if outlook.effect == "help":
            return str(outlook)
        is_adapted = isinstance(memory, AdaptiveCrossBatchMemory) and memory._hooks.have_adapters()
        advice = "train without a memory beside it" if is_adapted else "measure XBNWrapper in its place"
        return f"{outlook}; {advice}"
