"""Figures as pages write them, and whether they stand there."""

from __future__ import annotations

from pathlib import Path

from benchmarks.engine.intervals import Difference

DOCS = Path(__file__).parents[1]
README = DOCS.parent / "README.md"
RESULTS = DOCS.parent / "benchmarks" / "results"


def words_of(*pages: Path) -> str:
    return " ".join(word for page in pages for word in page.read_text(encoding="utf-8").split())


def assert_on(pages: Path | tuple[Path, ...], *figures: str) -> None:
    """Asserts that figures stand on a page, or on one of several."""
    pages = (pages,) if isinstance(pages, Path) else pages
    words = words_of(*pages)
    assert [figure for figure in figures if figure not in words] == [], [page.name for page in pages]


def row_of_readme(what: str, classes: str) -> list[str]:
    """Returns what a row of the README's table says of gains: over the same batch, and so on."""
    lines = README.read_text(encoding="utf-8").splitlines()
    (found,) = [line for line in lines if line.startswith(f"| {what} | {classes} |")]
    return [text.strip() for text in found.split("|")[3:-1]]


def cell(difference: Difference | None) -> str:
    if difference is None:
        return "–"
    half_width = "" if difference.half_width is None else f" ± {difference.half_width:.1f}"
    sign = "−" if difference.mean < 0 else "+"
    return f"{sign}{abs(difference.mean):.1f}{half_width}"
