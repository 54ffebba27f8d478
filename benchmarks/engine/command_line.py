"""Reads settings: a flag wins over the config file, that over the preset, and that over the default."""

from __future__ import annotations

import argparse
import ast
from collections.abc import Callable, Sequence
from dataclasses import Field, fields
from pathlib import Path
from typing import Any, TypeVar

S = TypeVar("S")
Given = dict[str, Any]


def build_parser(description: str | None, settings: type[Any]) -> argparse.ArgumentParser:
    """A flag for every field of a dataclass that was made by `setting`."""
    parser = argparse.ArgumentParser(
        description=description,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        argument_default=argparse.SUPPRESS,
    )
    parser.add_argument("--config", type=Path, metavar="FILE", help="YAML whose keys are these flags")
    for field in _flags(settings).values():
        _add_flag(parser, field)
    return parser


def settings_from(
    settings: type[S],
    parser: argparse.ArgumentParser,
    arguments: Sequence[str] | None = None,
    preset: Callable[[Given], Given] = lambda named: {},
) -> S:
    """The settings of a command line.

    Args:
        settings: the dataclass.
        parser: of its flags.
        arguments: the command line; None for the program's.
        preset: what goes before the defaults, by what is given.

    Raises:
        ValueError: a key or value that does not exist.
        FileNotFoundError: there is no such config file.
    """
    given = vars(parser.parse_args(arguments))
    known = _flags(settings)
    config = _read_config(given["config"], known) if "config" in given else {}
    named = {name: value for name, value in {**config, **given}.items() if name in known}
    many = {name: tuple(value) for name, value in named.items() if known[name].metadata["parse"] is tuple}
    return settings(**{**preset(named), **named, **many})


def _flags(settings: type[Any]) -> dict[str, Field[Any]]:
    return {field.name: field for field in fields(settings) if field.metadata}


def _add_flag(parser: argparse.ArgumentParser, field: Field[Any]) -> None:
    flag = "--" + field.name.replace("_", "-")
    metadata = field.metadata
    if metadata["parse"] is bool:
        parser.add_argument(flag, action=argparse.BooleanOptionalAction, help=metadata["help"])
    elif metadata["parse"] is dict:
        parser.add_argument(flag, nargs="*", action=_NamedValues, metavar="NAME=VALUE", help=metadata["help"])
    elif metadata["parse"] is tuple:
        parser.add_argument(flag, nargs="+", choices=metadata["choices"], help=_help(field))
    else:
        parser.add_argument(
            flag,
            type=_shown(metadata["parse"]),
            choices=metadata["choices"],
            help=_help(field),
            metavar=None if metadata["choices"] else field.name.rpartition("_")[2].upper(),
        )


def _shown(parse: Callable[[str], Any]) -> Callable[[str], Any]:
    """A type for argparse, which shows the message of another error than a `ValueError` alone."""

    def read(text: str) -> Any:
        try:
            return parse(text)
        except ValueError as error:
            raise argparse.ArgumentTypeError(str(error)) from error

    return read


def _help(field: Field[Any]) -> str:
    default = " ".join(field.default) if isinstance(field.default, tuple) else field.default
    known = "" if default is None else f" (default: {default})"
    return str(field.metadata["help"]).replace("%", "%%") + known


class _NamedValues(argparse.Action):
    """Collects name=value pairs; values are Python literals, anything else is text."""

    def __call__(self, parser: Any, namespace: Any, values: Any, option_string: Any = None) -> None:
        pairs = {}
        for text in values:
            name, equals, value = text.partition("=")
            if not (name and equals):
                parser.error(f"argument {option_string}: {text!r} is not of the form name=value")
            pairs[name] = _literal(value)
        setattr(namespace, self.dest, pairs)


def _literal(text: str) -> Any:
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return text


def _read_config(path: Path, known: dict[str, Field[Any]]) -> Given:
    try:
        import yaml
    except ImportError as error:
        raise ImportError(
            f'--config is read by PyYAML ({error}); install it with: pip install "pml_xbn[examples]"'
        ) from error
    if not path.is_file():
        raise FileNotFoundError(f"there is no config file {path}")
    try:
        content = yaml.safe_load(path.read_text()) or {}
    except yaml.YAMLError as error:
        raise ValueError(f"{path} is not YAML: {error}") from error
    if not isinstance(content, dict):
        raise ValueError(f"{path} holds a {type(content).__name__}; it must map flags to values")
    values = {str(key).replace("-", "_"): value for key, value in content.items()}
    return {name: _config_value(path, name, value, known) for name, value in values.items()}


def _config_value(path: Path, name: str, value: Any, known: dict[str, Field[Any]]) -> Any:
    if name not in known:
        raise ValueError(f"{path}: there is no flag {name!r}; choose among {', '.join(known)}")
    metadata = known[name].metadata
    parse, choices = metadata["parse"], metadata["choices"]
    if parse in (bool, dict):
        if not isinstance(value, parse):
            wanted = "true or false" if parse is bool else "a mapping"
            raise ValueError(f"{path}: {name} is {value!r}; it must be {wanted}")
        return value
    if value is None and known[name].default is None:
        return None
    values = value if parse is tuple and isinstance(value, list) else [value]
    if choices and not set(values) <= set(choices):
        raise ValueError(f"{path}: {name} is {value!r}; choose one of {', '.join(choices)}")
    try:
        return values if parse is tuple else parse(str(value))
    except ValueError as error:
        raise ValueError(f"{path}: {name}: {error}") from error
