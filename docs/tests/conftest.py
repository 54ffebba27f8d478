from __future__ import annotations

import sys
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[1]
sys.path += [str(DOCS), str(DOCS / "tests")]


@pytest.fixture(scope="session")
def site() -> Path:
    """The built site; ``tox -e docs`` builds it before it runs the tests that ask for it."""
    folder = DOCS / "_build" / "html"
    assert (folder / "index.html").exists(), "build the site first: tox -e docs"
    return folder
