"""A CSV file that grows by a row at a time, and knows which rows it has."""

from __future__ import annotations

import csv
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.engine.results import read_csv


class Table:
    """Rows with these columns; a row is on the disk as soon as `append` returns.

    Args:
        path: of the CSV file, which need not exist.
        columns: of every row, in order.
        key: the columns that tell a row from all others.
    """

    def __init__(self, path: Path, columns: Sequence[str], key: Sequence[str]) -> None:
        self.path, self.columns, self.key = path, tuple(columns), tuple(key)
        rows = read_csv(path)
        if rows and tuple(rows[0]) != self.columns:
            raise ValueError(
                f"{path} has the columns {', '.join(rows[0])}, not {', '.join(self.columns)}: pass another "
                "folder"
            )
        self._keys = {self._key_of(row) for row in rows}

    def has(self, row: Mapping[str, Any]) -> bool:
        """Returns whether there is a row with this key; other columns are not looked at."""
        return self._key_of(row) in self._keys

    def append(self, row: Mapping[str, Any]) -> None:
        """Writes one row; numbers have six digits."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        is_new = not self.path.exists() or self.path.stat().st_size == 0
        with self.path.open("a", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, self.columns, lineterminator="\n")
            if is_new:
                writer.writeheader()
            writer.writerow({name: f"{x:.6g}" if isinstance(x, float) else x for name, x in row.items()})
            file.flush()
            os.fsync(file.fileno())
        self._keys.add(self._key_of(row))

    def _key_of(self, row: Mapping[str, Any]) -> tuple[str, ...]:
        return tuple(str(row[name]) for name in self.key)
