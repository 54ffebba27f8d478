"""Runs every block of Python on every page, page by page from top to bottom."""

from __future__ import annotations

import os
from doctest import ELLIPSIS
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
from sybil import Sybil
from sybil.parsers.myst import PythonCodeBlockParser


def _begin(namespace: dict[str, Any]) -> None:
    torch.manual_seed(0)
    np.random.seed(0)
    torch.set_num_threads(1)
    namespace["_before"], namespace["_folder"] = os.getcwd(), TemporaryDirectory()
    os.chdir(namespace["_folder"].name)  # some save a file


def _end(namespace: dict[str, Any]) -> None:
    os.chdir(namespace["_before"])
    namespace["_folder"].cleanup()


pytest_collect_file = Sybil(
    parsers=[PythonCodeBlockParser(doctest_optionflags=ELLIPSIS)],
    pattern="*.md",
    excludes=["_build/**"],
    setup=_begin,
    teardown=_end,
).pytest()
