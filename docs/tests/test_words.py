"""The README and the pages can be read in the time that a reader has."""

from __future__ import annotations

from count_words import MOST_OF_PAGES, MOST_OF_README, README, words_of, words_of_pages


def test_the_readme_is_short() -> None:
    assert words_of(README) <= MOST_OF_README


def test_the_pages_are_short() -> None:
    assert sum(words_of_pages().values()) <= MOST_OF_PAGES
