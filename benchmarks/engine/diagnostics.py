"""What a memory does to a run, measured every so many steps without leaving a trace in the run."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import torch
from pytorch_metric_learning.losses import CrossBatchMemory
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.functional import normalize

from benchmarks.engine.history import Row, Tables
from benchmarks.engine.step import Step
from pml_xbn.diagnostics import (
    AdaptedStaleness,
    FeatureDrift,
    RowTracker,
    WatchedLoss,
    class_separability,
    embedding_distances,
    scalars,
    staleness,
    superclass_neighbours,
)

_STALE_STEPS = 8  # of those whose rows are in memory
_DISTANCES_OF = 4096  # images; the number of distances is the square of it


@dataclass(frozen=True)
class Measured:
    """What is measured, and when.

    Attributes:
        every: steps from one measurement to the next; 0 for none.
        anew_each_epoch: counts these steps from the beginning of each epoch.
        drift_over: numbers of steps Δk; by default those of Cross-Batch Memory, Fig. 3, but for its 1,000,
            and of the AXBN paper, Fig. 3.
        whole_batches: staleness is of batches that are still whole in memory.
    """

    every: int
    anew_each_epoch: bool = False
    drift_over: tuple[int, ...] = (1, 10, 100)
    whole_batches: bool = False


class MeasuredTask(Protocol):
    """What the diagnostics need to know of a task; `Task` says what each member is."""

    measured: Measured
    rows_per_step: int

    @property
    def watched(self) -> nn.Module: ...

    def embed_probe(self) -> Tensor: ...

    def embed_steps(self, steps: list[int]) -> Tensor: ...


class StoredBatch(NamedTuple):
    """What memory still holds of a step's batch: the rows' places there, and in the batch, ascending."""

    step: int
    places: Tensor
    batch_places: Tensor


class Diagnostics:
    """Feature drift; and of a `CrossBatchMemory` valid pairs, common-mode push and staleness."""

    def __init__(self, task: MeasuredTask) -> None:
        self.task, self.measured, self.rows_per_step = task, task.measured, task.rows_per_step
        every, deltas, watched = self.measured.every, self.measured.drift_over, task.watched
        self._drift = FeatureDrift(task.embed_probe, deltas, every) if every and deltas else None
        self._rows = RowTracker(watched) if every and isinstance(watched, CrossBatchMemory) else None
        self._found: dict[str, Row] = {}

    def forget_rows(self) -> None:
        """Starts anew after rows were stored outside of steps; their staleness is not measured."""
        if self._rows is not None:
            self._rows = RowTracker(self._rows.memory)

    def stored_batches(self) -> list[StoredBatch]:
        """Returns what memory still holds of every step, the oldest first."""
        if self._rows is None:
            return []
        order = self._rows.images.argsort()
        places = order[self._rows.images[order] >= 0]
        steps, counts = self._rows.stored_at[places].unique_consecutive(return_counts=True)
        batch_places = self._rows.images[places] % self.rows_per_step
        parts = places.split(counts.tolist()), batch_places.split(counts.tolist())
        return [StoredBatch(*batch) for batch in zip(steps.tolist(), *parts, strict=True)]

    @contextmanager
    def watch(self, step: Step) -> Iterator[None]:
        """Measures the loss that is computed in this context, if the step is one to measure."""
        rows, measured = self._rows, self.measured
        if rows is None or (step.number if measured.anew_each_epoch else step.total) % measured.every:
            yield
            return
        memory = rows.memory
        stored = memory.embedding_memory.clone()
        with WatchedLoss(memory) as seen:
            yield
        self._follow(rows, step.total)
        # Of what the loss compares, which for most is directions.
        unit = getattr(getattr(memory.loss, "distance", None), "normalize_embeddings", False)
        stale = self._staleness(rows, stored, unit)
        self._found["staleness"] = scalars("before", stale.before) | scalars("after", stale.after)
        self._found["push"] = _floats(seen.common_mode_push(normalize=unit))
        if seen.pair_gradient is not None:
            self._found["memory_push"] = _floats(seen.common_mode_push(memory_only=True, normalize=unit))
            self._found["valid_pairs"] = _floats(seen.valid_pairs())

    def update(self, step: int, tables: Tables) -> None:
        """Adds what was measured to the tables; to be called after every step.

        The tables are drift_1, drift_10 and so on, and of a memory staleness and push, with memory_push and
        valid_pairs if its loss tells pairs apart.
        """
        if self._rows is not None and not self._found:
            self._follow(self._rows, step)
        found, self._found = self._found, {}
        for delta, drift in self._drift.update(step).items() if self._drift is not None else ():
            found[f"drift_{delta}"] = _floats(drift)
        for name, numbers in found.items():
            tables.setdefault(name, []).append({"step": step, **numbers})

    def _follow(self, rows: RowTracker, step: int) -> None:
        # Every row of the run is an image of its own: its number is that of its step and its place there.
        first = step * self.rows_per_step
        rows.update(step, torch.arange(first, first + self.rows_per_step))

    def _staleness(self, rows: RowTracker, stored: Tensor, unit: bool) -> AdaptedStaleness:
        if not self.measured.whole_batches:
            return rows.staleness(stored, self._embed, num_steps=_STALE_STEPS, normalize=unit)
        batches = self.stored_batches()
        newest = batches[-1].step if batches else 0  # while the memory warms up there are none
        whole = [batch for batch in batches[:-1] if len(batch.places) == self.rows_per_step]
        chosen = torch.linspace(0, max(len(whole) - 1, 0), min(_STALE_STEPS, len(whole))).long().tolist()
        steps = [whole[i].step for i in chosen]
        places = torch.cat([whole[i].places for i in chosen]) if chosen else rows.images.new_zeros(0)
        compared = stored[places], rows.memory.embedding_memory[places]
        fresh = self.task.embed_steps(steps) if steps else compared[0]
        if unit:
            compared, fresh = (normalize(compared[0]), normalize(compared[1])), normalize(fresh)
        ages = newest - rows.stored_at[places]
        return AdaptedStaleness(*(staleness(vectors, fresh, ages) for vectors in compared))

    def _embed(self, rows: Tensor) -> Tensor:
        steps, position = (rows // self.rows_per_step).unique(return_inverse=True)
        embeddings = self.task.embed_steps(steps.tolist())
        return embeddings[position * self.rows_per_step + rows % self.rows_per_step]

    def state_dict(self) -> dict[str, Any]:
        """Returns all that is needed to go on from here, along with the memory's own state."""
        return {
            "drift": {} if self._drift is None else self._drift.state_dict(),
            "rows": {} if self._rows is None else self._rows.state_dict(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Loads a state, after the memory has loaded its own; what was not measured before begins now."""
        if self._drift is not None and state["drift"]:
            self._drift.load_state_dict(state["drift"])
        self.forget_rows()
        if self._rows is not None and state["rows"]:
            self._rows.load_state_dict(state["rows"])


def _floats(numbers: Any) -> Row:
    """Returns the fields of a named tuple of 0-dimensional tensors."""
    return {name: float(value) for name, value in numbers._asdict().items()}


def embed_without_trace(model: nn.Module, images: Tensor) -> Tensor:
    """Returns embeddings in the model's present mode, without gradients; its buffers stay as they are."""
    buffers = {name: buffer.clone() for name, buffer in model.named_buffers()}
    with torch.no_grad():
        embeddings: Tensor = functional_call(model, buffers, (images,))
    return embeddings


def embedding_diagnostics(
    embeddings: Tensor, labels: Tensor, superclasses: Tensor | None = None, features: Tensor | None = None
) -> Row:
    """Class separability, distances, and the shares of embeddings near their superclass, by name.

    Distances are of 4,096 unit-length embeddings of the first classes; separability is of the ``features``.
    """
    first = labels.argsort(stable=True)[:_DISTANCES_OF]
    numbers = {
        **scalars("separability", class_separability(embeddings if features is None else features, labels)),
        **scalars("distance", embedding_distances(embeddings[first], labels[first])),
    }
    if superclasses is not None:
        shares = superclass_neighbours(embeddings, superclasses.to(labels.device)[labels])
        numbers |= scalars("superclass_within", dict(enumerate(shares, start=1)))
    return numbers
