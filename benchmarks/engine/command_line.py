"""Reads settings: a flag wins over the config file, that over the preset, and that over the default."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import fields, make_dataclass
from pathlib import Path
from typing import Any, TypeVar

import tyro
import yaml

S = TypeVar("S")
Given = dict[str, str]


def read(
    settings: type[S],
    description: str | None = None,
    arguments: Sequence[str] | None = None,
    preset: Callable[[Given], dict[str, Any]] = lambda given: {},
) -> tuple[S, Given]:
    """The settings of a command line, and what it names.

    Args:
        settings: a dataclass. Its bases are the groups of the flags; its own fields have none.
        description: for ``--help``.
        arguments: the command line; None for the program's.
        preset: what goes before the defaults, by what is named.

    Raises:
        ValueError: a value or a config file is impossible.
        FileNotFoundError: there is no such config file.
        SystemExit: there is no such flag, or a word is no value of its kind.
    """
    words = sys.argv[1:] if arguments is None else list(arguments)
    if config := _named(words).get("config"):
        words = [*_words_of(Path(config)), *words]
    named = _named(words)
    values = preset(named)
    groups = [
        (group.__name__, group, group(**{f.name: values[f.name] for f in fields(group) if f.name in values}))
        for group in settings.__bases__
    ]
    parsed: Any = tyro.cli(
        make_dataclass("Settings", groups, frozen=True),
        prog=f"python -m {settings.__module__.rpartition('.')[0]}",
        description=description,
        args=words,
        config=(tyro.conf.OmitArgPrefixes,),
    )
    found = {
        f.name: getattr(getattr(parsed, name), f.name) for name, group, _ in groups for f in fields(group)
    }
    return settings(**found), named


def _named(words: Sequence[str]) -> Given:
    """The fields that a command line names, each with the word that follows its flag."""
    named = {}
    for word, following in zip(words, [*words, ""][1:], strict=True):
        if word.startswith("--"):
            flag, _, value = word.partition("=")
            named[flag.removeprefix("--").removeprefix("no-").replace("-", "_")] = value or following
    return named


def _words_of(config: Path) -> list[str]:
    """A config file as a command line."""
    if not config.is_file():
        raise FileNotFoundError(f"there is no config file {config}")
    try:
        content = yaml.safe_load(config.read_text()) or {}
    except yaml.YAMLError as error:
        raise ValueError(f"{config} is not YAML: {error}") from error
    if not isinstance(content, dict):
        raise ValueError(f"{config} holds a {type(content).__name__}; it must map flags to values")
    words = []
    for key, value in content.items():
        flag = str(key).replace("_", "-")
        words.append(f"--no-{flag}" if value is False else f"--{flag}")
        if isinstance(value, dict):
            words += [f"{name}={one!r}" for name, one in value.items()]
        elif not isinstance(value, bool):
            words += map(str, value if isinstance(value, list) else [value])
    return words


@contextmanager
def errors_in_one_line() -> Iterator[None]:
    """What a user can mend ends the program with a line, and without a traceback."""
    try:
        yield
    except (ValueError, OSError, ImportError) as error:
        # An error of a process that loads images has its traceback in its text.
        raise SystemExit(f"error: {str(error).strip().splitlines()[-1]}") from error
