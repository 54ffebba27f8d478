"""The rows of the papers' tables, read from ``experiments.csv``."""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from benchmarks.engine.results import read_csv
from benchmarks.papers.inception import INCEPTIONS
from benchmarks.papers.presets import read_settings
from benchmarks.papers.settings import Settings


@dataclass(frozen=True)
class Experiment:
    """What a paper ran, and what came out.

    Attributes:
        key: what it is called here; equal for the same method on other data sets.
        title: what the paper calls it.
        dataset: a value of ``--dataset``.
        flags: the value of ``--preset``, and other flags.
        source: paper and table.
        figures: percentages by metric, as the paper prints them; that of a number K is Recall@K. None where
            it draws a curve.
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
        return f"--preset {self.flags} --dataset {self.dataset} --root data/{self.dataset}"

    @cached_property
    def settings(self) -> Settings:
        """The settings of its command."""
        return read_settings(shlex.split(self.arguments))

    @property
    def weights(self) -> str:
        """The pretrained weights; those that the paper does not name have no tag."""
        backbone = self.settings.backbone
        return backbone if "." in backbone or backbone in INCEPTIONS else "not stated"


def _figures(text: str) -> dict[str, str]:
    figures = (figure.split(": ") for figure in text.split("; ") if figure)
    return {f"recall_at_{name}" if name.isdecimal() else name: value for name, value in figures}


EXPERIMENTS = tuple(
    Experiment(**{**row, "figures": _figures(row["figures"])})  # type: ignore[arg-type]
    for row in read_csv(Path(__file__).with_name("experiments.csv"))
)
