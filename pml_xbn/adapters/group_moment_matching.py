"""Per-class and super-class cross batch normalization."""

from __future__ import annotations

import torch
from torch import Tensor

from .._tracing import can_read
from .base_adapter import BaseAdapter, Refusal
from .moments import Affine, GroupMoments, Groups, Moments, group_moments
from .superclass_lookup import Superclasses, SuperclassLookup


class GroupMomentMatching(BaseAdapter):
    """Gives the rows of every group the moments of the group's rows in the batch.

    Groups are classes (thesis A Study of Cross Batch Memory, Eq. 4.3 and Algorithm 2) or superclasses
    (Eq. 4.4); docs/losses/per_class_xbn.md has the equation. You may want it when classes drift in different
    directions and a batch has several rows of each group. A group needs two rows in memory and two in the
    batch. Rows of all other groups take the map of :class:`MomentMatching`, or stay as they are.

    Args:
        mean_lambda: λ_μ in [0, 1] (default 0.5), the weight of the whole batch's mean in the target of a
            group. 0 takes the group's own mean, 1 the batch's.
        std_lambda: λ_σ in [0, 1] (default 1), the same for the standard deviation. The few rows of a group
            give a noisy one, which is why the default takes the batch's alone.
        normalize_absent: whether rows of groups that are absent from the batch take the map of all rows
            (default True) or stay as they are.
        superclasses: maps a label to its superclass: a 1-D integer tensor or sequence indexed by label, or a
            dict. By default every label is a group of its own.
        collect_stats: also records ``share_normalized_per_group``, the fraction of rows that took their
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

    has_groups = True

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

    def map(self, memory: Moments, target: Moments) -> Affine:  # of the rows of no group
        if self.normalize_absent:
            return memory.affine_to(target)
        return Affine(torch.ones_like(memory.mean), torch.zeros_like(memory.mean))

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
        return memory.affine_to(blend)

    def groups_of(self, memory_labels: Tensor, batch_labels: Tensor) -> Groups:
        """Returns the group of every row of memory ``(n,)`` and batch ``(b,)``."""
        if self.superclass_of is not None:
            # Two different numbers for rows without a superclass, so that these form no group.
            memory_labels = self.superclass_of(memory_labels, missing=-1)
            batch_labels = self.superclass_of(batch_labels, missing=-2)
        groups = batch_labels.sort().values
        if can_read(groups):  # how many there are; on a GPU equal ones stay, of which all but one are empty
            groups = groups.unique_consecutive()
        nearest = torch.searchsorted(groups, memory_labels).clamp_(max=len(groups) - 1)
        of_memory = torch.where(groups[nearest] == memory_labels, nearest, len(groups))
        return Groups(len(groups), of_memory, torch.searchsorted(groups, batch_labels))

    def maps_of_groups(
        self,
        affine: Affine,
        memory: GroupMoments,
        batch: GroupMoments,
        target: Moments,
        num_rows: int | Tensor,
    ) -> Affine:
        """Returns the maps ``(g + 1, d)`` of the groups' rows, and last that of the rows of no group.

        Args:
            affine: the map of all rows, ``(d,)`` each.
            memory: how many rows of every group are in memory, ``(g, 1)``, and their moments ``(g, d)``.
            batch: the same of the batch.
            target: the moments that rows of no group adapt to, ``(d,)`` each.
            num_rows: how many rows there are in memory, for PML's logging.
        """
        is_present = (memory.sizes >= 2) & (batch.sizes >= 2)
        if self.collect_stats:
            num_normalized = (memory.sizes * is_present).sum().item()
            self.share_normalized_per_group = num_normalized / float(num_rows)
        maps = zip(self.map_groups(memory.moments, batch.moments, target), affine, strict=True)
        return Affine(
            *(
                torch.cat([torch.where(is_present, of_groups, of_others), of_others.unsqueeze(0)])
                for of_groups, of_others in maps
            )
        )

    def _adapted(
        self,
        rows: Tensor,
        labels: Tensor,
        batch: Tensor,
        batch_labels: Tensor,
        affine: Affine,
        target: Moments,
    ) -> Tensor:
        groups = self.groups_of(labels, batch_labels)
        in_memory = group_moments(rows, groups.of_memory, groups.number)
        in_batch = group_moments(batch, groups.of_batch, groups.number)
        maps = self.maps_of_groups(affine, in_memory, in_batch, target, len(rows))
        return torch.addcmul(maps.shift[groups.of_memory], rows, maps.scale[groups.of_memory])
