"""A run with its folder: checkpoints, the selected epoch, logs, the picture and the result."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from benchmarks.engine import checkpoint
from benchmarks.engine.figures import draw_curves
from benchmarks.engine.history import History, Row
from benchmarks.engine.run import Progress, Run
from benchmarks.engine.run_log import RunLog
from benchmarks.engine.settings import identity as settings_of
from benchmarks.papers.evaluation import result_row
from benchmarks.papers.model import weights_name
from benchmarks.papers.settings import Settings
from benchmarks.papers.task import PapersTask

# The largest of them selects the epoch; of equal ones the first.
_SELECTED_BY = {"best-recall": "recall_at_1", "best-map": "map_at_r", "last": "epoch"}
_PANELS = {"recall_at_1": ("Test accuracy", "Recall@1 (%)"), "loss": ("Loss", "mean over the epoch")}
_REMEDY = "resume with the flags of the first run, or start anew in another --output"


def draw(histories: Mapping[str, History], settings: Settings, path: Path) -> None:
    """Draws Recall@1 and the loss over epochs."""
    draw_curves(histories, _PANELS, path, settings.warmup_epochs, "new layers\nalone")


class Session:
    """Trains a task to its end, whatever interrupts it.

    The folder holds ``last.pt``, the state after the last epoch or at the interruption; ``selected.pt``, the
    model of the epoch that ``select`` names; ``logs``; ``curves.png``; and in the end ``result.json``.
    """

    def __init__(self, task: PapersTask, folder: Path) -> None:
        self.task, self.run, self.folder, self.ranks = task, Run(task), folder, task.ranks
        self._last, self._selected = folder / "last.pt", folder / "selected.pt"
        self.selected: Row = {}
        if not self._last.exists():
            return
        if not task.settings.resume:
            raise ValueError(
                f"{folder} holds a run; pass --resume to go on with it, or another --output for a new one"
            )
        state = checkpoint.load(self._last)
        checkpoint.check_same(identity(task), state["identity"], self._last, _REMEDY)
        self.run.load_state_dict(state["run"])
        self.selected = state["selected"]

    def train(self, progress: Progress, stop: Callable[[], bool]) -> Row | None:
        """Returns the result of the selected epoch, on the first rank; None if ``stop`` ended it before."""
        run, log, method, every = self.run, None, self.task.settings.method, self.task.settings.checkpoint

        def after_step() -> bool:
            if every and run.step % every == 0:
                self._save()
            return stop()

        if self.ranks.is_first:
            self.folder.mkdir(parents=True, exist_ok=True)
            log = RunLog(self.folder / "logs")
        while run.epoch < self.task.length.epochs:
            if run.train_epoch(progress, after_step):
                self._keep_if_selected()
                if log is not None:
                    print(run.line)
            self._save()
            if log is not None:
                log.update({method: run.history})
            if run.epoch < self.task.length.epochs and stop():
                return None
        if log is not None:
            log.update({method: run.history})  # a run that is resumed after its end
            log.close()
            draw(
                {f"seed {self.task.settings.seed}": run.history},
                self.task.settings,
                self.folder / "curves.png",
            )
        return self._result()

    def _keep_if_selected(self) -> None:
        if not (self.ranks.is_first and self.task.evaluates_after(self.run.epoch)):
            return
        history, by = self.run.history, _SELECTED_BY[self.task.settings.select]
        row = history.epochs[-1]
        if not self.selected or row[by] > self.selected[by]:
            self.selected = result_row(row, history.diagnostics["embeddings"][-1])
            state = {"epoch": self.run.epoch, "model": self.task.model.state_dict()}
            checkpoint.save(state, self._selected)

    def _save(self) -> None:
        if self.ranks.is_first:
            state = {"identity": identity(self.task), "run": self.run.state_dict(), "selected": self.selected}
            checkpoint.save(state, self._last)
        self.ranks.wait()

    def _result(self) -> Row:
        result = dict(self.selected)
        if self.task.settings.nmi:
            model = checkpoint.load(self._selected)["model"]
            result.update(self.task.model_accuracy(model))
        result.pop("loss", None)
        if self.ranks.is_first:
            settings = self.task.settings
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
