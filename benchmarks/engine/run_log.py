"""Histories as TensorBoard events and as record-keeper's SQLite and CSV records."""

import shutil
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

from record_keeper import RecordKeeper, RecordWriter
from torch.utils.tensorboard import SummaryWriter

from benchmarks.engine.history import History


class RunLog:
    """Writes what histories have gained since the last call.

    It empties its folder first: a resumed run writes its whole past once more, so that a log never holds
    the steps that a killed run took after its last checkpoint.
    """

    def __init__(self, folder: Path) -> None:
        shutil.rmtree(folder, ignore_errors=True)
        self.tensorboard = SummaryWriter(str(folder / "tensorboard"))
        self.keeper = RecordKeeper(self.tensorboard, RecordWriter(str(folder / "records")))
        self._written: Counter[str] = Counter()  # rows, by group

    def update(self, histories: Mapping[str, History]) -> None:
        for method, history in histories.items():
            tables = {"training": history.steps, "accuracy": history.epochs, **history.diagnostics}
            for table, rows in tables.items():
                # SQLite takes a group as the name of a table, which may not have a hyphen.
                self._append(f"{table}_{method}".replace("-", "_"), rows)
        self.keeper.save_records()
        self.tensorboard.flush()

    def close(self) -> None:
        self.tensorboard.close()

    def _append(self, group: str, rows: list[dict[str, float]]) -> None:
        for row in rows[self._written[group] :]:
            index = "step" if "step" in row else "epoch"
            series = {name: value for name, value in row.items() if name != index}
            self.keeper.update_records(series, int(row[index]), parent_name=group)
        self._written[group] = len(rows)
