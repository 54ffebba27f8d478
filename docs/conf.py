"""Sphinx's configuration of the site; ``tox -e docs`` builds it."""

import sys
from itertools import chain
from pathlib import Path
from typing import Any

import pml_xbn

DOCS = Path(__file__).parent
sys.path += [str(DOCS), str(DOCS.parent)]

project = "pml_xbn"
author = "the contributors of pml_xbn"
project_copyright = author
release = version = pml_xbn.__version__

extensions = [
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx.ext.mathjax",
    "sphinx-mathjax-offline",  # the site needs no network
    "sphinx_copybutton",
    "myst_nb",
    "extension.written_files",
]
exclude_patterns = ["_build"]

# -- Markdown and notebooks ----------------------------------------------------------------------------------

myst_enable_extensions = [
    "dollarmath",
    "colon_fence",
    "deflist",
    "attrs_block",
    "attrs_inline",
]
myst_heading_anchors = 3
nb_execution_mode = "force"
nb_execution_timeout = 300
nb_execution_raise_on_error = True
nb_execution_show_tb = True
nb_output_stderr = "error"  # a cell that warns fails the build
nb_merge_streams = True

# -- Docstrings ----------------------------------------------------------------------------------------------

autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_inherit_docstrings = False
autodoc_typehints_format = "short"
autodoc_default_options = {"members": True, "show-inheritance": True}
napoleon_google_docstring = True
napoleon_use_ivar = True
napoleon_use_rtype = False
python_maximum_signature_line_length = 88
python_use_unqualified_type_names = True
default_role = "py:obj"

# -- HTML ----------------------------------------------------------------------------------------------------

html_theme = "furo"
pygments_style = "default"
pygments_dark_style = "github-dark"
html_title = f"pml_xbn {release}"
html_static_path = ["static"]
html_css_files = ["site.css"]
html_show_sourcelink = False
html_copy_source = False
copybutton_exclude = ".linenos, .gp, .go"


def skip_fields_of_named_tuples(
    app: Any, what: str, name: str, member: Any, skip: bool, options: Any
) -> bool:
    """Their signature lists them; of themselves they say 'Alias for field number 0'."""
    return skip or type(member).__name__ == "_tuplegetter"


def deal_notebooks(app: Any, env: Any, pages: list[str]) -> None:
    """Orders pages so that each of four processes (``--jobs 4``) reads one notebook, which takes the time."""
    pages.sort(key=lambda page: ("tutorials/" not in page, page))
    pages[:] = chain.from_iterable(pages[first::4] for first in range(4))


def setup(app: Any) -> None:
    app.connect("autodoc-skip-member", skip_fields_of_named_tuples)
    app.connect("env-before-read-docs", deal_notebooks)
    # It copies files at the end of a build, and does not say that many processes may read pages meanwhile.
    mathjax = app.extensions["sphinx-mathjax-offline"]
    mathjax.parallel_read_safe = mathjax.parallel_write_safe = True
