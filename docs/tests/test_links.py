"""Every link between files of the repository leads to a file, and to a heading in it, without any build."""

from __future__ import annotations

import pkgutil
import re
from collections.abc import Iterator
from functools import cache
from itertools import count, pairwise
from pathlib import Path
from urllib.parse import unquote, urlsplit

import nbformat
import pytest
from markdown_it import MarkdownIt
from markdown_it.token import Token

ROOT = Path(__file__).parents[2]
FOLDERS = (
    ".",
    ".github",
    "docs",
    "docs/losses",
    "examples",
    "benchmarks",
    "benchmarks/results",
    "benchmarks/study",
)
TEXTS = [path for folder in FOLDERS for path in sorted(ROOT.glob(f"{folder}/*.md"))]
TEXTS += sorted((ROOT / "docs" / "tutorials").glob("*.ipynb"))
# Pictures and tables that a build of the site makes of results in the repository.
MADE = ROOT / "docs" / "_build" / "written"
INCLUDE = re.compile(r"^```\{include\} (\S+)$", re.MULTILINE)


def text_of(path: Path) -> str:
    if path.suffix == ".ipynb":
        cells = nbformat.read(path, as_version=4).cells
        return "\n\n".join(cell.source for cell in cells if cell.cell_type == "markdown")
    return path.read_text(encoding="utf-8")


def tokens_of(text: str) -> Iterator[Token]:
    for token in MarkdownIt("commonmark").enable("table").parse(text):
        yield token
        yield from token.children or []


def links_of(path: Path) -> list[str]:
    targets = [
        token.attrs.get("href") or token.attrs.get("src")
        for token in tokens_of(text_of(path))
        if token.type in ("link_open", "image")
    ]
    return [str(target) for target in targets if target and not urlsplit(str(target)).scheme]


@cache
def anchors_of(path: Path) -> set[str]:
    """Returns the anchors that forges and MyST give to the headings, also of files that are included."""
    text = text_of(path)
    tokens = list(MarkdownIt("commonmark").parse(text))
    headings = [after.content for token, after in pairwise(tokens) if is_heading(token)]
    anchors: set[str] = set()
    for heading in headings:
        slug = re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")
        anchors.add(next(name for n in count() if (name := f"{slug}-{n}" if n else slug) not in anchors))
    return anchors.union(
        *(anchors_of(path.parent / name) for name in INCLUDE.findall(text) if name[0] != "_")
    )


def is_heading(token: Token) -> bool:
    return token.type == "heading_open"


def is_public_name(anchor: str) -> bool:
    """The reference has an anchor for every public name."""
    try:
        return anchor.startswith("pml_xbn.") and bool(pkgutil.resolve_name(anchor))
    except (ImportError, AttributeError):
        return False


def is_there(path: Path, link: str) -> bool:
    parts = urlsplit(link)
    target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
    if target.is_relative_to(MADE):
        return target.suffix in (".svg", ".md")
    if not (target.is_relative_to(ROOT) and target.exists()):
        return False
    anchor = unquote(parts.fragment)
    return not anchor or is_public_name(anchor) or (target.is_file() and anchor in anchors_of(target))


@pytest.mark.parametrize("path", TEXTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_links_between_files_lead_somewhere(path: Path) -> None:
    assert [link for link in links_of(path) if not is_there(path, link)] == []


def test_the_links_of_the_readme_are_found() -> None:
    links = links_of(ROOT / "README.md")
    assert {"docs/images/gain.png", "docs/losses/xbn_wrapper.md", "CONTRIBUTING.md"} <= set(links)
    assert len(links) > 25


@pytest.mark.parametrize(
    "link", ["docs/nowhere.md", "docs/faq.md#no-such-question", "#nothing", "../README.md"]
)
def test_a_dead_link_is_seen(link: str) -> None:
    assert not is_there(ROOT / "README.md", link)


def test_the_address_of_the_repository_stands_in_setup_alone() -> None:
    address = re.compile(r"\b\w+\.(com|io|org)/(\w+/)?pml_xbn\b")
    read = [*TEXTS, ROOT / "CITATION.cff", ROOT / "pyproject.toml", *(ROOT / ".github").rglob("*.yml")]
    read += [
        path for folder in ("examples", "benchmarks", "pml_xbn") for path in (ROOT / folder).rglob("*.py")
    ]
    assert [path.name for path in read if address.search(text_of(path))] == []
