"""What a run has measured so far."""

from __future__ import annotations

from dataclasses import dataclass, field

Row = dict[str, float]
# Rows by the name of the table that they belong to. All rows of a table have the same names.
Tables = dict[str, list[Row]]


@dataclass
class History:
    """Rows of numbers.

    Attributes:
        epochs: a row after every evaluation: epoch, and what the task evaluates.
        steps: a row per entry of the log: step (counted over all epochs), loss, and what the task adds.
        diagnostics: what `Diagnostics` measured, with a column step; and the table embeddings, with a column
            epoch.
        step_times: seconds of every training step, with its diagnostics if it had any; of a timed task.
    """

    epochs: list[Row] = field(default_factory=list)
    steps: list[Row] = field(default_factory=list)
    diagnostics: Tables = field(default_factory=dict)
    step_times: list[float] = field(default_factory=list)
