"""Histories as TensorBoard events and as record-keeper's SQLite and CSV records."""

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Protocol

from record_keeper import RecordKeeper, RecordWriter
from torch.utils.tensorboard import SummaryWriter


class History(Protocol):
    """Rows of numbers; those of ``steps`` have a column step, those of ``epochs`` a column epoch."""

    steps: list[dict[str, float]]
    epochs: list[dict[str, float]]


class RunLog:
    """Writes what histories have gained since the last call.

    It always starts anew: a resumed run writes its whole past once more, so that a log never holds
    the steps that a killed run took after its last checkpoint.

    Args:
        folder: emptied first; gets the sub-folders ``tensorboard`` and ``records``.
    """

    def __init__(self, folder: Path) -> None:
        shutil.rmtree(folder, ignore_errors=True)
        self.tensorboard = SummaryWriter(str(folder / "tensorboard"))
        self.keeper = RecordKeeper(self.tensorboard, RecordWriter(str(folder / "records")))
        self._written: dict[str, tuple[int, int]] = {}

    def update(self, histories: Mapping[str, History]) -> None:
        for method, history in histories.items():
            steps, epochs = self._written.get(method, (0, 0))
            # SQLite takes a group as the name of a table, which may not have a hyphen.
            name = method.replace("-", "_")
            self._append(f"training_{name}", "step", history.steps[steps:])
            self._append(f"accuracy_{name}", "epoch", history.epochs[epochs:])
            self._written[method] = len(history.steps), len(history.epochs)
        self.keeper.save_records()
        self.tensorboard.flush()

    def close(self) -> None:
        self.tensorboard.close()

    def _append(self, group: str, index: str, rows: list[dict[str, float]]) -> None:
        for row in rows:
            series = {name: value for name, value in row.items() if name != index}
            self.keeper.update_records(series, int(row[index]), parent_name=group)
