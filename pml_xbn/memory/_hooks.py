"""How rows are adapted: by the hooks of a memory, in order.

An adapter gets moments, which the memory measures, and computes a map, which the memory applies. Any other
hook gets rows and gives rows.
"""

from __future__ import annotations

import copy
from collections import OrderedDict
from collections.abc import Callable
from typing import TypeVar

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from .._arithmetic import all_of, widest
from .._tracing import is_tracing, looks_again
from ..adapters.base_adapter import BaseAdapter, Refusal
from ..adapters.moments import Affine, group_moments, moments
from ._module_state import (
    Attributes,
    Held,
    attributes_of,
    buffers_outside_the_state,
    differ_in_numbers_alone,
    give_back_attributes,
    give_back_tensors_unless,
    tensors_of,
)
from ._queue import Contents
from ._rows import Rows, Undo, rows_of

Result = TypeVar("Result")


def apply_adapter(
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
        if adapts is not None and not adapts:
            return rows
    batch_size = batch.shape[0]
    if batch_size < 2:
        return rows
    of_batch = moments(widest(batch))
    target = _learned_if(adapts, adapter, lambda: adapter.estimate(of_batch, batch_size))
    if target is None or rows.has_two is False:
        return rows
    rows = measured_for(adapter, rows)
    has_effect, of_memory = all_of(adapts, rows.has_two), rows.moments()
    affine = _learned_if(has_effect, adapter, lambda: adapter.checked_map(of_memory, of_batch, target))
    if affine is None:
        return rows
    if has_effect is not None:
        affine = _where(has_effect, affine)
    if not adapter.has_groups:
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
    if has_effect is not None:
        maps = _where(has_effect, maps)
    if is_checked:
        adapter.check_finite("map_groups", maps)
    return rows.mapped_in_groups_(maps, groups.of_memory, affine, undo)


def measured_for(adapter: BaseAdapter, rows: Rows) -> Rows:
    """Returns the rows with their sums; all ranks that share rows call it, as it may add up theirs."""
    is_precise = adapter.has_groups or rows.stored.dtype == torch.float64
    if rows.sums is None and is_precise and not is_tracing():
        # Sums of rows as they came lose digits where the mean is large. In a tensor of their own, as the step
        # may still fail; with one map of float32 rows this can wait until it has succeeded.
        rows = rows.measured().written_standardized_(torch.zeros_like(rows.stored))
    return rows.measured()


def join_sums_of_ranks(
    adapter: BaseAdapter, rows: Rows, labels: Tensor, batch: Tensor, batch_labels: Tensor
) -> Rows:
    """Takes part in the sums over ranks that :func:`apply_adapter` computes, and adapts no rows.

    A rank that has failed calls it, so that the other ranks do not wait for its part of the sums.
    """
    if len(batch) < 2 or rows.has_two is False:
        return rows
    rows = measured_for(adapter, rows)
    rows.total_sums()
    if adapter.has_groups:
        groups = adapter.groups_of(labels, batch_labels)
        rows.group_moments(groups.of_memory, groups.number)
    return rows.replaced()  # a copy that has forgotten the sums of all ranks, as adapted rows have


def _learned_if(
    has_effect: Tensor | None, adapter: BaseAdapter, compute: Callable[[], Result]
) -> Result | None:
    """Returns what an adapter computes. Unless that has an effect, the adapter holds what it held before.

    State that is tensors of fixed shapes is given back on the device. If the adapter has changed anything
    else, for instance state that is made of the first batch, or a Python number, the host waits for
    ``has_effect``, and the result is None where that is False.
    """
    if has_effect is None:
        return compute()
    tensors, attributes = tensors_of(adapter), [] if is_tracing() else attributes_of(adapter)
    result = compute()
    if differ_in_numbers_alone(attributes):
        give_back_tensors_unless(has_effect, tensors)
    elif not has_effect:
        give_back_attributes(attributes)
        return None
    return result


def _where(has_effect: Tensor, affine: Affine) -> Affine:
    """Returns the map, or the one that leaves rows as they are."""
    scale, shift = affine
    return Affine(torch.where(has_effect, scale, 1.0), torch.where(has_effect, shift, 0.0))


_PREFIX = "memory_hook_"

MemoryHook = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor | None]


class MemoryHooks:
    """Hooks in order of registration."""

    are_running = False
    # While hooks run: where samples that the batch holds again are in memory, and in the batch, (r,) each;
    # None where the call names no samples.
    returning: tuple[Tensor, Tensor] | None = None

    def __init__(self) -> None:
        self._hooks: OrderedDict[int, MemoryHook] = OrderedDict()

    def register(self, hook: MemoryHook, memory: nn.Module, embedding_size: int) -> RemovableHandle:
        """Adds a hook of a memory of rows of this size; a module becomes the memory's, if it is not yet."""
        name = type(hook).__name__
        if not callable(hook):
            raise TypeError(
                f"hook is a {name}: pass a function or module that takes "
                "(memory, memory_labels, batch, batch_labels)"
            )
        if isinstance(hook, BaseAdapter):
            if type(hook).forward is not BaseAdapter.forward:
                raise TypeError(
                    f"{name} overrides forward, which a memory never calls: override map, or derive it from "
                    "torch.nn.Module"
                )
            hook.set_embedding_size(embedding_size)
        handle = RemovableHandle(self._hooks)
        while handle.id in self._hooks:  # of a process that has been unpickled from
            handle = RemovableHandle(self._hooks)
        self._hooks[handle.id] = hook
        self.name_modules(memory)
        return handle

    def name_modules(self, memory: nn.Module) -> None:
        """Registers the modules among the hooks under numbers, except those already registered."""
        for name, _ in list(memory.named_children()):
            if name.startswith(_PREFIX):  # some may have been removed
                delattr(memory, name)
        for hook in self._hooks.values():
            if isinstance(hook, nn.Module) and all(hook is not module for module in memory.modules()):
                number = sum(name.startswith(_PREFIX) for name, _ in memory.named_children())
                memory.add_module(f"{_PREFIX}{number}", hook)

    def refusals(self, labels: Tensor) -> list[Refusal]:
        """What the hooks that check labels have against these."""
        refusals = []
        for hook in self._hooks.values():
            if isinstance(hook, BaseAdapter) and (refusal := hook.refusal(labels)) is not None:
                refusals.append(refusal)
        return refusals

    @property
    def adapters(self) -> list[BaseAdapter]:
        """The adapters among the hooks, in order."""
        return [hook for hook in self._hooks.values() if isinstance(hook, BaseAdapter)]

    @property
    def collect_stats(self) -> bool:
        """Whether an adapter records numbers for PML's logging, for which a GPU is waited for."""
        return any(adapter.collect_stats for adapter in self.adapters)

    def held_tensors(self) -> Held:
        """Returns the tensors that adapters hold, with their places."""
        return [x for adapter in self.adapters for x in tensors_of(adapter)]

    @property
    def has_only_adapters(self) -> bool:
        """Whether no hook is a plain function or module, which gets rows and gives rows."""
        return len(self.adapters) == len(self._hooks)

    def adapt(
        self,
        contents: Contents,
        batch: Tensor,
        batch_labels: Tensor,
        undo: Undo,
        *,
        returning: tuple[Tensor, Tensor] | None,
        adapts: Tensor | None,
        allow_nonfinite: bool,
        show: Callable[[Rows], None],
    ) -> Rows:
        """Returns the rows after all hooks, each of which gets those that the one before it left.

        Args:
            contents: what the memory holds.
            batch: ``(b, d)``, in float64 or the rows' dtype, detached.
            batch_labels: ``(b,)``.
            undo: records rows of groups that are written to.
            returning: what hooks may ask for meanwhile.
            adapts: whether rows and estimates are to change, a 0-d bool tensor; None: they are.
            allow_nonfinite: whether rows that hold NaN or inf are let pass.
            show: called with the rows that a plain hook is to find where it reads the memory.
        """
        self.are_running, self.returning = True, returning
        try:
            return self._adapt(contents, batch, batch_labels, undo, adapts, allow_nonfinite, show)
        finally:
            self.are_running, self.returning = False, None

    def _adapt(
        self,
        contents: Contents,
        batch: Tensor,
        batch_labels: Tensor,
        undo: Undo,
        adapts: Tensor | None,
        allow_nonfinite: bool,
        show: Callable[[Rows], None],
    ) -> Rows:
        rows, labels = contents.rows, contents.row_labels
        for hook in tuple(self._hooks.values()):  # one may remove itself
            if isinstance(hook, BaseAdapter):
                before, is_checked = rows, not (allow_nonfinite or _is_ours(hook) or is_tracing())
                rows = apply_adapter(
                    hook, rows, labels, batch, batch_labels, undo, adapts=adapts, is_checked=is_checked
                )
                if rows is not before and not (is_checked or contents.are_finite):
                    # A row of NaN leaves its dimensions as they are, and no other row is spoilt.
                    rows = rows.where_finite(before)
                continue
            if rows is not contents.rows:  # of a group they are written already, and read by another map
                show(rows)
            values = rows.read(rows.dtype)
            num_writes = values._version
            # Copies, so that a hook that writes to its input and then fails cannot harm the memory.
            own_batch = batch.to(rows.dtype, copy=True)
            with looks_again():
                new_values = hook(values, labels.clone(), own_batch, batch_labels.clone())
            if new_values is None:
                _check_unwritten(values, num_writes, hook)
            else:
                new_values = _check_values(new_values, values, hook, allow_nonfinite)
                rows = rows_of(new_values, rows, len(rows.stored), rows.stored.dtype)
        return rows

    def join_sums_of_ranks(self, contents: Contents, batch: Tensor, batch_labels: Tensor) -> Rows:
        """Takes part in the sums over ranks that adapters compute, and adapts nothing. Returns the rows."""
        rows, labels = contents.rows, contents.row_labels
        for adapter in self.adapters:
            rows = join_sums_of_ranks(adapter, rows, labels, batch, batch_labels)
        return rows

    def snapshot(self) -> Callable[[], None]:
        """Returns a function that gives the hooks that are modules back what they hold now."""
        parts: Attributes = []
        states, others = [], []
        for hook in self._hooks.values():
            if isinstance(hook, nn.Module):
                parts += attributes_of(hook)
                if not isinstance(hook, BaseAdapter):  # an adapter replaces its tensors, and writes to none
                    states.append((hook, copy.deepcopy(hook.state_dict())))
                    others += [(x, x.clone()) for x in buffers_outside_the_state(hook)]

        def give_back() -> None:
            give_back_attributes(parts)
            for hook, state in states:
                hook.load_state_dict(state)
            with torch.no_grad():
                for values, old in others:
                    values.copy_(old)

        return give_back


def _is_ours(adapter: BaseAdapter) -> bool:
    """Returns whether an adapter is the package's: its maps are finite wherever rows and batch are.

    They are not looked at, as a GPU would have to wait for that.
    """
    return type(adapter).__module__.startswith("pml_xbn.adapters.")


def _check_unwritten(rows: Tensor, num_writes: int, hook: MemoryHook) -> None:
    """Refuses what a hook has written to the rows that it was given, if it does not return them."""
    if rows._version != num_writes:
        raise RuntimeError(
            f"memory hook {_name(hook)} wrote to the rows that it was given, which are a copy, and returned "
            "None, which leaves the rows of the memory as they are: return the rows that it has made"
        )


def _name(hook: MemoryHook) -> str:
    return getattr(hook, "__name__", type(hook).__name__)


def _check_values(new_rows: Tensor, rows: Tensor, hook: MemoryHook, allow_nonfinite: bool) -> Tensor:
    """Returns the rows that a hook has made of others, in their dtype."""
    name = _name(hook)
    if not isinstance(new_rows, torch.Tensor):
        raise TypeError(f"memory hook {name} returned a {type(new_rows).__name__}: return a tensor or None")
    if new_rows.shape != rows.shape:
        raise ValueError(
            f"memory hook {name} returned shape {tuple(new_rows.shape)}: return all "
            f"{len(rows)} rows in order, shape {tuple(rows.shape)}"
        )
    new_rows = new_rows.detach().to(rows)
    if not (allow_nonfinite or torch.isfinite(new_rows).all()):
        raise ValueError(
            f"memory hook {name} returned NaN or inf: return finite rows, or build the memory with "
            "nonfinite='ignore'"
        )
    return new_rows
