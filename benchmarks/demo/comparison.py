"""Trains several methods from one shared warm start, with checkpoints along the way."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any, Protocol

from benchmarks.demo.training import History, Run, Task
from benchmarks.engine import checkpoint

WARM_START = "warm-start"


class Progress(Protocol):
    """Wraps an iteration, in a progress bar for example."""

    def __call__(self, steps: Iterable[int], title: str) -> Iterable[int]: ...


@dataclass(frozen=True)
class Plan:
    """What is compared and for how long.

    Attributes:
        methods: keys of `METHODS`.
        warmup_epochs: epochs without memory, shared by all methods.
        epochs: epochs of each method after that.
    """

    methods: Sequence[str]
    warmup_epochs: int
    epochs: int


class Comparison:
    """Runs a plan; the histories of the methods build up in ``histories``.

    Args:
        task: data and settings.
        plan: the methods and their epochs.
        checkpoint_path: file for checkpoints.
        checkpoint_every: training steps between checkpoints; 0 for none.
    """

    def __init__(self, task: Task, plan: Plan, checkpoint_path: Path, checkpoint_every: int = 0) -> None:
        self.task, self.plan = task, plan
        self.checkpoint_path, self.checkpoint_every = checkpoint_path, checkpoint_every
        self.histories: dict[str, History] = {}
        self._states: dict[str, dict[str, Any]] = {}

    def resume(self) -> None:
        """Goes back to the last checkpoint.

        Raises:
            FileNotFoundError: there is none.
            ValueError: it was written with other settings.
        """
        if not self.checkpoint_path.exists():
            raise FileNotFoundError(
                f"there is no checkpoint {self.checkpoint_path} to resume from; start a run that "
                "writes checkpoints first"
            )
        saved = checkpoint.load(self.checkpoint_path, self.task.device)
        checkpoint.check_same(self._identity(), saved["identity"], self.checkpoint_path)
        self._states = saved["states"]

    def run(self, progress: Progress, after_epoch: Callable[[], None]) -> None:
        """Trains whatever is not trained yet.

        Args:
            progress: wraps the iteration over the steps of an epoch, under a title.
            after_epoch: called whenever ``histories`` has grown by an epoch.
        """
        last_epoch = self.plan.warmup_epochs + self.plan.epochs
        warm = Run(self.task, "no-xbm")
        self._restore(WARM_START, warm)
        self._train(WARM_START, warm, self.plan.warmup_epochs, progress, lambda: None)
        for method in self.plan.methods:
            run = Run(self.task, method)
            run.start_from(warm)
            self._restore(method, run)
            self.histories[method] = run.history
            self._train(method, run, last_epoch, progress, after_epoch)

    def _restore(self, name: str, run: Run) -> None:
        if name in self._states:
            run.load_state_dict(self._states[name])

    def _train(
        self,
        name: str,
        run: Run,
        last_epoch: int,
        progress: Progress,
        after_epoch: Callable[[], None],
    ) -> None:
        def after_step() -> None:
            if self.checkpoint_every and len(run.history.step_times) % self.checkpoint_every == 0:
                self._save(name, run)

        while run.epoch < last_epoch:
            title = f"{name}, epoch {run.epoch + 1}"
            run.train_epoch(partial(progress, title=title), after_step)
            after_epoch()
        self._states[name] = run.state_dict()

    def _save(self, name: str, run: Run) -> None:
        self._states[name] = run.state_dict()
        state = {"identity": self._identity(), "states": self._states}
        checkpoint.save(state, self.checkpoint_path)

    def _identity(self) -> dict[str, Any]:
        return {
            **asdict(self.task.settings),
            **asdict(self.plan),
            "glyphs": self.task.checksum,
        }
