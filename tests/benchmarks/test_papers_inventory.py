"""Nothing of the five papers is forgotten: tables and figures against the experiments."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest

from benchmarks.papers.experiments import EXPERIMENTS, Experiment
from benchmarks.papers.reproducing import INVENTORY, table

Item = dict[str, str]
MOCO = "`moco`"  # in place of the tables whose experiments have an item
PLACE = re.compile(r"(?:suppl\. )?(?:Table|Figure) \d+(?:\.\d+)?")
PLACES = re.compile(r"(?P<kind>.*(?:Table|Figure))s?(?P<chapter> .*?)(?P<first>\d+)(?: .*?(?P<last>\d+))?")

# How far the papers count.
LAST = {
    "AXBN": ("Table 6", "Figure 3"),
    "XBM": ("Table 5", "Figure 7", "suppl. Table 7", "suppl. Figure 5"),
    "Thesis": (
        *("Table 5.17", "Table 7.2", "Table 9.2"),
        *("Figure 2.2", "Figure 3.4", "Figure 5.18", "Figure 8.23"),
    ),
    "NormSoftmax": ("Table 6", "Figure 4"),
    "SGSL": ("Table 6", "Figure 4"),
}


def places_up_to(last: str) -> Iterator[str]:
    """Table 5.17 -> Table 5.1 … Table 5.17."""
    before, number = re.fullmatch(r"(.*\D)(\d+)", last).groups()  # type: ignore[union-attr]
    return (f"{before}{n}" for n in range(1, int(number) + 1))


def places(item: Item) -> list[str]:
    """Figures 8.1 to 8.3 -> Figure 8.1, Figure 8.2, Figure 8.3."""
    found = PLACES.fullmatch(item["place"])
    assert found, item
    kind, chapter, first, last = found.groups()
    return [f"{kind}{chapter}{number}" for number in range(int(first), int(last or first) + 1)]


def source_paper(experiment: Experiment) -> str:
    return experiment.source.partition(", ")[0]


def source_places(experiment: Experiment) -> list[str]:
    return PLACE.findall(experiment.source)


@pytest.mark.parametrize("paper", LAST)
def test_every_table_and_figure_of_a_paper_is_listed(paper: str) -> None:
    listed = {place for item in INVENTORY if item["paper"] == paper for place in places(item)}
    assert listed == {place for last in LAST[paper] for place in places_up_to(last)}


@pytest.mark.parametrize(
    "item", INVENTORY, ids=lambda item: f"{item['paper']}-{item['place']}-{item['what']}"
)
def test_what_is_listed_is_run_or_has_a_reason(item: Item) -> None:
    assert item["paper"] in LAST
    if item["runs"] == MOCO:
        assert table().count("| `moco` | MoCo + XBN |") == 2
        return
    named = {place for e in EXPERIMENTS if source_paper(e) == item["paper"] for place in source_places(e)}
    if item["reason"]:
        assert item["runs"] == item["where"] == ""
    else:
        assert set(item["runs"].split(" and ") if item["runs"] else places(item)) <= named


def test_every_source_of_an_experiment_is_listed() -> None:
    listed = {(item["paper"], place) for item in INVENTORY if not item["reason"] for place in places(item)}
    for experiment in EXPERIMENTS:
        named = source_places(experiment)
        assert named, experiment.source
        assert {(source_paper(experiment), place) for place in named} <= listed, experiment.source
