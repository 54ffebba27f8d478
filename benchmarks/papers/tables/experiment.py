"""One row of a paper's table."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

Figures = Sequence[float | str]  # text where a figure ends in 0 or has a deviation


@dataclass(frozen=True)
class Experiment:
    """What a paper ran, and what came out.

    Attributes:
        key: what it is called here; equal for the same method on other data sets.
        title: what the paper calls it.
        dataset: a value of ``--dataset``.
        flags: the other flags.
        source: paper and table.
        figures: percentages by metric, as the paper prints them.
    """

    key: str
    title: str
    dataset: str
    flags: str
    source: str
    figures: dict[str, str]

    @property
    def arguments(self) -> str:
        """All flags of its command."""
        return f"{self.flags} --dataset {self.dataset} --root data/{self.dataset}"


def recall(*figures: float | str, at: Sequence[int] = (1, 10)) -> dict[str, str]:
    """Recall@K for the first values of K in ``at``, as many as there are figures."""
    return {f"recall_at_{k}": str(figure) for k, figure in zip(at, figures, strict=False)}
