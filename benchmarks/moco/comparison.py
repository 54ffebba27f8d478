"""Trains several methods from the same initial weights, with a checkpoint after every epoch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import torch

from benchmarks.engine import checkpoint
from benchmarks.moco.data import MoCoData
from benchmarks.moco.settings import Settings
from benchmarks.moco.training import History, Pairs, Run


class Progress(Protocol):
    """Wraps an iteration over so many steps, in a progress bar for example."""

    def __call__(self, pairs: Pairs, title: str, steps: int) -> Pairs: ...


class Comparison:
    """The histories of the methods build up in ``histories``.

    Args:
        settings: what results depend on, but for the method.
        data: the data set that they name.
        methods: keys of `METHODS`.
        device: where training takes place.
        path: file for checkpoints.
    """

    def __init__(
        self, settings: Settings, data: MoCoData, methods: Sequence[str], device: torch.device, path: Path
    ) -> None:
        self.settings, self.data, self.methods = settings, data, methods
        self.device, self.path = device, path
        self.histories: dict[str, History] = {}
        self._states: dict[str, dict[str, Any]] = {}

    def resume(self) -> None:
        """Goes back to the last checkpoint; methods that it does not have begin at the beginning.

        Raises:
            FileNotFoundError: there is none.
            ValueError: it was written with other settings.
        """
        if not self.path.exists():
            raise FileNotFoundError(
                f"there is no checkpoint {self.path} to resume from; leave out --resume to start a run"
            )
        saved = checkpoint.load(self.path, self.device)
        checkpoint.check_same(self._identity(), saved["identity"], self.path)
        self._states = saved["states"]

    def run(self, progress: Progress, after_epoch: Callable[[], None]) -> None:
        """Trains whatever is not trained yet.

        Args:
            progress: wraps the iteration over the steps of an epoch, under a title.
            after_epoch: called whenever ``histories`` has grown by an epoch, which is then saved.
        """
        for method in self.methods:
            run = Run(self.settings, self.data, method, self.device)
            if method in self._states:
                run.load_state_dict(self._states[method])
            else:
                run.evaluate()
            self.histories[method] = run.history
            while run.epoch < self.settings.epochs:
                title = f"{method}, epoch {run.epoch + 1}"
                run.train_epoch(partial(progress, title=title, steps=run.steps_per_epoch))
                self._states[method] = run.state_dict()
                checkpoint.save({"identity": self._identity(), "states": self._states}, self.path)
                after_epoch()

    def _identity(self) -> dict[str, Any]:
        return {**asdict(self.settings), "images": self.data.identity}
