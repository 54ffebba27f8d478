"""Settings as dataclasses, each field with its bounds, and with its help in a comment."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Annotated, Any, NamedTuple, get_args, get_type_hints


class Must(NamedTuple):
    """What a value has to be, as a predicate and in words."""

    holds: Callable[[Any], bool]
    words: str


Positive = Annotated[int, Must(lambda value: value > 0, "a whole number above 0")]
Natural = Annotated[int, Must(lambda value: value >= 0, "a whole number from 0 up")]
Share = Annotated[float, Must(lambda value: 0 < value <= 1, "above 0 and at most 1")]
Probability = Annotated[float, Must(lambda value: 0 <= value <= 1, "from 0 to 1")]
BelowOne = Annotated[float, Must(lambda value: 0 <= value < 1, "from 0 up and below 1")]
AtLeastOne = Annotated[float, Must(lambda value: 1 <= value < float("inf"), "a finite number from 1 up")]
NotNegative = Annotated[float, Must(lambda value: 0 <= value < float("inf"), "a finite number from 0 up")]


def among(names: Collection[str]) -> Must:
    """Returns what each of many values has to be."""
    return Must(lambda values: set(values) <= set(names), f"names of {', '.join(names)}")


@dataclass(frozen=True)
class Running:
    """Where a run takes place and what it tells of itself: nothing that its result depends on."""

    config: Path | None = None  # file of flags; those of the command line win
    diagnostics_every: Natural = 200  # steps between measurements of staleness, push and drift; 0: none


def check(settings: Any) -> None:
    """Raises ValueError where a value is out of its bounds."""
    for name, hint in get_type_hints(type(settings), include_extras=True).items():
        value = getattr(settings, name)
        for kind in (hint, *get_args(hint)):
            for bound in getattr(kind, "__metadata__", ()):
                if isinstance(bound, Must) and value is not None and not bound.holds(value):
                    raise ValueError(f"{name} is {value!r}; it must be {bound.words}")


def identity(settings: Any) -> dict[str, Any]:
    """Returns what a resumed run must share with the interrupted one, by name: all but how it is run."""
    (running,) = (base for base in type(settings).__bases__ if issubclass(base, Running))
    names = [field.name for field in fields(settings) if field.name not in running.__dataclass_fields__]
    return {name: getattr(settings, name) for name in names}
