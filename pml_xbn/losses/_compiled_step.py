"""The step as one operation of what ``torch.compile`` compiles.

Dynamo, its first stage, would follow the Python code of a step line by line, and before each later call check
that nothing that this code has read is another, which takes as long as several kernels. So a step is one
function that Dynamo does not look into. The next stage runs it on tensors without numbers, and records what
it does to them. What the function finds in objects is fixed by that: so tensors are given to it, and settings
too, of which Dynamo then checks that they are the same.

What can be told from the settings, such as which names a module has, or whether a loss is fused, is a
constant to Dynamo, and it checks nothing that was read to find it.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeVar
from weakref import WeakValueDictionary

import torch
from torch import Tensor, nn

from .._tracing import compiled_step
from ..adapters.base_adapter import BaseAdapter
from ..memory._module_state import (
    Held,
    attributes_of,
    differ_in_numbers_alone,
    give_back_attributes,
    parts_of,
    replace_tensors,
)
from ..memory._queue import STATE
from ._guarded import Names, names_of, settings_of, tensors_within, what_is_not_seen
from ._traced_step import (
    check_traced_input,
    measures_rows,
    step_traced,
    why_not_traced,
    will_measure,
)

if TYPE_CHECKING:
    from .adaptive_cross_batch_memory import AdaptiveCrossBatchMemory as Memory

# Dynamo gives a function tensors and constants alone, so a memory is known to it by a name.
_MEMORIES: WeakValueDictionary[str, Memory] = WeakValueDictionary()
_numbers = itertools.count()

# Attributes of a memory that a step depends on.
_SETTINGS = (
    *("delay", "warmup", "nonfinite", "batch_loss_weight", "normalize_memory", "update"),
    *("collect_stats", "gather_distributed", "_is_sharded"),
)

Function = TypeVar("Function", bound=Callable[..., Any])


def register_memory(memory: Memory) -> str:
    """Returns the name by which compiled steps find a memory, once it has been built, copied or unpickled."""
    name = f"memory {next(_numbers)}"
    _MEMORIES[name] = memory
    return name


def _constant(function: Function) -> Function:
    """Has Dynamo call a function and take the result for a constant, in place of following its code.

    So does ``torch.compiler.assume_constant_result``, which would import Dynamo along with the package.
    """
    function._dynamo_marked_constant = True  # type: ignore[attr-defined]
    return function


def why_not_compiled(memory: Memory, *, has_more_input: bool) -> str | None:
    """Returns what ``why_not_traced`` returns, and has Dynamo check all that it depends on."""
    _settings_of(memory)
    return _why_not_compiled(memory._name, has_more_input)


@_constant
def _why_not_compiled(name: str, has_more_input: bool) -> str | None:
    memory = _MEMORIES[name]
    reason = why_not_traced(memory, has_more_input=has_more_input)
    if reason is not None:
        return reason
    for module in _modules_of(memory):
        find = what_is_not_seen if isinstance(module, BaseAdapter) else tensors_within
        unseen = find(module)
        if unseen is not None:
            return f"whose {type(module).__name__} has {unseen}, of which torch.compile sees no change"
    return None


def step_compiled(memory: Memory, embeddings: Tensor, labels: Tensor) -> Tensor:
    """Returns the loss of a batch against the memory, which then holds the batch, while Dynamo looks on."""
    queue = memory.queue
    if not _fits(memory, embeddings, labels):  # else Dynamo would follow and guard every line of the checks
        check_traced_input(memory, embeddings, labels)
    _have_dynamo_not_look_into_it()
    # In the order in which `_on_tensors` puts them back.
    tensors = [getattr(queue, name) for name in STATE]
    tensors += [queue.findings.flags, *parts_of(_held_by_modules(memory))]
    has_sums = _has_sums(memory)
    loss, newest = _step_on_tensors(memory._name, _settings_of(memory), embeddings, labels, *tensors)
    queue.take_traced_step(newest, is_measured=has_sums or will_measure(memory, len(embeddings)))
    return loss


def _fits(memory: Memory, embeddings: Tensor, labels: Tensor) -> bool:
    """Returns whether a batch passes ``check_traced_input``, which says why not."""
    queue = memory.queue
    has_width = embeddings.ndim == 2 and embeddings.shape[1] == queue.rows.shape[1]
    has_labels = labels.shape == embeddings.shape[:1] and not labels.is_floating_point()
    is_of_queue = (memory.memory_size, memory.memory_dtype) == (queue.memory_size, queue.dtype)
    is_small = has_width and embeddings.shape[0] <= queue.memory_size
    return has_width and has_labels and embeddings.is_floating_point() and is_of_queue and is_small


def _has_sums(memory: Memory) -> bool:
    """Returns whether a compiled step takes the queue's sums for those of its rows.

    Where rows will be measured, those of an empty memory are, to be zero. So the first step is compiled as
    all later ones are. Dynamo checks what is read here.
    """
    return not memory.queue.has_unmeasured_rows if measures_rows(memory) else memory.queue.is_measured


def _step_on_tensors(
    name: str, settings: tuple[object, ...], embeddings: Tensor, labels: Tensor, *tensors: Tensor
) -> tuple[Tensor, Tensor]:
    """Returns the loss, and where the batch was stored, and writes the step to the tensors.

    Args:
        name: of the memory.
        settings: what the step reads besides; Dynamo compares them with those of the next call.
        embeddings: ``(b, d)``.
        labels: ``(b,)``.
        tensors: those that the memory holds, or what stands for them.
    """
    for setting in settings:
        if isinstance(setting, (torch.SymInt, torch.SymFloat)):  # a number that has changed before
            (int if isinstance(setting, torch.SymInt) else float)(setting)  # is a constant from here on
    memory = _MEMORIES[name]
    with _on_tensors(memory, tensors), compiled_step():
        loss = step_traced(memory, embeddings, labels)
        newest = memory.queue.newest
        assert newest is not None
        return loss, newest


@_constant
def _have_dynamo_not_look_into_it() -> None:
    torch.compiler.allow_in_graph(_step_on_tensors)


def _modules_of(memory: Memory) -> list[nn.Module]:
    """Returns the modules that a step calls."""
    return [memory.loss, *([] if memory.miner is None else [memory.miner]), *memory._hooks.adapters]


@_constant
def _names_of_modules(name: str) -> list[list[Names]]:
    return [names_of(module) for module in _modules_of(_MEMORIES[name])]


def _parts_of_modules(memory: Memory) -> list[tuple[nn.Module, Names]]:
    """Returns the modules that a step calls, and their parts, with the names of what they hold."""
    found = []
    for module, names_of_parts in zip(_modules_of(memory), _names_of_modules(memory._name), strict=True):
        for names in names_of_parts:
            part = module
            for name in names.path:
                part = getattr(part, name)
            found.append((part, names))
    return found


def _held_by_modules(memory: Memory) -> Held:
    return [
        (part, name, getattr(part, name))
        for part, names in _parts_of_modules(memory)
        for name in names.tensors
    ]


def _settings_of(memory: Memory) -> tuple[object, ...]:
    """Returns what the modules, and the memory itself, hold that is no tensor and that a step depends on."""
    queue, hooks = memory.queue, memory._hooks
    found: list[object] = [getattr(memory, name) for name in _SETTINGS]
    found += [_has_sums(memory), queue._has_ids, hooks.has_only_adapters, hooks.collect_stats]
    for part, names in _parts_of_modules(memory):
        found += settings_of(part, names)
    return tuple(found)


def _settings_of_adapters(memory: Memory) -> list[object]:
    """Returns the numbers that adapters hold, also within a list or a dict."""
    of_adapters = {part for adapter in memory._hooks.adapters for part in adapter.modules()}
    parts = _parts_of_modules(memory)
    return [x for part, names in parts if part in of_adapters for x in settings_of(part, names)]


@contextmanager
def _on_tensors(memory: Memory, tensors: tuple[Tensor, ...]) -> Iterator[None]:
    """Lets the memory hold other tensors in the block, and gives it back what it held."""
    queue, adapters, given = memory.queue, memory._hooks.adapters, iter(tensors)
    state, flags, held = vars(queue).copy(), queue.findings.flags, _held_by_modules(memory)
    attributes = [x for module in _modules_of(memory) for x in attributes_of(module)]
    try:
        queue.is_measured = _has_sums(memory)
        for name in STATE:
            setattr(queue, name, next(given))
        queue.findings.flags = next(given)
        replace_tensors(held, given)
        before = [x for adapter in adapters for x in attributes_of(adapter)]
        settings = _settings_of_adapters(memory)
        yield
        if not differ_in_numbers_alone(before) or _settings_of_adapters(memory) != settings:
            raise RuntimeError(
                f"an adapter of this {type(memory).__name__} changes what is no tensor of a fixed shape, "
                "which a graph would do once and never again: keep its state in tensors, or do not compile "
                "the memory"
            )
    finally:
        queue.undo.clear()
        vars(queue).clear()
        vars(queue).update(state)
        queue.findings.flags = flags
        give_back_attributes(attributes)
