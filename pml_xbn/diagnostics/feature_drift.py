"""How far the embeddings of the same images move as the model trains."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from .._checks import check_integer, check_rows
from .distances import distance_per_row, mean_and_maximum
from .random_state import random_state_kept


class Drift(NamedTuple):
    """Feature drift over a set of images, 0-dimensional each."""

    mean: Tensor
    maximum: Tensor


def feature_drift(now: Tensor, before: Tensor, *, squared: bool = False) -> Drift:
    r"""Returns the feature drift of the same images between two states of the model.

    .. math:: D(x, k, \Delta k) = \| z^k - z^{k - \Delta k} \|_2

    (Adaptive Cross Batch Normalization, Eq. 5; thesis A Study of Cross Batch Memory, Eq. 3.5.)

    Args:
        now: embeddings :math:`z^k`, ``(n, d)``. The papers' have unit length.
        before: embeddings :math:`z^{k - \Delta k}` of the same images, ``(n, d)``.
        squared: whether to square the norm, as Cross-Batch Memory does
            (https://arxiv.org/abs/1912.06798, Eq. 2; default False).

    Returns:
        Mean and maximum over the images, in the units of the embeddings (or their square). Both are 0
        without images.

    Raises:
        ValueError: the shapes are not ``(n, d)``, or differ.

    Example:
        >>> feature_drift(torch.tensor([[3.0, 4.0], [1.0, 0.0]]), torch.zeros(2, 2))
        Drift(mean=tensor(3.), maximum=tensor(5.))
    """
    check_rows("now", now)
    check_rows("before", before, like=now)
    drift = distance_per_row(now.detach(), before.detach())
    return Drift(*mean_and_maximum(drift.square() if squared else drift))


class FeatureDrift:
    r"""Measures in a training loop how far the embeddings of fixed images move in so many steps.

    It embeds the images at the steps where drift is measured, and :math:`\Delta k` steps before each of
    them. At all other steps it costs nothing.

    Args:
        embed: returns the embeddings ``(n, d)`` of the same images in every call, by the model as it is. Let
            it use ``eval()`` mode and no augmentation, since whatever these change would count as drift. What
            it draws of PyTorch's random numbers is not missing in training. Statistics of a model in
            ``train()`` mode do change: embed with a copy.
        deltas: the numbers of steps :math:`\Delta k`, 1 or more each (default 1, 10 and 100; Cross-Batch
            Memory, Fig. 3 has 10, 100 and 1,000; Adaptive Cross Batch Normalization, Fig. 3 has 1).
        every: the number of steps from one measurement to the next (default 100).
        squared: see :func:`feature_drift`.

    Raises:
        ValueError: ``deltas`` or ``every`` is below 1.

    Example:
        >>> model = torch.nn.Linear(2, 2, bias=False)
        >>> images = torch.eye(2)
        >>> drift = FeatureDrift(lambda: model(images), deltas=(1, 2), every=2)
        >>> for step in range(5):
        ...     for delta, measured in drift.update(step).items():
        ...         print(f"step {step}, {delta} back: {measured.mean:.1f}")
        ...     with torch.no_grad():
        ...         model.weight[0] += 1
        step 2, 1 back: 1.0
        step 2, 2 back: 2.0
        step 4, 1 back: 1.0
        step 4, 2 back: 2.0
    """

    def __init__(
        self,
        embed: Callable[[], Tensor],
        deltas: Sequence[int] = (1, 10, 100),
        every: int = 100,
        *,
        squared: bool = False,
    ) -> None:
        for delta in deltas:
            check_integer("a number of deltas", delta, at_least=1)
        check_integer("every", every, at_least=1)
        self.embed = embed
        self.deltas = tuple(sorted(set(deltas)))
        self.every = every
        self.squared = squared
        self._past: dict[int, Tensor] = {}

    def update(self, step: int) -> dict[int, Drift]:
        r"""Embeds the images if this step needs them. Call it once per step, at the same place of the loop.

        Args:
            step: the number of the step, counted over all epochs.

        Returns:
            The drift of every :math:`\Delta k` whose earlier embeddings are known. It is empty at steps
            where nothing is measured.
        """
        is_measured = step % self.every == 0
        if not (is_measured or self._is_wanted(step, after=step)):
            return {}
        with torch.no_grad(), random_state_kept():
            now = self.embed().detach().clone()
        known = [delta for delta in self.deltas if is_measured and step - delta in self._past]
        drifts = {
            delta: feature_drift(now, self._past[step - delta].to(now.device), squared=self.squared)
            for delta in known
        }
        self._past[step] = now
        self._past = {past: rows for past, rows in self._past.items() if self._is_wanted(past, after=step)}
        return drifts

    def _is_wanted(self, past: int, after: int) -> bool:
        """Returns whether a measurement after the step ``after`` will need the embeddings of ``past``."""
        return any(past + delta > after and (past + delta) % self.every == 0 for delta in self.deltas)

    def state_dict(self) -> dict[str, Any]:
        """Returns the embeddings that later measurements compare with."""
        return {"past": dict(self._past)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continues from a state that :meth:`state_dict` has returned."""
        self._past = dict(state["past"])
