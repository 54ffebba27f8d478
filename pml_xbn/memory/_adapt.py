"""How rows are adapted: the memory measures, an adapter computes a map, and the memory applies it."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from .._arithmetic import widest
from .._tracing import is_tracing
from ..adapters.affine import Affine
from ..adapters.base_adapter import BaseAdapter
from ..adapters.group_moment_matching import GroupMomentMatching
from ..adapters.moments import Moments, group_moments, moments
from ._rows import Rows, Undo


def adapt(
    adapter: BaseAdapter,
    rows: Rows,
    labels: Tensor,
    batch: Tensor,
    batch_labels: Tensor,
    undo: Undo,
    *,
    adapts: Tensor | None = None,
    is_checked: bool = False,
) -> Rows:
    """Returns the rows, adapted to a batch of two rows or more; the same rows where there are no moments.

    Args:
        adapter: makes a map of the moments of rows and batch.
        rows: n of them.
        labels: ``(n,)``.
        batch: ``(b, d)``, detached.
        batch_labels: ``(b,)``.
        undo: records rows of groups that are written to.
        adapts: whether rows and estimate are to change, a 0-d bool tensor; None: they are.
        is_checked: whether a map with NaN or inf is refused. For that a GPU has to wait.

    Raises:
        ValueError: a map that is not finite.
    """
    if adapter.collect_stats:
        adapter.reset_stats()
    if len(batch) < 2:
        return rows
    of_batch, held = moments(widest(batch)), None if adapts is None else tensors_of(adapter)
    target = adapter.estimate(of_batch, len(batch))
    if adapts is not None and held is not None:
        _keep_unless(held, adapts)
    if rows.has_two is False:
        return rows
    is_precise = isinstance(adapter, GroupMomentMatching) or rows.stored.dtype == torch.float64
    if rows.sums is None and is_precise and not is_tracing():
        # Sums of rows as they came lose digits where the mean is large. In a tensor of their own, as the step
        # may still fail; with one map of float32 rows this can wait until it has succeeded.
        rows = rows.measured().standardized_(torch.zeros_like(rows.stored))
    rows = rows.measured()
    affine = adapter.checked_map(rows.moments(), of_batch, target)
    if adapts is not None or isinstance(rows.has_two, Tensor):
        affine = _where(_all(adapts, rows.has_two), affine)
    if not isinstance(adapter, GroupMomentMatching):
        mapped = rows.mapped(affine)
        if is_checked:
            adapter.check_finite("map", mapped.affine_in(rows.dtype))
        return mapped
    groups = adapter.groups_of(labels, batch_labels)
    if (is_row := rows.is_row) is not None:  # places without a row are of no group
        groups = groups._replace(of_memory=torch.where(is_row, groups.of_memory, groups.number))
    in_batch = group_moments(widest(batch), groups.of_batch, groups.number)
    in_memory = rows.group_moments(groups.of_memory, groups.number)
    maps = adapter.maps_of_groups(affine, in_memory, in_batch, target, rows.num_rows)
    if adapts is not None or isinstance(rows.has_two, Tensor):
        maps = _where(_all(adapts, rows.has_two), maps)
    if is_checked:
        adapter.check_finite("map_groups", maps)
    return rows.mapped_in_groups_(maps, groups.of_memory, affine, undo)


def take_part(adapter: BaseAdapter, rows: Rows, labels: Tensor, batch: Tensor, batch_labels: Tensor) -> Rows:
    """Takes part in the sums over ranks that :func:`adapt` computes, and adapts no rows.

    A rank that has failed calls it, so that the other ranks do not wait for its part of the sums.
    """
    if len(batch) < 2 or rows.has_two is False:
        return rows
    rows = rows.measured()
    rows.total_sums()
    if isinstance(adapter, GroupMomentMatching):
        groups = adapter.groups_of(labels, batch_labels)
        rows.group_moments(groups.of_memory, groups.number)
    return rows.replaced()  # a copy that has forgotten the sums of all ranks, as adapted rows have


def _all(*conditions: Tensor | bool | None) -> Tensor:
    """Returns whether all conditions hold, of which None and True are no conditions."""
    tensors = [condition for condition in conditions if isinstance(condition, Tensor)]
    found = tensors[0]
    for condition in tensors[1:]:
        found = found & condition
    return found


def _where(adapts: Tensor, affine: Affine) -> Affine:
    """Returns the map, or the one that leaves rows as they are."""
    scale, shift = affine
    return Affine(torch.where(adapts, scale, 1.0), torch.where(adapts, shift, 0.0))


Held = list[tuple[nn.Module, str, "Tensor | Moments"]]


def tensors_of(module: nn.Module) -> Held:
    """Returns the tensors that a module keeps in attributes and buffers, with their names."""
    found: Held = []
    for part in module.modules():
        for names in (vars(part), part._buffers):
            found += [
                (part, name, value) for name, value in names.items() if isinstance(value, (Tensor, Moments))
            ]
    return found


def _keep_unless(held: Held, moves: Tensor) -> None:
    """Gives an adapter back what it held unless it moves, as with a batch that is not finite."""
    for part, name, old in held:
        new = getattr(part, name)
        if new is not old and _are_alike(new, old):
            pairs = zip(_parts(new), _parts(old), strict=True)
            chosen = [torch.where(moves, x, y) for x, y in pairs]
            setattr(part, name, chosen[0] if isinstance(old, Tensor) else Moments(*chosen))


def settle_(held: Held) -> None:
    """Writes what adapters have replaced into the tensors that they held, so that these stay where they are.

    A CUDA graph finds them there.
    """
    for part, name, old in held:
        new = getattr(part, name)
        if new is not old and _are_alike(new, old):
            for x, y in zip(_parts(new), _parts(old), strict=True):
                y.copy_(x)
            setattr(part, name, old)


def _parts(value: Tensor | Moments) -> tuple[Tensor, ...]:
    return (value,) if isinstance(value, Tensor) else tuple(value)


def _are_alike(one: Tensor | Moments, other: Tensor | Moments) -> bool:
    pairs = zip(_parts(one), _parts(other), strict=True)
    return all((x.shape, x.dtype, x.device) == (y.shape, y.dtype, y.device) for x, y in pairs)
