"""Which training steps are measured."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from benchmarks.on_gpu.network.networks import names
from benchmarks.on_gpu.steps.cells import CAPTURED, COMPILED, EAGER, PML, PRODUCTS

NONE, GRAD_CACHE = "no memory", "GradCache"
METHODS = (NONE, PRODUCTS, PML, EAGER, COMPILED, CAPTURED, GRAD_CACHE)


class Cell(NamedTuple):
    """A training step.

    Attributes:
        network: by name.
        precision: of autocast.
        batch: images; `GradCache` has four times as many, of which as many are embedded at a time.
        rows: in memory.
        method: the loss of the batch alone, also by GradCache; the products of the batch and the rows in its
            place; PML's class; or how XBN's step is run. Captured is the whole of a step.
    """

    network: str
    precision: str
    batch: int
    rows: int
    method: str


def cells(is_tiny: bool) -> Iterator[Cell]:
    """Yields the steps in the order of their worth."""
    batch, rows = (16, 64) if is_tiny else (64, 60_000)
    for precision in ("bfloat16",) if is_tiny else ("bfloat16", "float16"):
        for network in names(is_tiny):
            for method in METHODS:
                if not (is_tiny and method == COMPILED):  # as it is among the steps, for half a minute
                    yield Cell(network, precision, batch, rows, method)
