"""Which steps are measured."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

PML, PRODUCTS, EAGER, COMPILED, CAPTURED = "PML", "two products", "eager", "compiled", "captured"
ALL = (PML, PRODUCTS, EAGER, COMPILED, CAPTURED)


class Cell(NamedTuple):
    """A step of SupCon on a full memory of rows of 512 numbers; XBN's, but for PML's class and the products.

    Attributes:
        rows: in memory.
        batch: anchors, all of which are stored.
        dtype: of the stored rows. Those of PML's class are always in float32.
        miner: a miner of PML by name, or "none".
        nonfinite: what the memory does with a batch of NaN.
        method: PML's class, the products of the batch and the rows alone, or how XBN's step is run.
    """

    rows: int
    batch: int
    dtype: str
    miner: str
    nonfinite: str
    method: str


def cells(is_tiny: bool) -> Iterator[Cell]:
    """Yields the steps in the order of their worth."""
    small, usual, large = (
        ((64, 16), (128, 16), (256, 32)) if is_tiny else ((1024, 64), (60_000, 64), (10**6, 512))
    )
    compiled = () if is_tiny else (COMPILED,)  # in tiny steps one is compiled, which takes half a minute
    for rows, batch in (usual, small):
        for method in ALL if rows == small[0] else (PML, PRODUCTS, EAGER, *compiled, CAPTURED):
            yield Cell(rows, batch, "float32", "none", "raise", method)
        for nonfinite in ("raise_at_once", "ignore"):
            yield Cell(rows, batch, "float32", "none", nonfinite, EAGER)
    for method in (PML, EAGER, *compiled, CAPTURED):
        yield Cell(*usual, "float32", "PairMarginMiner", "raise", method)
    for method in (PML, PRODUCTS, EAGER, *compiled, CAPTURED):
        yield Cell(*large, "float32", "none", "raise", method)
    for method in (PRODUCTS, EAGER, *compiled):
        yield Cell(*large, "bfloat16", "none", "raise", method)
