"""The README and the pages can be read in the time that a reader has."""

from __future__ import annotations

from pathlib import Path

import pytest
from count_words import (
    DOCS,
    MOST_OF_A_PAGE,
    MOST_OF_A_SENTENCE,
    MOST_OF_PAGES,
    MOST_OF_README,
    README,
    pages,
    words_of,
    words_per_sentence,
)


def test_the_readme_is_short() -> None:
    assert words_of(README) <= MOST_OF_README


def test_the_pages_are_short() -> None:
    assert sum(map(words_of, pages())) <= MOST_OF_PAGES


@pytest.mark.parametrize("page", MOST_OF_A_PAGE)
def test_a_page_is_short(page: str) -> None:
    assert words_of(DOCS / page) <= MOST_OF_A_PAGE[page]


@pytest.mark.parametrize("path", [README, *pages()], ids=lambda path: path.name)
def test_sentences_are_short(path: Path) -> None:
    assert words_per_sentence(path) <= MOST_OF_A_SENTENCE
