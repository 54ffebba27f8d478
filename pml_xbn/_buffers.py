"""The buffers of a model in a pass that is to see others, or to leave them as they are."""

from __future__ import annotations

from collections.abc import Iterator, MutableMapping
from contextlib import contextmanager
from typing import Any

from torch import Tensor, nn
from torch.nn.parameter import is_lazy

# Each module's dictionary of buffers, with a copy of its tensors. A layer under two names is one module.
Buffers = list[tuple[MutableMapping[str, Any], dict[str, Tensor | None]]]


def copied_buffers(model: nn.Module) -> Buffers:
    """Returns copies of the buffers of a model as they are now.

    Raises:
        ValueError: a lazy layer, whose first pass makes another one of it.
    """
    if any(is_lazy(tensor) for tensor in (*model.parameters(), *model.buffers())):
        raise ValueError(
            "the model has a lazy layer that has not seen a batch yet: call the model once with some images"
        )
    return _copied([(module._buffers, dict(module._buffers.items())) for module in model.modules()])


@contextmanager
def buffers_as(then: Buffers) -> Iterator[None]:
    """Lets a model see copies of its buffers as they were then, and gives it back its own.

    Tensors are exchanged and not written to, so a graph of autograd that holds them stays valid. (PyTorch's
    ``functional_call`` does this too, but not for a layer under two names or a scripted one.)
    """
    now: Buffers = [(own, dict(own.items())) for own, _ in then]
    _assign(_copied(then))
    try:
        yield
    finally:
        _assign(now)


def _copied(buffers: Buffers) -> Buffers:
    """Returns copies; a tensor that is two buffers stays one."""
    copies: dict[int, Tensor] = {}

    def of(buffer: Tensor | None) -> Tensor | None:
        if buffer is None:
            return None
        if id(buffer) not in copies:
            copies[id(buffer)] = buffer.clone()
        return copies[id(buffer)]

    return [(own, {name: of(buffer) for name, buffer in values.items()}) for own, values in buffers]


def _assign(buffers: Buffers) -> None:
    for own, values in buffers:
        for name in [name for name, _ in own.items() if name not in values]:
            del own[name]  # registered in a forward pass
        for name, value in values.items():
            own[name] = value
