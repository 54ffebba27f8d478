"""Figures in sentences: each is what the table says that the sentence is about."""

from __future__ import annotations

from pathlib import Path
from statistics import fmean

import pytest

from benchmarks.study.data import Setting, Study

DOCS = Path(__file__).parents[1]
RESULTS = DOCS.parent / "benchmarks" / "results"


def words_of(page: Path) -> str:
    return " ".join(page.read_text(encoding="utf-8").split())


@pytest.fixture(scope="module")
def study() -> Study:
    return Study(RESULTS)


EMOJI = (64, 0.5, "batch", "emoji, 60 epochs")
LONG = (64, 0.5, "batch", "converged")


@pytest.mark.parametrize("method", ["no-xbm", "xbm", "xbn", "axbn"])
def test_the_first_table_of_the_readme(study: Study, method: str) -> None:
    means = [fmean(study.values(method, setting, "recall_at_1").values()) for setting in (LONG, EMOJI)]
    cells = " | ".join(f"{mean:.1f}" for mean in means)
    assert f" | {cells} |" in words_of(DOCS.parent / "README.md")


def figure(study: Study, setting: Setting, baseline: str) -> str:
    gap = study.differences(setting, baseline)["xbn"]
    return f"{gap.mean:.1f} ± {gap.half_width:.1f}"


def test_what_a_warm_up_leaves(study: Study) -> None:
    glyphs, emoji = (figure(study, setting, "xbm+warm-up") for setting in (LONG, EMOJI))
    words = words_of(DOCS.parent / "README.md")
    assert f"it is {glyphs} below XBN on Glyphs, and {emoji} on Emoji" in words


def test_what_xbn_gains_in_long_runs(study: Study) -> None:
    glyphs, emoji = (figure(study, setting, "no-xbm") for setting in (LONG, EMOJI))
    words = words_of(DOCS / "which_variant.md")
    assert f"Glyphs +{glyphs}, Emoji +{emoji} points of Recall@1" in words
