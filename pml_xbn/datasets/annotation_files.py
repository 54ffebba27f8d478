"""Reads the tables that datasets come with, and says which line of which file is broken."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

Columns = Mapping[str, Callable[[str], Any]]


def read_rows(
    path: Path,
    columns: Columns,
    *,
    header_line: int = 0,
    separator: str | None = None,
) -> list[tuple[Any, ...]]:
    """Reads a table in a text file, one tuple a line.

    Args:
        path: the file.
        columns: name of every column and what turns its text into a value; a ``ValueError`` of that
            means that the line is broken.
        header_line: number of the line that names the columns; the table starts after it. 0 for none.
        separator: between columns; white space if None.

    Raises:
        ValueError: the header is another one, a line has more or fewer columns or a value that is none,
            or there are no lines.

    Example:
        >>> from tempfile import TemporaryDirectory
        >>> with TemporaryDirectory() as folder:
        ...     path = Path(folder, "list.txt")
        ...     _ = path.write_text("label image\\n7 a.jpg")
        ...     read_rows(path, {"label": int, "image": str}, header_line=1)
        [(7, 'a.jpg')]
    """
    lines = read_lines(path)
    if len(lines) <= header_line:
        raise ValueError(f"{path} lists nothing; unpack the dataset again")
    if header_line and lines[header_line - 1].split(separator) != list(columns):
        header = (separator or " ").join(columns)
        raise ValueError(f"{path}, line {header_line}: expected {header!r}, got {lines[header_line - 1]!r}")
    rows = []
    for number, line in enumerate(lines[header_line:], header_line + 1):
        texts = line.split(separator)
        try:
            if len(texts) != len(columns):
                raise ValueError(f"{len(texts)} columns")
            rows.append(tuple(convert(text) for convert, text in zip(columns.values(), texts, strict=True)))
        except ValueError as error:
            layout = (separator or " ").join(f"<{name}>" for name in columns)
            raise ValueError(f"{path}, line {number}: expected {layout!r}, got {line!r} ({error})") from error
    return rows


def read_lines(path: Path) -> list[str]:
    """Returns the lines of a UTF-8 text file, without empty ones at its end.

    Raises:
        ValueError: the file is no text.
    """
    try:
        text = path.read_text(encoding="utf-8").rstrip()
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} is no text file ({error}); unpack the dataset again") from error
    # splitlines() would end a line at a form feed too, where PML's readers and editors do not.
    return text.split("\n") if text else []


def relative_path(text: str) -> str:
    """Returns a column that is the path of a file, relative to a folder and not out of it.

    The path is judged by what is written. A file or folder on the way may be a link to somewhere else, as
    people link to images on another disk.

    Example:
        >>> relative_path("sofa_final/7_0.JPG")
        'sofa_final/7_0.JPG'
    """
    path = Path(text)
    if path.anchor or not path.parts or ".." in path.parts or "\0" in text:
        raise ValueError(f"{text!r} is no path below the folder of the images")
    return text


def one_of(*choices: str) -> Callable[[str], str]:
    """Returns a column that holds one of a few words.

    Example:
        >>> one_of("query", "gallery")("query")
        'query'
    """

    def check(text: str) -> str:
        if text not in choices:
            raise ValueError(f"{text!r} is not one of {', '.join(map(repr, choices))}")
        return text

    return check


def number_up_to(last: int) -> Callable[[str], int]:
    """Returns a column that counts from 1.

    Example:
        >>> number_up_to(12)("12")
        12
    """

    def check(text: str) -> int:
        if not 1 <= int(text) <= last:
            raise ValueError(f"{text} is not from 1 to {last}")
        return int(text)

    return check
