"""Counts the words of the README and of every page, and of a sentence: ``python docs/count_words.py``.

Whatever stands between spaces and holds a letter or a digit is a word: code, tables and links count, the
bars of tables do not. The settings and commands of the papers' experiments (`LISTS`) are left out.
"""

from __future__ import annotations

import re
from pathlib import Path
from statistics import fmean

DOCS = Path(__file__).parent
README = DOCS.parent / "README.md"
LISTS = {"presets.md", "reproducing.md"}
MOST_OF_README, MOST_OF_PAGES, MOST_OF_A_SENTENCE = 750, 12_000, 25
MOST_OF_A_PAGE = {"which_variant.md": 900, "papers.md": 900, "distributed.md": 900}
# What is no sentence: code, formulas, rows of tables, headings, directives, and targets of links.
NO_SENTENCE = re.compile(
    r"^ *```.*?^ *```|\$\$.*?\$\$|^(?:\||#|:::|!\[|\[[^\]]+\]: )[^\n]*|\]\([^)]*\)",
    re.M | re.S,
)
END_OF_SENTENCE = re.compile(r"[.!?:][*)]*\s+(?=[^a-z])|\n\s*(?:\n|\*|\d+\.)")


def words_of(path: Path) -> int:
    return _num_words(path.read_text(encoding="utf-8"))


def words_per_sentence(path: Path) -> float:
    """Returns the mean over the sentences of paragraphs and lists."""
    prose = NO_SENTENCE.sub("", path.read_text(encoding="utf-8"))
    numbers = [
        number for part in END_OF_SENTENCE.split(prose) if (number := _num_words(part))
    ]
    return fmean(numbers) if numbers else 0


def _num_words(text: str) -> int:
    return sum(any(map(str.isalnum, word)) for word in text.split())


def pages() -> list[Path]:
    paths = [path for path in sorted(DOCS.rglob("*.md")) if "_build" not in path.parts]
    return [path for path in paths if path.name not in LISTS]


if __name__ == "__main__":
    for path in [README, *pages()]:
        print(
            f"{words_of(path):6,}  {words_per_sentence(path):4.1f} a sentence  {path.name}"
        )
    total = sum(map(words_of, pages()))
    print(
        f"{total:6,}  docs, of {MOST_OF_PAGES:,}; README.md may have {MOST_OF_README:,}"
    )
