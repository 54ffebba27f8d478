"""A run that is saved as it trains, and that goes on from there, whatever stopped it."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.engine import checkpoint
from benchmarks.engine.ranks import Ranks
from benchmarks.engine.run import Progress, Run, quietly


@dataclass
class SavedRun:
    """A run, and the file of its last state, from which it goes on if there is one of the same run.

    Attributes:
        run: what is trained.
        path: of the file.
        identity: what a run that goes on must share with the one that was stopped, by name.
        every: steps from one checkpoint to the next within an epoch; 0 for none.
        pause: seconds that are at least between the checkpoints after epochs.
        ranks: those that train together, of which the first one writes.
    """

    run: Run
    path: Path
    identity: dict[str, Any]
    every: int = 0
    pause: float = -1
    ranks: Ranks | None = None

    def __post_init__(self) -> None:
        self._began, self._saved_at = time.process_time(), time.monotonic()
        if self.path.exists():
            saved = checkpoint.load(self.path)
            checkpoint.check_same(self.identity, saved.get("identity", {}), self.path)
            self.run.load_state_dict(saved["run"])
            self._began -= saved.get("cpu_seconds", 0.0)  # which older files lack

    @property
    def cpu_seconds(self) -> float:
        """What the processes that train it have taken so far."""
        return time.process_time() - self._began

    def train(
        self,
        epochs: int,
        progress: Progress = quietly,
        stop: Callable[[], bool] = lambda: False,
        after_epoch: Callable[[], None] = lambda: None,
    ) -> bool:
        """Trains to the end of so many epochs; returns False when ``stop``, asked at every step, said so."""
        run = self.run

        def after_step() -> bool:
            stops = stop()
            if stops or (self.every and run.step % self.every == 0):
                self._save()
            return stops

        while run.epoch < epochs:
            if not run.train_epoch(progress, after_step):
                return False
            after_epoch()
            if time.monotonic() - self._saved_at > self.pause:
                self._save()
            if run.epoch < epochs and stop():
                return False
        return True

    def _save(self) -> None:
        if self.ranks is None or self.ranks.is_first:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            state = {"run": self.run.state_dict(), "cpu_seconds": self.cpu_seconds}
            checkpoint.save({"identity": self.identity, **state}, self.path)
        if self.ranks is not None:
            self.ranks.wait()
        self._saved_at = time.monotonic()
