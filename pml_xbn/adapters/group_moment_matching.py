"""Per-class and super-class cross batch normalization."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from .base_adapter import BaseAdapter, Refusal
from .group_moments import GroupSlots, group_moments, group_slots, group_sums, map_by_slot
from .moments import Affine, Moments, affine_between, widest
from .running_moments import Sums
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
        out: Tensor,
        memory: Tensor,
        memory_labels: Tensor,
        batch: Tensor,
        batch_labels: Tensor,
        source: Moments,
        target: Moments,
    ) -> None:
        slots = self._slots(memory_labels, batch_labels)
        absent = len(batch)  # the slot of rows whose group the batch lacks
        rows, row_slots, places = _of_groups(memory, slots.memory, absent)

        in_batch = group_sums(batch, slots.batch, absent)
        in_memory = Sums(*(x[:absent] for x in group_sums(rows, row_slots, absent + 1)))
        present = (in_memory.count >= 2) & (in_batch.count >= 2)

        mean, std = group_moments(in_batch)
        blend = Moments(
            torch.lerp(mean, widest(target.mean).expand_as(mean), self.mean_lambda),
            torch.lerp(std, widest(target.std).expand_as(std), self.std_lambda),
        )
        of_group = affine_between(group_moments(in_memory), blend, len(memory), memory.dtype)
        of_all = affine_between(source, target, len(memory), memory.dtype)
        if not self.normalize_absent:
            of_all = Affine(torch.ones_like(of_all.scale), torch.zeros_like(of_all.shift))
        of_slot = Affine(
            *(
                torch.cat([torch.where(present, group, whole), whole.unsqueeze(0)])
                for group, whole in zip(of_group, of_all, strict=True)
            )
        )

        if places is None:
            map_by_slot(rows, row_slots, of_slot, out)
        else:
            of_all.map(memory, out=out)
            mapped = torch.empty_like(rows)
            map_by_slot(rows, row_slots, of_slot, mapped)
            out.index_copy_(0, places, mapped)

        moved = in_memory._replace(count=in_memory.count * present)
        self.running.map(of_all)
        self.running.regroup(moved.mapped(of_all), moved.mapped(Affine(*(x[:absent] for x in of_slot))))
        if self.collect_stats:
            num_normalized = (in_memory.count * present).sum().item()
            self.share_normalized_per_group = num_normalized / len(memory)

    def _slots(self, memory_labels: Tensor, batch_labels: Tensor) -> GroupSlots:
        if self.superclass_of is None:
            return group_slots(memory_labels, batch_labels)
        # Two different stand-ins, so that rows without a superclass form no group.
        return group_slots(
            self.superclass_of(memory_labels, missing=-1), self.superclass_of(batch_labels, missing=-2)
        )


def _of_groups(memory: Tensor, slots: Tensor, absent: int) -> tuple[Tensor, Tensor, Tensor | None]:
    """The rows whose group is in the batch, their slots and places; all rows (places None) if many are.

    They are copied, and mapped into a copy: of more than an eighth of the rows that would take memory
    where a pass over all takes only time. On a GPU all rows, always: to count them would make it wait for
    the host.
    """
    if memory.device.type == "cpu":
        places = (slots < absent).nonzero().squeeze(1)
        if len(places) < len(memory) / 8:
            return memory.index_select(0, places), slots.index_select(0, places), places
    return memory, slots, None
