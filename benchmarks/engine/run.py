"""One training run, whose whole state can be saved and restored between any two steps."""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Iterable, Sequence
from itertools import islice
from statistics import fmean
from typing import Any

from tqdm import tqdm

from benchmarks.engine.diagnostics import Diagnostics
from benchmarks.engine.history import History, Row
from benchmarks.engine.measuring import now
from benchmarks.engine.step import Step
from benchmarks.engine.task import Task
from benchmarks.engine.trial import at_most

# Wraps batches, in a progress bar for example: gets a title, the steps that are done and those of all.
Progress = Callable[[Iterable[Any], str, int, int], Iterable[Any]]

_PLACE_IN_SCHEDULE = ("last_epoch", "_step_count", "_last_lr")  # what a schedule holds beside its settings


def progress_bar(batches: Iterable[Any], title: str, done: int, steps: int) -> Iterable[Any]:
    """Shows the steps in a terminal; a `Progress`."""
    return tqdm(batches, desc=title, initial=done, total=steps, unit="step")


def quietly(batches: Iterable[Any], title: str, done: int, steps: int) -> Iterable[Any]:
    """Shows nothing; a `Progress`."""
    return batches


class Run:
    """The training of one task: epochs and steps that are done, history, and the last epoch in a line."""

    def __init__(self, task: Task) -> None:
        self.task = task
        self.epoch, self.step = 0, 0
        self.history, self.line = History(), ""
        self._diagnostics = Diagnostics(task)

    def start_from(self, state: dict[str, Any], keep: Sequence[str] = ("loss_fn", "diagnostics")) -> None:
        """Takes over another run's state, but for its times and the names in ``keep`` or that it lacks.

        The learning rate goes on from where the other run left it by the schedule of this one.
        """
        ours = self.state_dict()
        # A copy, since an optimizer goes on to use the very tensors that it loads.
        taken = copy.deepcopy(state)
        if "scheduler" in taken:
            place = {name: taken["scheduler"][name] for name in _PLACE_IN_SCHEDULE}
            taken["scheduler"] = {**ours["scheduler"], **place}
        self.load_state_dict({**ours, **taken, **{name: ours[name] for name in keep}})
        self.history.step_times.clear()

    def train_epoch(
        self, progress: Progress = quietly, stop: Callable[[], bool | None] = lambda: False
    ) -> bool:
        """Trains to the end of the current epoch and evaluates; returns False when ``stop`` said so before.

        ``stop`` is asked after every step, a moment at which the state may be saved.
        """
        task, steps, first = self.task, at_most(self.task.steps_in(self.epoch)), self.step
        if task.evaluates_untrained and not (self.epoch or self.step or self.history.epochs):
            self.evaluate()
        began = time.perf_counter()
        batches = islice(task.batches(self.epoch, self.step), steps - self.step)
        for batch in progress(batches, f"epoch {self.epoch + 1}", self.step, steps):
            self._train_step(batch)
            self.step += 1
            if stop() and self.step < steps:
                return False
        task.end_epoch()
        per_second = (steps - first) * task.rows_per_step / (time.perf_counter() - began)
        self.epoch, self.step = self.epoch + 1, 0
        told = [f"loss {fmean(row['loss'] for row in self._logged()):.3f}"]
        if task.evaluates_after(self.epoch):
            self.evaluate()
            told.append(f"Recall@1 {self.history.epochs[-1].get('recall_at_1', 0):.1f} %")
        self.line = ", ".join([f"epoch {self.epoch}: {told[0]}", *told[1:], f"{per_second:.0f} images/s"])
        return True

    def _logged(self) -> list[Row]:
        """Returns the log of the last epoch."""
        first = (self.epoch - 1) * self.task.steps_per_epoch
        return [row for row in self.history.steps if row["step"] >= first]

    def evaluate(self) -> None:
        """Adds a row of accuracy, and one of how the embeddings lie, to the history."""
        accuracy, embeddings = self.task.evaluate(self._logged())
        self.history.epochs.append({"epoch": self.epoch, **accuracy})
        if embeddings:
            rows = self.history.diagnostics.setdefault("embeddings", [])
            rows.append({"epoch": self.epoch, **embeddings})

    def _train_step(self, batch: Any) -> None:
        task, history = self.task, self.history
        total = self.epoch * task.steps_per_epoch + self.step
        step = Step(self.epoch, self.step, total, self.step % task.log_every == 0)
        start = now(task.device) if task.is_timed else 0.0
        numbers = task.train_step(batch, step, self._diagnostics)
        if task.is_timed:
            history.step_times.append(now(task.device) - start)
        if step.is_logged:
            history.steps.append({"step": total, **{name: float(value) for name, value in numbers.items()}})
        self._diagnostics.update(total, history.diagnostics)

    def state_dict(self) -> dict[str, Any]:
        """Returns all that is needed to go on from here, bit for bit."""
        return {
            "epoch": self.epoch,
            "step": self.step,
            **self.task.state_dict(),
            "diagnostics": self._diagnostics.state_dict(),
            "history": vars(self.history),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.epoch, self.step = state["epoch"], state["step"]
        self.task.load_state_dict(state)
        self._diagnostics.load_state_dict(state["diagnostics"])
        self.history = History(**copy.deepcopy(state["history"]))
