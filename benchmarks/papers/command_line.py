"""Reads settings: a flag wins over the config file, that over the preset, and that over the default."""

from __future__ import annotations

import argparse
import ast
from collections.abc import Sequence
from dataclasses import Field, fields
from pathlib import Path
from typing import Any

from benchmarks.engine.flag_values import flag_value
from benchmarks.papers.presets import preset_values
from benchmarks.papers.settings import Settings

_FIELDS = {field.name: field for field in fields(Settings)}


def build_parser(description: str | None) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        description=description,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        argument_default=argparse.SUPPRESS,
    )
    parser.add_argument("--list", action="store_true", help="print the table of experiments and stop")
    parser.add_argument("--config", type=Path, metavar="FILE", help="YAML whose keys are these flags")
    for field in _FIELDS.values():
        _add_flag(parser, field)
    return parser


def read_settings(parser: argparse.ArgumentParser, arguments: Sequence[str] | None = None) -> Settings:
    """The settings of a command line; exits with a message where they are impossible."""
    given = vars(parser.parse_args(arguments))
    try:
        return settings_from(given)
    except (ValueError, FileNotFoundError, ImportError) as error:
        parser.error(str(error))


def settings_from(given: dict[str, Any]) -> Settings:
    """Merges given flags with their config file and preset.

    Raises:
        ValueError: a key or value that does not exist.
        FileNotFoundError: there is no such config file.
    """
    config = _read_config(given["config"]) if "config" in given else {}
    named = {**config, **given}
    preset, dataset = (named.get(name, _FIELDS[name].default) for name in ("preset", "dataset"))
    values = {**preset_values(preset, dataset), **named}
    return Settings(**{name: value for name, value in values.items() if name in _FIELDS})


def _add_flag(parser: argparse.ArgumentParser, field: Field[Any]) -> None:
    flag = "--" + field.name.replace("_", "-")
    metadata = field.metadata
    if metadata["parse"] is bool:
        parser.add_argument(flag, action=argparse.BooleanOptionalAction, help=metadata["help"])
    elif metadata["parse"] is dict:
        parser.add_argument(flag, nargs="*", action=_NamedValues, metavar="NAME=VALUE", help=metadata["help"])
    else:
        parser.add_argument(
            flag,
            type=flag_value(metadata["parse"]),
            choices=metadata["choices"],
            help=_help(field),
            metavar=None if metadata["choices"] else field.name.rpartition("_")[2].upper(),
        )


def _help(field: Field[Any]) -> str:
    known = "" if field.default is None else f" (default: {field.default})"
    return field.metadata["help"].replace("%", "%%") + known


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


def _read_config(path: Path) -> dict[str, Any]:
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
    return {name: _config_value(path, name, value) for name, value in values.items()}


def _config_value(path: Path, name: str, value: Any) -> Any:
    if name not in _FIELDS:
        raise ValueError(f"{path}: there is no flag {name!r}; choose among {', '.join(_FIELDS)}")
    metadata = _FIELDS[name].metadata
    parse, choices = metadata["parse"], metadata["choices"]
    if parse in (bool, dict):
        if not isinstance(value, parse):
            wanted = "true or false" if parse is bool else "a mapping"
            raise ValueError(f"{path}: {name} is {value!r}; it must be {wanted}")
        return value
    if value is None and _FIELDS[name].default is None:
        return None
    if choices and value not in choices:
        raise ValueError(f"{path}: {name} is {value!r}; choose one of {', '.join(choices)}")
    try:
        return parse(str(value))
    except ValueError as error:
        raise ValueError(f"{path}: {name}: {error}") from error
