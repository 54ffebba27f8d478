"""Every table and figure of the papers, read from ``inventory.csv``: who repeats it, or why nobody does."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from benchmarks.engine.results import read_csv
from benchmarks.papers.experiments import EXPERIMENTS, Experiment

# The rows of MoCo, which are no experiments of this script.
MOCO = "`moco`"
_PLACE = re.compile(r"(?:suppl\. )?(?:Table|Figure) \d+(?:\.\d+)?")
_PLACES = re.compile(r"(?P<kind>.*(?:Table|Figure))s?(?P<chapter> .*?)(?P<first>\d+)(?: .*?(?P<last>\d+))?")


@dataclass(frozen=True)
class Item:
    """Rows of a table, or curves of a figure.

    Attributes:
        paper: as experiments name it.
        place: Table 1, or Figures 8.1 to 8.23.
        what: which of their rows or curves.
        runs: the tables whose experiments have it, where these are others, joined by "and"; or `MOCO`.
        where: what of these experiments has it, where that is not their result.
        reason: why no experiment repeats it.
    """

    paper: str
    place: str
    what: str
    runs: str
    where: str
    reason: str

    @property
    def places(self) -> list[str]:
        """Figures 8.1 to 8.3 -> Figure 8.1, Figure 8.2, Figure 8.3."""
        found = _PLACES.fullmatch(self.place)
        assert found, self.place
        kind, chapter, first, last = found.groups()
        return [f"{kind}{chapter}{number}" for number in range(int(first), int(last or first) + 1)]

    @property
    def experiments(self) -> list[Experiment]:
        """Those whose source names the table or figure."""
        if self.reason:
            return []
        wanted = set(self.runs.split(" and ") if self.runs else self.places)
        return [
            experiment
            for experiment in EXPERIMENTS
            if self.paper == paper_of(experiment) and wanted & set(places_of(experiment))
        ]


def paper_of(experiment: Experiment) -> str:
    return experiment.source.partition(", ")[0]


def places_of(experiment: Experiment) -> list[str]:
    """The tables and figures that a source names."""
    return _PLACE.findall(experiment.source)


INVENTORY = tuple(Item(**row) for row in read_csv(Path(__file__).with_name("inventory.csv")))
