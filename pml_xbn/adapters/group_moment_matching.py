"""Per-class and super-class cross batch normalization."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from .._arithmetic import widest
from .affine import Affine
from .base_adapter import BaseAdapter, Refusal
from .moments import Moments, group_moments
from .superclass_lookup import Superclasses, SuperclassLookup


class GroupMomentMatching(BaseAdapter):
    """Gives the rows of every group the moments of the group's rows in the batch.

    Groups are classes (thesis A Study of Cross Batch Memory, Eq. 4.3 and Algorithm 2) or superclasses
    (Eq. 4.4); docs/losses.md has the equation. You may want it when classes drift in different directions and
    a batch has several rows of each group. A group needs two rows in memory and two in the batch. Rows of all
    other groups take the map of :class:`MomentMatching`, or stay as they are.

    Args:
        mean_lambda: λ_μ in [0, 1] (default 0.5), the share of the whole batch's mean in the target of a
            group. 0 takes the group's own mean, 1 the batch's.
        std_lambda: λ_σ in [0, 1] (default 1), the same for the standard deviation. The few rows of a group
            give a noisy one, which is why the default takes the batch's alone.
        normalize_absent: whether rows of groups that are absent from the batch take the map of all rows
            (default True) or stay as they are.
        superclasses: maps a label to its superclass: a 1-D integer tensor or sequence indexed by label, or a
            dict. By default every label is a group of its own.
        collect_stats: also records ``share_normalized_per_group``, the share of rows that took their
            group's map; see :class:`BaseAdapter`.

    Raises:
        ValueError: a λ is outside [0, 1], or :class:`SuperclassLookup` refuses the mapping.

    Example:
        >>> adapter = GroupMomentMatching(mean_lambda=0.0, std_lambda=0.0)
        >>> memory, labels = torch.tensor([[0.0], [2.0], [0.0], [2.0]]), torch.tensor([0, 0, 1, 1])
        >>> batch = torch.tensor([[10.0], [12.0], [50.0], [54.0]])
        >>> adapter(memory, labels, batch, labels).flatten().round(decimals=3)
        tensor([10., 12., 50., 54.])
    """

    def __init__(
        self,
        mean_lambda: float = 0.5,
        std_lambda: float = 1.0,
        normalize_absent: bool = True,
        superclasses: Superclasses | None = None,
        *,
        collect_stats: bool = False,
    ) -> None:
        for name, value in (("mean_lambda", mean_lambda), ("std_lambda", std_lambda)):
            if not 0 <= value <= 1:
                raise ValueError(f"{name}={value!r}: pass a number in [0, 1]")
        super().__init__(collect_stats=collect_stats)
        self.mean_lambda, self.std_lambda = mean_lambda, std_lambda
        self.normalize_absent = normalize_absent
        self.superclass_of = None if superclasses is None else SuperclassLookup(superclasses)
        self.record_stats("share_normalized_per_group")

    def refusal(self, labels: Tensor) -> Refusal | None:
        """Refuses labels without a superclass; without superclasses every label is accepted."""
        if self.superclass_of is None:
            return None
        missing = self.superclass_of.is_missing(labels)

        def message() -> str:
            found = labels[missing].unique().tolist()
            return f"labels {found} have no superclass: add them to superclasses"

        return missing.any(), message

    def map(self, memory: Moments, target: Moments) -> Affine:
        return memory.to(target)

    def map_groups(self, memory: Moments, batch: Moments, target: Moments) -> Affine:
        """Returns the map of every group, ``(g, d)``, for those with two rows or more in memory and batch.

        Args:
            memory: the moments of every group's rows in memory, ``(g, d)`` each.
            batch: the moments of every group's rows in the batch, ``(g, d)`` each.
            target: the moments that rows of no group adapt to, ``(d,)`` each.
        """
        blend = Moments(
            torch.lerp(batch.mean, target.mean, self.mean_lambda),
            torch.lerp(batch.std, target.std, self.std_lambda),
        )
        return memory.to(blend)

    def _adapted(
        self,
        rows: Any,
        labels: Tensor,
        batch: Tensor,
        batch_labels: Tensor,
        affine: Affine,
        target: Moments,
        is_map_checked: bool,
    ) -> Any:
        num_groups, memory_slots, batch_slots = self._slots(labels, batch_labels)
        in_batch, batch_groups = group_moments(widest(batch), batch_slots, num_groups)
        in_memory, memory_groups = rows.group_moments(memory_slots, num_groups)
        is_present = (in_memory >= 2) & (in_batch >= 2)
        if self.collect_stats:
            self.share_normalized_per_group = (in_memory * is_present).sum().item() / len(rows)
        if not self.normalize_absent:
            affine = Affine(torch.ones_like(affine.scale), torch.zeros_like(affine.shift))
        group_maps = self.map_groups(memory_groups, batch_groups, target)
        if is_map_checked:
            self.check_finite("map_groups", Affine(*(torch.where(is_present, x, 0.0) for x in group_maps)))
        # Rows of absent groups take the map of all other rows, which stands last.
        maps = (
            torch.cat([torch.where(is_present, of_groups, of_others), of_others.unsqueeze(0)])
            for of_groups, of_others in zip(group_maps, affine, strict=True)
        )
        return rows.adapted_in_groups(Affine(*maps), memory_slots, affine)

    def _take_part(self, rows: Any, labels: Tensor, batch_labels: Tensor) -> Any:
        num_groups, memory_slots, _ = self._slots(labels, batch_labels)
        rows.group_moments(memory_slots, num_groups)
        return super()._take_part(rows, labels, batch_labels)

    def _slots(self, memory_labels: Tensor, batch_labels: Tensor) -> tuple[int, Tensor, Tensor]:
        """Returns the number g of groups in the batch, and the group of every row.

        The groups of the rows in memory ``(n,)`` are from 0 to g, where g stands for groups that the batch
        lacks. Those of the batch ``(b,)`` are from 0 to g − 1.
        """
        if self.superclass_of is not None:
            # Two different numbers for rows without a superclass, so that these form no group.
            memory_labels = self.superclass_of(memory_labels, missing=-1)
            batch_labels = self.superclass_of(batch_labels, missing=-2)
        groups = batch_labels.sort().values
        if groups.device.type == "cpu":  # to know how many there are, a GPU would wait
            groups = groups.unique_consecutive()
        nearest = torch.searchsorted(groups, memory_labels).clamp_(max=len(groups) - 1)
        memory_slots = torch.where(groups[nearest] == memory_labels, nearest, len(groups))
        return len(groups), memory_slots, torch.searchsorted(groups, batch_labels)
