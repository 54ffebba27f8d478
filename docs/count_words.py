"""Counts the words of the README and of every page: ``python docs/count_words.py``.

Whatever stands between spaces and holds a letter or a digit is a word: code, tables and links count, the
bars of tables do not. The settings and commands of the papers' experiments (`LISTS`) are left out.
"""

from __future__ import annotations

from pathlib import Path

DOCS = Path(__file__).parent
README = DOCS.parent / "README.md"
LISTS = {"presets.md", "reproducing.md"}
MOST_OF_README, MOST_OF_PAGES = 750, 11_000


def words_of(path: Path) -> int:
    return sum(any(map(str.isalnum, word)) for word in path.read_text(encoding="utf-8").split())


def words_of_pages() -> dict[str, int]:
    paths = [path for path in sorted(DOCS.rglob("*.md")) if "_build" not in path.parts]
    return {str(path.relative_to(DOCS)): words_of(path) for path in paths if path.name not in LISTS}


if __name__ == "__main__":
    pages = words_of_pages()
    for name, words in pages.items():
        print(f"{words:6,}  {name}")
    print(f"{sum(pages.values()):6,}  docs, of {MOST_OF_PAGES:,}")
    print(f"{words_of(README):6,}  README.md, of {MOST_OF_README:,}")
