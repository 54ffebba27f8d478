"""Trains several methods after each other, with checkpoints along the way."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from benchmarks.engine import checkpoint
from benchmarks.engine.figures import draw_curves
from benchmarks.engine.history import History, Row
from benchmarks.engine.interruption import Interruption
from benchmarks.engine.results import table, write_results
from benchmarks.engine.run import Progress, Run, progress_bar
from benchmarks.engine.run_log import RunLog
from benchmarks.engine.saved_run import SavedRun
from benchmarks.engine.settings import identity

WARM_START = "warm-start"


class Comparison:
    """The histories of the methods build up in ``histories``, and checkpoints of all in ``folder``.

    Args:
        build: makes the run of a method.
        settings: ``methods``, ``epochs``, the folder ``output``, whether to ``resume``, and ``checkpoint``,
            the steps between checkpoints beside those of epochs; 0 for none.
        images: tells the images from others; a resumed comparison must share it and the settings.
        warmup_epochs: epochs without memory that all methods share, before the others.
    """

    def __init__(
        self, build: Callable[[str], Run], settings: Any, images: str, warmup_epochs: int = 0
    ) -> None:
        self.build, self.settings, self.warmup_epochs = build, settings, warmup_epochs
        self.identity = {**identity(settings), "images": images}
        self.folder = settings.output / "checkpoints"
        self.histories: dict[str, History] = {}
        self._resumes = False
        if settings.resume:
            self.resume()

    def resume(self) -> None:
        """Lets `run` go on from the checkpoints; what has none begins at the beginning."""
        for path in self.folder.glob("*.pt"):
            checkpoint.check_same(self.identity, checkpoint.load(path)["identity"], path)
        self._resumes = True

    def run(self, progress: Progress, logs: Path) -> None:
        """Trains whatever is not trained yet, and saves every epoch, and the step at which a signal came."""
        log, start = RunLog(logs), None
        if not self._resumes:
            shutil.rmtree(self.folder, ignore_errors=True)
        try:
            with Interruption(second_stops=True) as interruption:
                if self.warmup_epochs:
                    warm = self.build("no-xbm")
                    self._train(WARM_START, warm, self.warmup_epochs, progress, interruption, log)
                    start = warm.state_dict()
                for method in self.settings.methods:
                    run = self.build(method)
                    if start is not None:
                        run.start_from(start)
                    epochs = self.warmup_epochs + self.settings.epochs
                    self._train(method, run, epochs, progress, interruption, log)
        except KeyboardInterrupt:
            raise SystemExit("stopped; --resume goes on from the last checkpoint") from None
        log.update(self.histories)  # a run that was resumed after its end has no epoch left
        log.close()

    def _train(
        self, name: str, run: Run, epochs: int, progress: Progress, interruption: Interruption, log: RunLog
    ) -> None:
        saved = SavedRun(run, self.folder / f"{name}.pt", self.identity, self.settings.checkpoint)
        if name != WARM_START:
            self.histories[name] = run.history

        def named(batches: Iterable[Any], title: str, *counts: int) -> Iterable[Any]:
            return progress(batches, f"{name}, {title}", *counts)

        def after_epoch() -> None:
            print(f"{name}, {run.line}")
            log.update(self.histories)

        if not saved.train(epochs, named, lambda: interruption.wanted, after_epoch):
            raise KeyboardInterrupt

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
