"""A run with its folder: checkpoints, the best epoch, logs, the picture and the result."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import Any

from benchmarks.engine import checkpoint
from benchmarks.engine.run_log import RunLog
from benchmarks.papers.figures import draw_curves
from benchmarks.papers.model import name_of_weights
from benchmarks.papers.run import Progress, Run
from benchmarks.papers.settings import Settings

_SELECTED_BY = "recall_at_1"
_REMEDY = "resume with the flags of the first run, or start anew in another --output"


class Session:
    """Trains a run to its end, whatever interrupts it.

    The folder holds ``last.pt``, the state after the last epoch or at the interruption; ``best.pt``, the
    model of the best epoch; ``logs``; ``curves.png``; and in the end ``result.json``.

    Args:
        run: the run.
        folder: of this run alone.

    Raises:
        ValueError: the folder holds a run, and ``resume`` is not set; or one with other settings.
    """

    def __init__(self, run: Run, folder: Path) -> None:
        self.run, self.folder, self.ranks = run, folder, run.ranks
        self.best: dict[str, float] = {}
        saved = self._last if self._last.exists() else None
        if saved is None:
            return
        if not run.settings.resume:
            raise ValueError(
                f"{folder} holds a run; pass --resume to go on with it, or another --output for a new one"
            )
        state = checkpoint.load(saved, run.ranks.device)
        checkpoint.check_same(identity(run), state["identity"], saved, _REMEDY)
        run.load_state_dict(state["run"])
        self.best = state["best"]

    @property
    def _last(self) -> Path:
        return self.folder / "last.pt"

    @property
    def _best(self) -> Path:
        return self.folder / "best.pt"

    def train(self, progress: Progress, stop: Callable[[], bool]) -> dict[str, float] | None:
        """The accuracy of the best epoch, on the first rank; None if ``stop`` ended it before.

        Args:
            progress: see `Run.train_epoch`.
            stop: asked on all ranks after every step.
        """
        run, log = self.run, None
        if self.ranks.is_first:
            self.folder.mkdir(parents=True, exist_ok=True)
            log = RunLog(self.folder / "logs")
        while not run.is_done:
            complete = run.train_epoch(progress, stop)
            if complete:
                self._keep_if_best()
            self._save()
            if log is not None:
                log.update({run.settings.method: run.history})
            if not run.is_done and stop():
                return None
        if log is not None:
            log.update({run.settings.method: run.history})  # a run that is resumed after its end
            log.close()
            histories = {f"seed {run.settings.seed}": run.history}
            draw_curves(histories, run.length.warmup_epochs, self.folder / "curves.png")
        return self._result()

    def _keep_if_best(self) -> None:
        if not self.ranks.is_first:
            return
        row = self.run.history.epochs[-1]
        if not self.best or row[_SELECTED_BY] > self.best[_SELECTED_BY]:
            self.best = dict(row)
            state = {"epoch": self.run.epoch, "model": self.run.model_state()}
            checkpoint.save(state, self._best)

    def _save(self) -> None:
        if self.ranks.is_first:
            state = {"identity": identity(self.run), "run": self.run.state_dict(), "best": self.best}
            checkpoint.save(state, self._last)
        self.ranks.wait()

    def _result(self) -> dict[str, float]:
        result = dict(self.best)
        if self.run.settings.nmi:
            best = checkpoint.load(self._best, self.ranks.device)
            result.update(self.run.evaluate(best["model"], nmi=True))
        result.pop("loss", None)
        if self.ranks.is_first:
            told = {"pretrained_weights": name_of_weights(self.run.settings), **result}
            (self.folder / "result.json").write_text(json.dumps(told, indent=1) + "\n")
        return result


def identity(run: Run) -> dict[str, Any]:
    """Everything that a resumed run must share with the interrupted one."""
    ours = {
        field.name: getattr(run.settings, field.name)
        for field in fields(Settings)
        if field.metadata["affects_result"]
    }
    return {
        **ours,
        "ranks": run.ranks.world_size,
        "images per batch normalization": run.images_per_norm,
        "training images": len(run.data.train),
    }
