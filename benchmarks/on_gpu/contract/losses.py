"""Value and gradient of every loss with its miners."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
from pytorch_metric_learning import losses, miners
from torch import nn

from benchmarks.on_gpu.contract.check import Check, Outcome, relative_error
from benchmarks.on_gpu.contract.memories import BATCH_SIZE, batches, build, rows_of, step

LOSSES: list[str] = losses.CrossBatchMemory.supported_losses()
MINERS: dict[str, Callable[[], nn.Module | None]] = {
    "no miner": lambda: None,
    # In reach of distances between the unit vectors of the batches.
    "PairMarginMiner": lambda: miners.PairMarginMiner(pos_margin=0.6, neg_margin=1.3),
    "AngularMiner": miners.AngularMiner,
    "BatchHardMiner": miners.BatchHardMiner,
    "DistanceWeightedMiner": miners.DistanceWeightedMiner,
    "MultiSimilarityMiner": miners.MultiSimilarityMiner,
    "TripletMarginMiner": miners.TripletMarginMiner,
}
_ALL = ("no miner", "PairMarginMiner")
MINERS_OF: dict[str, tuple[str, ...]] = dict.fromkeys(LOSSES, _ALL) | {
    "AngularLoss": (*_ALL, "AngularMiner"),
    "MarginLoss": (*_ALL, "DistanceWeightedMiner"),
    "MultiSimilarityLoss": (*_ALL, "MultiSimilarityMiner"),
    "TripletMarginLoss": (*_ALL, "BatchHardMiner", "TripletMarginMiner"),
}
_DRAWS = "DistanceWeightedMiner"  # whose choice is random
_OTHER_PAIRS = "LiftedStructureLoss"  # PML's takes the pairs of a batch for those with the memory
_STEPS, _TOLERANCE = 8, 2e-4  # fill the memory and go round; float32


def checks() -> Iterator[Check]:
    """Yields two checks for every loss and miner: a step of training, and PML's own loss of the same rows."""
    for loss in LOSSES:
        for miner in MINERS_OF[loss]:
            case = f"{loss}, {miner}"
            if miner != _DRAWS:
                yield Check("loss and gradient in training", case, "float32", partial(_train, loss, miner))
            if loss != _OTHER_PAIRS:
                yield Check("loss and gradient as PML's", case, "float32", partial(_as_pml, loss, miner))


def parts(loss: str, miner: str) -> tuple[Any, Any]:
    """Returns a new loss and a new miner."""
    return getattr(losses, loss)(), MINERS[miner]()


def _train(loss: str, miner: str, device: torch.device) -> Outcome:
    """Compares with the same memory in float64 on the CPU."""
    memory = build("XBN", *parts(loss, miner)).to(device)
    exact = build("XBN", *parts(loss, miner), memory_dtype=torch.float64)
    errors = []
    for batch in batches(_STEPS):
        found = step(memory, batch.on(device))
        expected = step(exact, batch.on(torch.device("cpu"), torch.float64))
        errors.append(relative_error([*found, rows_of(memory)], [*expected, rows_of(exact)]))
    return Outcome(max(errors), _TOLERANCE)


def _as_pml(loss: str, miner: str, device: torch.device) -> Outcome:
    """Compares with PML's loss in float64 on the CPU, of the rows that the memory says it holds.

    Every other row of a batch is stored, and the rest are compared, as PML has no way to leave out a
    row's comparison with its own copy but for one batch.
    """
    memory = build("XBN", *parts(loss, miner)).to(device)
    pml_loss, pml_miner = parts(loss, miner)
    chosen: list[Any] = []
    if miner == _DRAWS:
        memory.miner.register_forward_hook(lambda module, args, pairs: chosen.append(pairs))
    is_stored = torch.arange(BATCH_SIZE) % 2 == 1
    errors = []
    for batch in batches(_STEPS):
        on_device = batch.on(device)
        value, gradient = step(memory, on_device, enqueue_mask=is_stored.to(device))
        anchors = batch.embeddings[~is_stored].double().requires_grad_()
        rows, row_labels = rows_of(memory).double().cpu(), memory.label_memory[: memory.num_rows].cpu()
        compared = anchors, batch.labels[~is_stored]
        pairs = None if pml_miner is None else pml_miner(*compared, rows, row_labels)
        if miner == _DRAWS:
            pairs = tuple(x.cpu() for x in chosen.pop())
        expected = pml_loss(*compared, pairs, rows, row_labels)
        (of_anchors,) = torch.autograd.grad(expected, anchors)
        whole = torch.zeros(gradient.shape, dtype=torch.float64)
        whole[~is_stored] = of_anchors
        errors.append(relative_error([value, gradient], [expected, whole]))
    return Outcome(max(errors), _TOLERANCE)
