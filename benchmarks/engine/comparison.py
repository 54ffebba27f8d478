"""Trains several methods after each other, with checkpoints along the way."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from benchmarks.engine import checkpoint
from benchmarks.engine.history import History
from benchmarks.engine.interruption import Interruption
from benchmarks.engine.run import Progress, Run
from benchmarks.engine.run_log import RunLog

WARM_START = "warm-start"


class Comparison:
    """The histories of the methods build up in ``histories``.

    Args:
        build: makes the run of a method.
        methods: what is compared.
        epochs: of every method, with those that are shared.
        path: file for checkpoints, which are written after every epoch.
        identity: what a resumed comparison must share with the interrupted one, by name.
        device: where training takes place.
        warmup_epochs: epochs without memory that all methods share.
        checkpoint_every: training steps between further checkpoints; 0 for none.
    """

    def __init__(
        self,
        build: Callable[[str], Run],
        methods: Sequence[str],
        epochs: int,
        path: Path,
        identity: Mapping[str, Any],
        device: torch.device,
        *,
        warmup_epochs: int = 0,
        checkpoint_every: int = 0,
    ) -> None:
        self.build, self.methods, self.epochs, self.path = build, methods, epochs, path
        self.identity, self.device = dict(identity), device
        self.warmup_epochs, self.checkpoint_every = warmup_epochs, checkpoint_every
        self.histories: dict[str, History] = {}
        self._states: dict[str, dict[str, Any]] = {}

    def resume(self) -> None:
        """Goes back to the last checkpoint, if there is one; what it does not have begins at the beginning.

        Raises:
            ValueError: it was written with other settings.
        """
        if not self.path.exists():
            return
        saved = checkpoint.load(self.path, self.device)
        checkpoint.check_same(self.identity, saved["identity"], self.path)
        self._states = saved["states"]

    def run(self, progress: Progress, folder: Path) -> None:
        """Trains whatever is not trained yet, and saves every epoch.

        Args:
            progress: see `Run.train_epoch`.
            folder: of the logs.

        Raises:
            SystemExit: SIGTERM or Ctrl-C came; the state after the current step is saved.
        """
        log, start = RunLog(folder), None
        try:
            with Interruption(second_stops=True) as interruption:
                if self.warmup_epochs:
                    warm = self.build("no-xbm")
                    self._restore(WARM_START, warm)
                    self._train(WARM_START, warm, self.warmup_epochs, progress, interruption, log)
                    start = warm.state_dict()
                for method in self.methods:
                    run = self.build(method)
                    if start is not None:
                        run.start_from(start)
                    self._restore(method, run)
                    self.histories[method] = run.history
                    self._train(method, run, self.epochs, progress, interruption, log)
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
            every, stops = self.checkpoint_every, interruption.wanted
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
