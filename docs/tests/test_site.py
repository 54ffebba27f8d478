"""What is asked of the site as a whole, checked on the built pages."""

from __future__ import annotations

import inspect
import json
import re
import zlib
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from types import ModuleType
from typing import Any
from urllib.parse import unquote, urlsplit

import pytest
from sphinx.search.en import SearchEnglish

import pml_xbn

# Attributes by which a page makes a browser fetch something.
FETCHED = {("script", "src"), ("img", "src"), ("link", "href"), ("iframe", "src"), ("source", "src")}
NOT_FETCHED = {"canonical", "search", "next", "prev", "index", "author"}


class Page(HTMLParser):
    """Links, anchors and fetched files of a page."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.path = path
        self.links: list[str] = []
        self.anchors: set[str] = set()
        self.fetched: list[str] = []
        self.feed(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        for name, value in attrs:
            if value is None:
                continue
            if name == "id" or (tag == "a" and name == "name"):
                self.anchors.add(value)
            if tag == "a" and name == "href":
                self.links.append(value)
            if (tag, name) in FETCHED and dict(attrs).get("rel") not in NOT_FETCHED:
                self.fetched.append(value)


@pytest.fixture(scope="module")
def pages(site: Path) -> dict[Path, Page]:
    paths = [path for path in site.rglob("*.html") if "_static" not in path.parts]
    return {path: Page(path) for path in paths}


def test_no_internal_link_is_dead(pages: dict[Path, Page]) -> None:
    dead = []
    for path, page in pages.items():
        for link in page.links + page.fetched:
            parts = urlsplit(link)
            if parts.scheme in ("http", "https", "mailto", "data") or link.startswith("//"):
                continue
            target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            has_anchor = target not in pages or unquote(parts.fragment) in {"", *pages[target].anchors}
            if not (target.is_file() and has_anchor):
                dead.append(f"{path.name} -> {link}")
    assert not dead


def test_pages_fetch_nothing_from_the_network(pages: dict[Path, Page]) -> None:
    assert not [
        (path.name, fetched)
        for path, page in pages.items()
        for fetched in page.fetched
        if fetched.startswith(("http:", "https:", "//"))
    ]


def test_formulas_are_set_by_a_script_that_is_there(site: Path, pages: dict[Path, Page]) -> None:
    scripts = {urlsplit(fetched).path for fetched in pages[site / "index.html"].fetched}
    assert "_static/mathjax/tex-chtml.js" in scripts
    assert list((site / "_static/mathjax").rglob("*.woff"))


def test_every_page_is_in_the_menu(site: Path, pages: dict[Path, Page]) -> None:
    menu = {urlsplit(link).path for link in pages[site / "index.html"].links} | {"index.html"}
    made_by_sphinx = {"genindex.html", "search.html", "py-modindex.html"}
    assert {str(path.relative_to(site)) for path in pages} - made_by_sphinx <= menu


@pytest.mark.parametrize(
    ("query", "page"),
    [
        ("DDP", "distributed"),
        ("AMP", "mixed_precision"),
        ("gradient accumulation", "frameworks"),
        ("fine-tuning", "fine_tuning"),
        ("pretrained", "fine_tuning"),
        ("multi-label", "labels"),
    ],
)
def test_the_search_finds(site: Path, query: str, page: str) -> None:
    script = (site / "searchindex.js").read_text(encoding="utf-8")
    index = json.loads(script.removeprefix("Search.setIndex(").rstrip(";)\n"))
    stemmer, words = SearchEnglish({}), re.findall(r"\w+", query.lower())
    pages = [pages_with(index, stemmer.stem(word)) for word in words]
    assert page in set.intersection(*pages)


def pages_with(index: dict[str, Any], word: str) -> set[str]:
    found = [index[part].get(word, []) for part in ("terms", "titleterms")]
    numbers = [number for place in found for number in (place if isinstance(place, list) else [place])]
    return {index["docnames"][number] for number in numbers}


def test_every_public_name_is_in_the_reference(site: Path) -> None:
    public = [getattr(pml_xbn, name) for name in pml_xbn.__all__]
    subpackages = [each for each in public if isinstance(each, ModuleType)]
    documented = documented_names(site)
    missing = []
    for subpackage in subpackages:
        for name in subpackage.__all__:
            path = f"{subpackage.__name__}.{name}"
            found = getattr(subpackage, name)
            members = public_members(found) if inspect.isclass(found) else ()
            missing += [p for p in (path, *(f"{path}.{m}" for m, _ in members)) if p not in documented]
    assert not missing


def public_members(cls: type) -> Iterator[tuple[str, Any]]:
    """Methods and properties that the class itself defines and explains."""
    for name, member in vars(cls).items():
        is_one = inspect.isfunction(member) or isinstance(member, (property, classmethod, staticmethod))
        # What overrides a method of the base without a docstring of its own does what the base says.
        if is_one and not name.startswith("_") and member.__doc__:
            yield name, member


def documented_names(site: Path) -> set[str]:
    """From Sphinx's inventory: a header of four lines, and the names, compressed."""
    inventory = (site / "objects.inv").read_bytes().split(b"\n", 4)[4]
    entries = [line.split() for line in zlib.decompress(inventory).decode().splitlines()]
    return {name for name, kind, *_ in entries if kind.startswith("py:")}
