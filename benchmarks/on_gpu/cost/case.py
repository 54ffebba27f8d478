"""What is measured: which loss and miner, on how many rows, in which precision."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import NamedTuple

from benchmarks.cost.loss_case import LOSSES, USUAL_MINERS

PML, PRODUCTS = "PML", "two products"
OURS = ("XBN", "AXBN", "PC-XBN", "SC-XBN")
PRECISIONS = ("float32", "bfloat16 rows", "autocast")
_ROWS, _BATCHES, _ROWS_OF_LOSSES = (60_000, 1_024, 8_192, 1_000_000), (64, 512), 60_000
_TINY_ROWS, _TINY_BATCHES, _TINY_ROWS_OF_LOSSES = (64, 128), (16, 32), 128


class Case(NamedTuple):
    """A memory of so many rows, and what is computed on it.

    PML's class has no rows in bfloat16. In that precision it keeps its rows in float32.
    """

    loss: str
    miner: str
    rows: int
    classes: int
    batch: int
    precision: str
    methods: tuple[str, ...]


def cases(is_tiny: bool) -> Iterator[Case]:
    """Yields the cases in the order of their worth: the sizes that are asked about most come first."""
    first, *others = PRECISIONS
    yield from _with_and_without_miner(first, is_tiny)
    size = _TINY_ROWS_OF_LOSSES if is_tiny else _ROWS_OF_LOSSES
    batch = (_TINY_BATCHES if is_tiny else _BATCHES)[0]
    for classes, loss in itertools.product((size // 10, 10), LOSSES):
        yield Case(loss, USUAL_MINERS[loss], size, classes, batch, first, ("XBN",))
    for precision in others:
        yield from _with_and_without_miner(precision, is_tiny)


def _with_and_without_miner(precision: str, is_tiny: bool) -> Iterator[Case]:
    yield from _of_sizes("none", precision, (PRODUCTS, *OURS), is_tiny)
    yield from _of_sizes("PairMarginMiner", precision, OURS, is_tiny)


def _of_sizes(miner: str, precision: str, methods: tuple[str, ...], is_tiny: bool) -> Iterator[Case]:
    rows, batches = (_TINY_ROWS, _TINY_BATCHES) if is_tiny else (_ROWS, _BATCHES)
    for size, batch in itertools.product(rows, batches):
        yield Case("SupConLoss", miner, size, max(10, size // 10), batch, precision, methods)
