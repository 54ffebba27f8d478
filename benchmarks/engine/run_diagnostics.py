"""What a memory does to a run, measured every so many steps without leaving a trace in the run."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from pytorch_metric_learning.losses import CrossBatchMemory
from torch import Tensor, nn
from torch.func import functional_call

from pml_xbn.diagnostics import FeatureDrift, RowTracker, WatchedLoss, scalars

_DELTAS = (1, 10, 100)  # Δk, those of Cross-Batch Memory, Fig. 3, and of the AXBN paper, Fig. 3
_STALE_STEPS = 8  # of those whose rows are in memory

# Rows by the name of the table that they belong to. All rows of a table have the same names.
Tables = dict[str, list[dict[str, float]]]


class RunDiagnostics:
    """Feature drift; and of a memory valid pairs, common-mode push and staleness.

    Args:
        loss_fn: the run's loss. One that is no `CrossBatchMemory` leaves drift alone to be measured.
        every: steps from one measurement to the next; 0 for none.
        rows_per_step: rows that every step stores.
        embed_probe: returns the embeddings (n, d) of always the same images, in evaluation mode.
        embed_steps: returns the embeddings that the given steps stored, (number of steps · rows_per_step, d),
            as the model as it is would make them: of the same images, augmentation and batches. It leaves the
            model and the generators of random numbers as they are; see `embed_without_trace`.
    """

    def __init__(
        self,
        loss_fn: nn.Module,
        every: int,
        rows_per_step: int,
        embed_probe: Callable[[], Tensor],
        embed_steps: Callable[[list[int]], Tensor],
    ) -> None:
        self.every, self.rows_per_step = every, rows_per_step
        self._embed_steps = embed_steps
        self._drift = FeatureDrift(embed_probe, _DELTAS, every) if every else None
        has_rows = every and isinstance(loss_fn, CrossBatchMemory)
        self._rows = RowTracker(loss_fn) if has_rows else None
        self._measured: dict[str, dict[str, float]] = {}

    def forget_rows(self) -> None:
        """To be called when rows were stored outside of steps; their staleness is not measured."""
        if self._rows is not None:
            self._rows = RowTracker(self._rows.memory)

    @contextmanager
    def watch(self, step: int) -> Iterator[None]:
        """The context in which the loss is computed.

        Args:
            step: counted over all epochs.
        """
        rows = self._rows
        if rows is None or step % self.every:
            yield
            return
        memory = rows.memory
        stored = memory.embedding_memory.clone()
        with WatchedLoss(memory) as seen:
            yield
        self._follow(rows, step)
        # Of what the loss compares, which for most is directions.
        unit = getattr(getattr(memory.loss, "distance", None), "normalize_embeddings", False)
        stale = rows.staleness(stored, self._embed, num_steps=_STALE_STEPS, normalize=unit)
        self._measured["staleness"] = scalars("before", stale.before) | scalars("after", stale.after)
        self._measured["push"] = _floats(seen.common_mode_push(normalize=unit))
        if seen.pair_gradient is not None:
            self._measured["memory_push"] = _floats(seen.common_mode_push(of_memory=True, normalize=unit))
            self._measured["valid_pairs"] = _floats(seen.valid_pairs())

    def update(self, step: int, tables: Tables) -> None:
        """To be called after every step.

        Args:
            step: as in `watch`.
            tables: get a row each of what was measured: drift_1, drift_10, drift_100, and of a memory
                staleness, push, and memory_push and valid_pairs if its loss tells pairs apart.
        """
        if self._drift is None:
            return
        if self._rows is not None and not self._measured:
            self._follow(self._rows, step)
        measured, self._measured = self._measured, {}
        for delta, drift in self._drift.update(step).items():
            measured[f"drift_{delta}"] = _floats(drift)
        for name, numbers in measured.items():
            tables.setdefault(name, []).append({"step": step, **numbers})

    def _follow(self, rows: RowTracker, step: int) -> None:
        # Every row of the run is an image of its own: its number is that of its step and its place there.
        first = step * self.rows_per_step
        rows.update(step, torch.arange(first, first + self.rows_per_step))

    def _embed(self, rows: Tensor) -> Tensor:
        steps, position = (rows // self.rows_per_step).unique(return_inverse=True)
        embeddings = self._embed_steps(steps.tolist())
        return embeddings[position * self.rows_per_step + rows % self.rows_per_step]

    def state_dict(self) -> dict[str, Any]:
        """All that is needed to go on from here, along with the memory's own state."""
        return {
            "drift": {} if self._drift is None else self._drift.state_dict(),
            "rows": {} if self._rows is None else self._rows.state_dict(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """To be called after the memory has loaded its state; what was not measured before begins now."""
        if self._drift is not None and state["drift"]:
            self._drift.load_state_dict(state["drift"])
        self.forget_rows()
        if self._rows is not None and state["rows"]:
            self._rows.load_state_dict(state["rows"])


def _floats(numbers: Any) -> dict[str, float]:
    """The fields of a named tuple of 0-dimensional tensors."""
    return {name: float(value) for name, value in numbers._asdict().items()}


def embed_without_trace(model: nn.Module, images: Tensor) -> Tensor:
    """Embeddings in the mode that the model is in, without gradients; its buffers stay as they are."""
    buffers = {name: buffer.clone() for name, buffer in model.named_buffers()}
    with torch.no_grad():
        embeddings: Tensor = functional_call(model, buffers, (images,))
    return embeddings
