"""Trains several methods after each other, with checkpoints along the way."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from benchmarks.engine import checkpoint
from benchmarks.engine.figures import draw_curves
from benchmarks.engine.history import History, Row
from benchmarks.engine.interruption import Interruption
from benchmarks.engine.results import table, write_results
from benchmarks.engine.run import Progress, Run, progress_bar
from benchmarks.engine.run_log import RunLog
from benchmarks.engine.settings import identity

WARM_START = "warm-start"


class Comparison:
    """The histories of the methods build up in ``histories``.

    Args:
        build: makes the run of a method.
        settings: ``methods``, ``epochs``, ``device``, the folder ``output``, and ``checkpoint``, the steps
            between checkpoints beside those of epochs; 0 for none.
        images: tells the images from others; a resumed comparison must share it and the settings.
        warmup_epochs: epochs without memory that all methods share, before the others.
    """

    def __init__(
        self, build: Callable[[str], Run], settings: Any, images: str, warmup_epochs: int = 0
    ) -> None:
        self.build, self.settings, self.warmup_epochs = build, settings, warmup_epochs
        self.identity = {**identity(settings), "images": images}
        self.path = settings.output / "checkpoint.pt"
        self.histories: dict[str, History] = {}
        self._states: dict[str, dict[str, Any]] = {}

    def resume(self) -> None:
        """Goes back to the last checkpoint, if there is one; what it lacks begins at the beginning."""
        if not self.path.exists():
            return
        saved = checkpoint.load(self.path)
        checkpoint.check_same(self.identity, saved["identity"], self.path)
        self._states = saved["states"]

    def run(self, progress: Progress, folder: Path) -> None:
        """Trains whatever is not trained yet, and saves every epoch, and the step at which a signal came."""
        log, start = RunLog(folder), None
        try:
            with Interruption(second_stops=True) as interruption:
                if self.warmup_epochs:
                    warm = self.build("no-xbm")
                    self._restore(WARM_START, warm)
                    self._train(WARM_START, warm, self.warmup_epochs, progress, interruption, log)
                    start = warm.state_dict()
                for method in self.settings.methods:
                    run = self.build(method)
                    if start is not None:
                        run.start_from(start)
                    self._restore(method, run)
                    self.histories[method] = run.history
                    epochs = self.warmup_epochs + self.settings.epochs
                    self._train(method, run, epochs, progress, interruption, log)
        except KeyboardInterrupt:
            raise SystemExit("stopped; --resume goes on from the last checkpoint") from None
        log.update(self.histories)  # a run that was resumed after its end has no epoch left
        log.close()

    def _restore(self, name: str, run: Run) -> None:
        if name in self._states:
            run.load_state_dict(self._states[name])

    def _train(
        self, name: str, run: Run, epochs: int, progress: Progress, interruption: Interruption, log: RunLog
    ) -> None:
        def save() -> None:
            self._states[name] = run.state_dict()
            checkpoint.save({"identity": self.identity, "states": self._states}, self.path)

        def after_step() -> bool:
            every, stops = self.settings.checkpoint, interruption.wanted
            if stops or (every and len(run.history.step_times) % every == 0):
                save()
            return stops

        while run.epoch < epochs:
            if not run.train_epoch(
                lambda b, title, *counts: progress(b, f"{name}, {title}", *counts), after_step
            ):
                raise KeyboardInterrupt
            print(f"{name}, {run.line}")
            save()
            log.update(self.histories)

    def report(
        self,
        columns: Mapping[str, str],
        summary: Callable[[History], Row],
        panels: Mapping[str, tuple[str, str]],
        picture: str,
    ) -> str:
        """Trains, writes CSV files, picture and logs to the output folder, and returns the table."""
        start, output, warmup = time.perf_counter(), self.settings.output, self.warmup_epochs
        self.run(progress_bar, output / "logs")
        results = {method: summary(history) for method, history in self.histories.items()}
        write_results(self.histories, results, output)
        draw_curves(self.histories, panels, output / picture, warmup, "shared start,\nno memory")
        taken = time.perf_counter() - start
        return f"{table(results, columns)}\n{taken:.0f} s; picture, CSV files and logs are in {output}"
