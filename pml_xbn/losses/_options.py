"""The options that every memory takes, and constructors that know the keyword which was meant."""

from __future__ import annotations

import functools
import inspect
import re
from typing import TYPE_CHECKING, Any, TypedDict, TypeVar

from .._checks import check_keywords

if TYPE_CHECKING:
    import torch
    from torch.distributed import ProcessGroup
    from torch.distributed.device_mesh import DeviceMesh

Class = TypeVar("Class", bound=type)


class MemoryOptions(TypedDict, total=False):
    """The keywords of ``AdaptiveCrossBatchMemory``, which describes them and has their defaults."""

    delay: int
    warmup: int
    batch_loss_weight: float
    normalize_memory: bool
    gather_distributed: bool
    shard_distributed: bool
    process_group: ProcessGroup | DeviceMesh | None
    nonfinite: str
    memory_dtype: torch.dtype
    update: str
    update_momentum: float
    collect_stats: bool | None


def suggest_keywords(cls: Class) -> Class:
    """Decorates a class so that a misspelt keyword raises a TypeError with the one that was meant.

    Without it, Python would first say that a required parameter is missing: the one that was misspelt.
    """
    init: Any = vars(cls)["__init__"]

    @functools.wraps(init)
    def check_and_init(self: object, *args: Any, **keywords: Any) -> None:
        check_keywords(type(self), keywords)
        init(self, *args, **keywords)

    cls.__init__ = check_and_init  # type: ignore[misc]
    return cls


def show_memory_options(cls: Class) -> Class:
    """Decorates a memory that hands ``**options`` on to its base, so that everybody can see them.

    ``inspect.signature`` has the base's parameters in their place, and the base's descriptions take the place
    of the entry ``options`` in the docstring.
    """
    cls, base = suggest_keywords(cls), cls.__mro__[1]
    init: Any = vars(cls)["__init__"]
    own = inspect.signature(init)
    shown = dict(own.parameters) | dict(inspect.signature(base.__init__).parameters)  # type: ignore[misc]
    del shown["options"]
    init.__signature__ = own.replace(parameters=sorted(shown.values(), key=lambda x: x.kind))
    if cls.__doc__ and base.__doc__:  # not with python -OO
        described, inherited = _described_parameters(cls.__doc__), _described_parameters(base.__doc__)
        others = (inherited[name] for name in shown if name in inherited and name not in described)
        cls.__doc__ = inspect.cleandoc(cls.__doc__).replace(described["options"], "".join(others))
    return cls


def _described_parameters(docstring: str) -> dict[str, str]:
    """Returns the entries of the section Args, by the names of the parameters."""
    # Python 3.13 removes the common indent when it compiles a docstring; earlier ones leave it in.
    entry = re.compile(r"^    (\w+):.*\n(?:^ {8,}.*\n)*", re.MULTILINE)
    return {match[1]: match[0] for match in entry.finditer(inspect.cleandoc(docstring))}
