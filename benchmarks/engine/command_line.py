"""Reads settings: a flag wins over the config file, that over the preset, and that over the default."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import fields, make_dataclass
from pathlib import Path
from typing import Any, TypeVar

import torch
import tyro

S = TypeVar("S")
Given = dict[str, str]


def read(
    settings: type[S],
    description: str | None = None,
    arguments: Sequence[str] | None = None,
    preset: Callable[[Given], list[str]] = lambda given: [],
) -> tuple[S, Given]:
    """Returns the settings of a command line, and what it names.

    Args:
        settings: a dataclass. Its bases are the groups of the flags; its own fields have none.
        description: for ``--help``.
        arguments: the command line; None for the program's.
        preset: flags that go before the defaults, by what is named.
    """
    words = sys.argv[1:] if arguments is None else list(arguments)
    if config := _named(words).get("config"):
        if not Path(config).is_file():
            raise FileNotFoundError(f"there is no config file {config}")
        words = [*shlex.split(Path(config).read_text(encoding="utf-8"), comments=True), *words]
    named = _named(words)
    parsed: Any = tyro.cli(
        make_dataclass("Settings", [(group.__name__, group) for group in settings.__bases__], frozen=True),
        prog=f"python -m {settings.__module__.rpartition('.')[0]}",
        description=description,
        args=[*preset(named), *words],
        config=(tyro.conf.OmitArgPrefixes,),
    )
    for group in vars(parsed).values():
        if hasattr(group, "device"):
            existing_device(group.device)
    groups = [getattr(parsed, group.__name__) for group in settings.__bases__]
    return settings(**{f.name: getattr(group, f.name) for group in groups for f in fields(group)}), named


def _named(words: Sequence[str]) -> Given:
    """Returns the fields that a command line names, each with the word that follows its flag."""
    named = {}
    for word, following in zip(words, [*words, ""][1:], strict=True):
        if word.startswith("--"):
            flag, _, value = word.partition("=")
            named[flag.removeprefix("--").removeprefix("no-").replace("-", "_")] = value or following
    return named


def existing_device(name: str) -> torch.device:
    """Returns the device, or raises ValueError where torch cannot use it."""
    try:
        device = torch.device(name)
        torch.empty(0, device=device)
    except (AssertionError, RuntimeError) as error:  # torch says no, or that it was built without it
        reason = str(error).splitlines()[0]
        raise ValueError(f"--device {name} cannot be used here ({reason}): pass --device cpu") from error
    return device


@contextmanager
def errors_in_one_line() -> Iterator[None]:
    """Ends the program with a line, without a traceback, for what a user can mend.

    It ends without a word where the reader of its output has left, as ``head`` does.
    """
    try:
        try:
            yield
        finally:
            sys.stdout.flush()  # here, and not when Python ends, which would say that it failed
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # what is left to be written
        raise SystemExit(1) from None
    except (ValueError, OSError, ImportError) as error:
        # An error of a process that loads images has its traceback in its text.
        raise SystemExit(f"error: {str(error).strip().splitlines()[-1]}") from error
