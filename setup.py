"""The long description, and the links beside it, of the page that a registry makes of a release.

The README's links are relative and work in a clone. A registry shows the README alone: where the repository
is public, its links lead there, to the files of the version's tag; until then they are words in italics.
"""

from __future__ import annotations

import re
from pathlib import Path

from setuptools import setup
from setuptools.config.expand import read_attr

# The repository's address, in this place alone: "https://github.com/<owner>/pml_xbn", when there is one.
REPOSITORY = ""

HERE = Path(__file__).parent
# Markdown names a target in brackets behind the text, or behind a label at the beginning of a line.
TARGET = re.compile(r"(\]\(|^\[[^\]]+\]: )([^)\s]+)", re.MULTILINE)
LINK = re.compile(r"\[([^\]]+)\](?:\(([^)\s]+)\)|\[([^\]]+)\])")
LABEL = re.compile(r"^\[([^\]]+)\]: (\S+)\n", re.MULTILINE)
# A picture that is a paragraph, and what is written below it in italics.
PICTURE = re.compile(r"^!\[[^\]]*\]\S+\n\n(?:\*[^*].*?\*\n\n)?", re.MULTILINE | re.DOTALL)
PICTURES = (".png", ".svg")
AWAY = ("https://", "http://")
WHERE_PAGES_ARE = """
What is in italics is a page of the source distribution; most are in its folder `docs`.
"""


def registry_page(readme: str, repository: str, version: str) -> str:
    """Returns the README as it can be read without the files beside it."""
    return with_absolute_links(readme, repository, version) if repository else without_links(readme)


def with_absolute_links(readme: str, repository: str, version: str) -> str:
    """Returns links to the version's tag: ``blob`` shows a file as a page, and ``raw`` is a picture."""

    def absolute(match: re.Match[str]) -> str:
        before, target = match.groups()
        if target.startswith((*AWAY, "#")):
            return match[0]
        view = "raw" if target.endswith(PICTURES) else "blob"
        return f"{before}{repository}/{view}/v{version}/{target}"

    return TARGET.sub(absolute, readme)


def without_links(readme: str) -> str:
    """Returns links to files and headings as words in italics, and no pictures; links to other sites stay."""
    targets = dict(LABEL.findall(readme))

    def words(match: re.Match[str]) -> str:
        text, target, label = match.groups()
        return match[0] if (target or targets[label]).startswith(AWAY) else f"*{text}*"

    page = LINK.sub(words, PICTURE.sub("", readme))
    page = LABEL.sub(lambda match: match[0] if match[2].startswith(AWAY) else "", page)
    return f"{page.rstrip()}\n{WHERE_PAGES_ARE}"


def project_urls(repository: str) -> dict[str, str]:
    """Returns the links beside the page; GitHub Pages serve the site under the owner's name."""
    site = re.sub(r"^https://github\.com/([^/]+)/", r"https://\1.github.io/", repository)
    return {
        "Repository": repository,
        "Documentation": site,
        "Changelog": f"{repository}/blob/main/CHANGELOG.md",
        "Issues": f"{repository}/issues",
    }


if __name__ == "__main__":
    setup(
        long_description=registry_page(
            (HERE / "README.md").read_text(encoding="utf-8"),
            REPOSITORY,
            read_attr("pml_xbn.__version__", root_dir=HERE),
        ),
        long_description_content_type="text/markdown",
        project_urls=project_urls(REPOSITORY) if REPOSITORY else {},
    )
