"""The parts of the metadata that follow from the address in ``setup.cfg``.

The README's links are relative and work in a clone. A registry shows the README alone, so the build makes
them lead to the files of the version's tag.
"""

from __future__ import annotations

import re
from pathlib import Path

from setuptools import setup
from setuptools.config.setupcfg import read_configuration

HERE = Path(__file__).parent
# Markdown names a target in brackets behind the text, or behind a label at the beginning of a line.
TARGET = re.compile(r"(\]\(|^\[[^\]]+\]: )([^)\s]+)", re.MULTILINE)
PICTURES = (".png", ".svg")


def registry_page(readme: str, repository: str, version: str) -> str:
    """Returns the README with absolute links: ``blob`` shows a file as a page, and ``raw`` is a picture."""

    def absolute(match: re.Match[str]) -> str:
        before, target = match.groups()
        if target.startswith(("https://", "http://", "#")):
            return match[0]
        view = "raw" if target.endswith(PICTURES) else "blob"
        return f"{before}{repository}/{view}/v{version}/{target}"

    return TARGET.sub(absolute, readme)


def project_urls(repository: str) -> dict[str, str]:
    """Returns the links beside the page; GitHub Pages serve the site under the owner's name."""
    site = re.sub(r"^https://github\.com/([^/]+)/", r"https://\1.github.io/", repository)
    return {
        "Documentation": site,
        "Changelog": f"{repository}/blob/main/CHANGELOG.md",
        "Issues": f"{repository}/issues",
    }


if __name__ == "__main__":
    metadata = read_configuration(HERE / "setup.cfg")["metadata"]
    setup(
        long_description=registry_page(
            (HERE / "README.md").read_text(encoding="utf-8"), metadata["url"], metadata["version"]
        ),
        long_description_content_type="text/markdown",
        project_urls=project_urls(metadata["url"]),
    )
