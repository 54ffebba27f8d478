"""What an experiment supplies to a run."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from benchmarks.engine.checkpoint import restore, state_of
from benchmarks.engine.diagnostics import Diagnostics, Measured
from benchmarks.engine.history import Row
from benchmarks.engine.step import Step


class Evaluated(NamedTuple):
    """Accuracies of the model, and, if wished, how its embeddings lie."""

    accuracy: Row
    embeddings: Row


class Task(ABC):
    """Data, model, loss and optimizer of a run.

    Nothing in it draws random numbers that depend on what went before: weights, batches, augmentation and
    every step are seeded from the run's seed and their own position.

    Attributes:
        loss_fn: the loss.
        parts: all that has a state, by name, the loss as ``loss_fn``.
        device: where training takes place.
        steps_per_epoch: of all epochs but perhaps the last.
        rows_per_step: rows that a step stores in a memory.
        log_every: steps from one row of the log to the next.
        measured: what the diagnostics measure.
        is_timed: whether the history has the time of every step, for which a GPU waits.
        evaluates_untrained: whether there is an evaluation before the first step.
        evaluate_every: epochs from one evaluation to the next.
    """

    loss_fn: nn.Module
    parts: dict[str, Any]
    device: torch.device
    steps_per_epoch: int
    rows_per_step: int
    log_every: int
    measured: Measured
    is_timed = True
    evaluates_untrained = False
    evaluate_every = 1

    def steps_in(self, epoch: int) -> int:
        return self.steps_per_epoch

    @property
    def watched(self) -> nn.Module:
        """What the diagnostics are of: the loss, unless it holds more than one memory."""
        return self.loss_fn

    @abstractmethod
    def batches(self, epoch: int, first: int) -> Iterable[Any]:
        """Returns the batches of an epoch from a step on."""

    @abstractmethod
    def train_step(self, batch: Any, step: Step, diagnostics: Diagnostics) -> dict[str, Any]:
        """Takes a step; returns the numbers of the log, with the loss, computed in ``diagnostics.watch``."""

    def evaluates_after(self, epochs: int) -> bool:
        """Returns whether there is an evaluation after so many epochs."""
        return epochs % self.evaluate_every == 0

    def end_epoch(self) -> None:  # noqa: B027
        """Called after the last step of an epoch."""

    @abstractmethod
    def evaluate(self, logged: list[Row]) -> Evaluated:
        """Measures the model, given the epoch's rows of the log."""

    @abstractmethod
    def embed_probe(self) -> Tensor:
        """Returns (n, d) of always the same images, in evaluation mode."""

    @abstractmethod
    def embed_steps(self, steps: list[int]) -> Tensor:
        """Embeds what earlier steps stored, the same images and batches, by the model as it is.

        The model and the random numbers stay as they are; see `embed_without_trace`.
        """

    def state_dict(self) -> dict[str, Any]:
        return {name: state_of(part) for name, part in self.parts.items()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        for name, part in self.parts.items():
            restore(part, state[name])
