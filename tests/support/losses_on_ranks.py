"""Compares the losses and gradients of ranks with those of a single process, for the tests of both."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import loss_worker
import torch
from on_ranks import on_ranks

# Every so many of the 4,536 cases are run; a prime, so that all layouts and modes are among them.
SHARE = int(os.environ.get("PML_XBN_RANK_CASES_SHARE", "61"))
TIMEOUT = 1200 if SHARE == 1 else 300  # seconds, for a machine that is busy

Results = list[dict[tuple[str, ...], dict[str, Any]]]


def run(ranks: int, folder: Path) -> Results:
    """What every rank saw, by case."""
    on_ranks(loss_worker.main, folder, SHARE, ranks=ranks, timeout=TIMEOUT)
    results = [torch.load(folder / f"rank{rank}.pt", weights_only=True) for rank in range(ranks)]
    assert len(results[0]) == len(loss_worker.cases_of(ranks, SHARE))
    # There is something to compare, though the first step has classes of one kind alone.
    gradients = [expected[1:].abs().max() for _, _, expected in expectations(results)]
    assert sum(gradient > 0 for gradient in gradients) > len(gradients) / 2
    return results


def check(results: Results, loss: str) -> None:
    """Every rank has the value of one process, and the mean of their gradients is its gradient."""
    wrong = {}
    for case, step, expected in expectations(results):
        for rank, result in enumerate(results):
            found = result[case]["ranks"][step]
            errors = difference(found[:1], expected[:1]), difference(found[1:], expected[1:])
            if case[0] == loss and not max(errors) < 1e-9:
                wrong[(*case, step, rank)] = errors
    assert not wrong, wrong


def expectations(results: Results) -> Iterator[tuple[tuple[str, ...], int, torch.Tensor]]:
    """Loss and gradient of one process in every step of every case."""
    for number, case in enumerate(results[0]):
        for step, expected in enumerate(results[number % len(results)][case]["alone"]):
            yield case, step, expected


def difference(found: torch.Tensor, expected: torch.Tensor) -> float:
    """Relative, but for what is tiny."""
    return ((found - expected).abs().max() / expected.abs().max().clamp_min(1e-3)).item()
