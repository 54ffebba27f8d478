"""Runs every block of Python on every page, page by page from top to bottom."""

from __future__ import annotations

from doctest import ELLIPSIS
from typing import Any

import numpy as np
import torch
from sybil import Sybil
from sybil.parsers.myst import PythonCodeBlockParser


def _begin(namespace: dict[str, Any]) -> None:
    torch.manual_seed(0)
    np.random.seed(0)
    torch.set_num_threads(1)


pytest_collect_file = Sybil(
    parsers=[PythonCodeBlockParser(doctest_optionflags=ELLIPSIS)],
    pattern="*.md",
    excludes=["_build/**"],
    setup=_begin,
).pytest()
