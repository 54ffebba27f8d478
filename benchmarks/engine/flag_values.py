"""What flags accept; a wrong value is named."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import TypeVar

Value = TypeVar("Value")


def positive(text: str) -> int:
    if not (text.isdecimal() and int(text) > 0):
        raise ValueError(f"{text} is not a whole number above 0")
    return int(text)


def natural(text: str) -> int:
    if not text.isdecimal():
        raise ValueError(f"{text} is not a whole number from 0 up")
    return int(text)


def flag_value(parse: Callable[[str], Value]) -> Callable[[str], Value]:
    """A type for argparse, which shows the message of another error than a `ValueError` alone."""

    def read(text: str) -> Value:
        try:
            return parse(text)
        except ValueError as error:
            raise argparse.ArgumentTypeError(str(error)) from error

    return read
