"""The sources of the pages: no example escapes being run, and tests that they name are there."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import nbformat
import pytest

DOCS = Path(__file__).parents[1]
PAGES = [path for path in sorted(DOCS.rglob("*.md")) if "_build" not in path.parts]
NOTEBOOKS = sorted((DOCS / "tutorials").glob("*.ipynb"))

LONGEST_LINE = 96  # of code: what a page has room for on a screen of 1280 pixels
# Python is run by docs/conftest.py and cells by the build; the others are no programs, or a shell's.
LANGUAGES = {"python", "{code-cell} ipython3", "console", "diff", "text", "bibtex", ""}


@pytest.mark.parametrize("page", PAGES, ids=lambda path: path.name)
def test_every_block_of_code_is_one_that_is_run(page: Path) -> None:
    fences = re.findall(r"^ *```+ *(.*?) *$", page.read_text(encoding="utf-8"), re.MULTILINE)
    opening = fences[::2]  # the others close
    programs = [fence for fence in opening if not fence.startswith("{") or fence.startswith("{code")]
    assert set(programs) <= LANGUAGES


@pytest.mark.parametrize("page", PAGES, ids=lambda path: path.name)
def test_lines_of_code_have_room_on_the_page(page: Path) -> None:
    blocks = re.findall(r"^ *```[^\n]*\n(.*?)^ *```", page.read_text(encoding="utf-8"), re.M | re.S)
    assert [line for block in blocks for line in block.splitlines() if len(line) > LONGEST_LINE] == []


def test_there_are_three_notebooks_without_outputs() -> None:
    assert len(NOTEBOOKS) == 3
    for path in NOTEBOOKS:
        cells = nbformat.read(path, as_version=4).cells
        assert not [cell for cell in cells if cell.get("outputs") or cell.get("execution_count")], path.name


def test_tests_that_pages_name_are_there() -> None:
    root = DOCS.parent
    texts = [
        path.read_text(encoding="utf-8") for path in [*PAGES, root / "README.md", root / "CONTRIBUTING.md"]
    ]
    named = re.findall(r"\b((?:docs/)?tests/[\w/]+\.py)|`(test_\w+?)(\.py)?`", "\n".join(texts))
    paths = [path for folder in (root / "tests", DOCS / "tests") for path in folder.rglob("*.py")]
    sources = "".join(path.read_text(encoding="utf-8") for path in paths)
    assert len(named) > 10
    for path, name, is_file in named:
        if path:
            assert (root / path).is_file(), path
        elif is_file:
            assert f"{name}.py" in {path.name for path in paths}, name
        else:
            assert f"def {name}(" in sources, name


class _WithoutTypes(ast.NodeTransformer):
    """Takes the annotations away, which scripts have and pages have not."""

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        node.returns = None
        return self.generic_visit(node)

    def visit_arg(self, node: ast.arg) -> ast.AST:
        return ast.arg(node.arg)

    def visit_AnnAssign(self, node: ast.AnnAssign) -> ast.AST:
        assert node.value is not None
        return ast.copy_location(ast.Assign([node.target], self.visit(node.value)), node)


def functions(source: str) -> dict[str, str]:
    tree = _WithoutTypes().visit(ast.parse(source))
    return {node.name: ast.unparse(node) for node in tree.body if isinstance(node, ast.FunctionDef)}


def test_the_loop_of_diagnostics_is_that_of_the_script() -> None:
    page = (DOCS / "diagnostics.md").read_text(encoding="utf-8")
    cells = re.findall(r"^```{code-cell} ipython3\n(.*?)^```", page, re.M | re.S)
    shown = functions("\n".join(cells).replace("%matplotlib inline", ""))
    script = functions((DOCS.parent / "examples" / "diagnose.py").read_text(encoding="utf-8"))
    assert {"train", "report", "batches"} <= set(shown)
    assert shown == script
