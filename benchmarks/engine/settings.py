"""Settings as the fields of a dataclass, each with what its flag and its key in a config file accept."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import field, fields
from pathlib import Path
from typing import Any

import torch


def setting(
    default: Any,
    explanation: str,
    parse: Any = str,
    *,
    choices: Sequence[str] | None = None,
    affects_result: bool = True,
) -> Any:
    """A field that is a flag.

    Args:
        default: its default.
        explanation: for ``--help``.
        parse: reads a flag's text. bool stands for a switch, dict for name=value pairs, and tuple for one or
            more of the choices.
        choices: what there is.
        affects_result: a resumed run must have the same.
    """
    metadata = {
        "help": explanation,
        "parse": parse,
        "choices": choices,
        "affects_result": affects_result,
    }
    if parse is dict:
        return field(default_factory=lambda: dict(default), metadata=metadata)
    return field(default=default, metadata=metadata)


def seed() -> Any:
    return setting(0, "of weights, batches and augmentation", natural)


def device() -> Any:
    found = "cuda" if torch.cuda.is_available() else "cpu"
    return setting(found, "where training takes place", affects_result=False)


def output(default: Path | None, explanation: str = "folder of all results") -> Any:
    return setting(default, explanation, Path, affects_result=False)


def resume() -> Any:
    return setting(False, "go on from the checkpoints in output", bool, affects_result=False)


def diagnostics_every() -> Any:
    explanation = "steps between entries of the logs on staleness, push, valid pairs and drift; 0: none"
    return setting(200, explanation, natural, affects_result=False)


def identity(settings: Any) -> dict[str, Any]:
    """What a resumed run must share with the interrupted one, by name."""
    names = [f.name for f in fields(settings) if f.metadata.get("affects_result", True)]
    return {name: getattr(settings, name) for name in names}


def positive(text: str) -> int:
    if not (text.isdecimal() and int(text) > 0):
        raise ValueError(f"{text} is not a whole number above 0")
    return int(text)


def natural(text: str) -> int:
    if not text.isdecimal():
        raise ValueError(f"{text} is not a whole number from 0 up")
    return int(text)


def share(text: str) -> float:
    if not 0 < float(text) <= 1:
        raise ValueError(f"{text} is not above 0 and at most 1")
    return float(text)


def probability(text: str) -> float:
    if not 0 <= float(text) < 1:
        raise ValueError(f"{text} is not from 0 up and below 1")
    return float(text)


def at_least_1(text: str) -> float:
    if not 1 <= float(text) < float("inf"):
        raise ValueError(f"{text} is not a finite number from 1 up")
    return float(text)


def not_negative(text: str) -> float:
    if not 0 <= float(text) < float("inf"):
        raise ValueError(f"{text} is not a finite number from 0 up")
    return float(text)
