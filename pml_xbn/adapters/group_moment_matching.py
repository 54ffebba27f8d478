"""Per-class and super-class cross batch normalization."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from .base_adapter import BaseAdapter, Refusal
from .group_moments import group_moments, group_slots
from .moments import Moments, match_moments
from .superclass_lookup import Superclasses, SuperclassLookup


class GroupMomentMatching(BaseAdapter):
    r"""Gives the rows of every group the moments of the group's rows in the batch.

    For a row of group i, with at least two rows of i in the memory R and two in the batch B,

    .. math::
        \hat z = \frac{z - E[R^i]}{\sigma[R^i]}
        \left(\lambda_\sigma \sigma[B] + (1 - \lambda_\sigma)\, \sigma[B^i]\right)
        + \lambda_\mu E[B] + (1 - \lambda_\mu)\, E[B^i]

    (thesis A Study of Cross Batch Memory, Eq. 4.3 and Algorithm 2; groups are classes, or superclasses
    as in Eq. 4.4). Every other row takes the map of :class:`MomentMatching` with R and B whole, or stays.

    Args:
        mean_lambda: λ_μ in [0, 1]: how much of the batch's mean stands in for the group's.
        std_lambda: λ_σ in [0, 1]: how much of the batch's σ stands in for the group's. A group's σ
            from a few rows is noisy, hence 1.
        normalize_absent: adapt the rows of other groups too.
        superclasses: label → superclass, a 1-D integer tensor or sequence indexed by label, or a dict.
            Default: every label is its own group.
        collect_stats: also record ``share_normalized_per_group``, the share of rows that took their
            group's map; see :class:`BaseAdapter`.

    Raises:
        ValueError: a λ outside [0, 1], or a mapping that :class:`SuperclassLookup` refuses.

    Example:
        >>> adapter = GroupMomentMatching(mean_lambda=0.0, std_lambda=0.0)
        >>> memory, labels = torch.tensor([[0.0], [2.0], [0.0], [2.0]]), torch.tensor([0, 0, 1, 1])
        >>> batch = torch.tensor([[10.0], [12.0], [50.0], [54.0]])
        >>> adapter(memory, labels, batch, labels).flatten()
        tensor([10., 12., 50., 54.])
    """

    def __init__(
        self,
        mean_lambda: float = 0.5,
        std_lambda: float = 1.0,
        normalize_absent: bool = True,
        superclasses: Superclasses | None = None,
        **kwargs: Any,
    ) -> None:
        for name, value in (("mean_lambda", mean_lambda), ("std_lambda", std_lambda)):
            if not 0 <= value <= 1:
                raise ValueError(f"{name}={value!r}: pass a number in [0, 1]")
        super().__init__(**kwargs)
        self.mean_lambda = mean_lambda
        self.std_lambda = std_lambda
        self.normalize_absent = normalize_absent
        self.superclass_of = None if superclasses is None else SuperclassLookup(superclasses)
        self.add_to_recordable_attributes(name="share_normalized_per_group", is_stat=True)

    def refusal(self, labels: Tensor) -> Refusal | None:
        """Labels that may not be stored: those without a superclass."""
        if self.superclass_of is None:
            return None
        missing = self.superclass_of.is_missing(labels)
        return (
            missing.any(),
            lambda: (
                f"labels {labels[missing].unique().tolist()} have no superclass: add them to superclasses"
            ),
        )

    def adapt(
        self,
        memory: Tensor,
        memory_labels: Tensor,
        batch: Tensor,
        batch_labels: Tensor,
        source: Moments,
        target: Moments,
    ) -> Tensor:
        memory_groups, batch_groups = memory_labels, batch_labels
        if self.superclass_of is not None:
            # Two different stand-ins, so that rows without a superclass form no group.
            memory_groups = self.superclass_of(memory_labels, missing=-1)
            batch_groups = self.superclass_of(batch_labels, missing=-2)
        slots = group_slots(memory_groups, batch_groups)
        num_slots = len(batch) + 1  # the last one takes the rows of groups that the batch lacks
        in_memory, memory_counts = group_moments(memory, slots.memory, num_slots)
        in_batch, batch_counts = group_moments(batch, slots.batch, num_slots)

        blend = Moments(
            torch.lerp(in_batch.mean, target.mean.expand_as(in_batch.mean), self.mean_lambda),
            torch.lerp(in_batch.std, target.std.expand_as(in_batch.std), self.std_lambda),
        )
        present = (memory_counts >= 2) & (batch_counts >= 2)
        if not self.normalize_absent:
            source = target = _identity_like(source)
        if self.collect_stats:
            share = present[slots.memory].float().mean()
            self.share_normalized_per_group = share.item()
        return match_moments(
            memory,
            _per_row(present, in_memory, source, slots.memory),
            _per_row(present, blend, target, slots.memory),
        )


def _per_row(present: Tensor, of_group: Moments, of_all: Moments, slots: Tensor) -> Moments:
    """The moments of a row's group where the group is present, else those of all rows, ``(n, d)``."""
    present = present.unsqueeze(1)
    return Moments(
        torch.where(present, of_group.mean, of_all.mean)[slots],
        torch.where(present, of_group.std, of_all.std)[slots],
    )


def _identity_like(moments: Moments) -> Moments:
    """Moments that, as source and target both, leave a row exactly as it is."""
    return Moments(torch.zeros_like(moments.mean), torch.ones_like(moments.std))
