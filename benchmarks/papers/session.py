"""A run with its folder: checkpoints, the selected epoch, logs, the picture and the result."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from operator import itemgetter
from pathlib import Path
from typing import Any

from benchmarks.engine import checkpoint
from benchmarks.engine.figures import draw_curves
from benchmarks.engine.history import History, Row
from benchmarks.engine.run import Progress, Run
from benchmarks.engine.run_log import RunLog
from benchmarks.engine.saved_run import SavedRun
from benchmarks.engine.settings import identity as settings_of
from benchmarks.papers.evaluation import result_row
from benchmarks.papers.model import weights_name
from benchmarks.papers.settings import Settings
from benchmarks.papers.task import PapersTask

# The largest of them selects the epoch; of equal ones the first.
_SELECTED_BY = {"best-recall": "recall_at_1", "best-map": "map_at_r", "last": "epoch"}
_PANELS = {"recall_at_1": ("Test accuracy", "Recall@1 (%)"), "loss": ("Loss", "mean over the epoch")}


def draw(histories: Mapping[str, History], settings: Settings, path: Path) -> None:
    """Draws Recall@1 and the loss over epochs."""
    draw_curves(histories, _PANELS, path, settings.warmup_epochs, "new layers\nalone")


class Session:
    """Trains a task to its end, whatever interrupts it.

    The folder holds ``last.pt``, the state after the last epoch or at the interruption; ``selected.pt``, the
    model of the epoch that ``select`` names; ``logs``; ``curves.png``; and in the end ``result.json``.
    """

    def __init__(self, task: PapersTask, folder: Path) -> None:
        settings = task.settings
        self.task, self.run, self.folder, self.ranks = task, Run(task), folder, task.ranks
        self._selected = folder / "selected.pt"
        path, every = folder / "last.pt", settings.checkpoint
        if path.exists() and not settings.resume:
            raise ValueError(
                f"{folder} holds a run; pass --resume to go on with it, or another --output for a new one"
            )
        self._saved = SavedRun(self.run, path, identity(task), every, ranks=task.ranks)

    def train(self, progress: Progress, stop: Callable[[], bool]) -> Row | None:
        """Returns the result of the selected epoch, on the first rank; None if ``stop`` ended it before."""
        run, settings, epochs = self.run, self.task.settings, self.task.length.epochs
        log = RunLog(self.folder / "logs") if self.ranks.is_first else None

        def after_epoch() -> None:
            if log is not None:
                self._keep_if_selected()
                print(run.line)
                log.update({settings.method: run.history})

        if not self._saved.train(epochs, progress, stop, after_epoch):
            return None
        if log is not None:
            log.update({settings.method: run.history})  # a run that is resumed after its end
            log.close()
            draw({f"seed {settings.seed}": run.history}, settings, self.folder / "curves.png")
        return self._result()

    @property
    def selected(self) -> Row:
        """The row of the epoch that ``select`` names among those so far."""
        return max(self.run.history.epochs, key=itemgetter(_SELECTED_BY[self.task.settings.select]))

    def _keep_if_selected(self) -> None:
        epoch = self.run.epoch
        if self.task.evaluates_after(epoch) and self.selected["epoch"] == epoch:
            checkpoint.save({"epoch": epoch, "model": self.task.model.state_dict()}, self._selected)

    def _result(self) -> Row:
        settings, result = self.task.settings, Row()
        if self.ranks.is_first:
            embeddings = self.run.history.diagnostics["embeddings"]
            (lie,) = (row for row in embeddings if row["epoch"] == self.selected["epoch"])
            result = result_row(self.selected, lie)
            result.pop("loss", None)
        if settings.nmi:
            model = checkpoint.load(self._selected)["model"]
            result.update(self.task.model_accuracy(model))
        if self.ranks.is_first:
            run_settings = {"pretrained_weights": weights_name(settings), "select": settings.select, **result}
            (self.folder / "result.json").write_text(json.dumps(run_settings, indent=1) + "\n")
        return result


def identity(task: PapersTask) -> dict[str, Any]:
    """Returns everything that a resumed run must share with the interrupted one."""
    return {
        **settings_of(task.settings),
        "ranks": task.ranks.world_size,
        "images per batch normalization": task.images_per_norm,
        "training images": len(task.data.train),
    }
