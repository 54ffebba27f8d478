"""A run that goes on from a checkpoint, and checkpoints that change devices."""

from __future__ import annotations

import io
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.on_gpu.contract.check import Check, Outcome, relative_error
from benchmarks.on_gpu.contract.losses import MINERS
from benchmarks.on_gpu.contract.memories import DIM, KINDS, Batch, batches, build, rows_of, step

_STEPS = 24  # the memory goes round
_MINERS = ("no miner", "PairMarginMiner", "TripletMarginMiner")
_TOLERANCE = 2e-4
_CPU = torch.device("cpu")


def checks() -> Iterator[Check]:
    for kind in KINDS:
        for miner in _MINERS:
            yield Check("resumes bit for bit", f"{kind}, {miner}", "float32", partial(_resume, kind, miner))
        yield Check("checkpoint of a CPU, and back", kind, "float32", partial(_move, kind))


def _resume(kind: str, miner: str, device: torch.device) -> Outcome:
    """Compares a run with one that was saved half way and went on in new objects."""
    given = [batch.on(device) for batch in batches(_STEPS)]
    with _deterministic():
        whole = _Training(kind, miner, device)
        losses = [whole.step(batch) for batch in given]
        first = _Training(kind, miner, device)
        for batch in given[: _STEPS // 2]:
            first.step(batch)
        second = _Training(kind, miner, device)
        second.load(first.save())
        resumed = [second.step(batch) for batch in given[_STEPS // 2 :]]
    pairs = [
        *zip(losses[_STEPS // 2 :], resumed, strict=True),
        (whole.layer.weight, second.layer.weight),
        (whole.memory.embedding_memory, second.memory.embedding_memory),
        (whole.memory.label_memory, second.memory.label_memory),
    ]
    differing = sum(not torch.equal(one, other) for one, other in pairs)
    return Outcome(differing, 0, f"{differing} of {len(pairs)} tensors differ" if differing else "")


class _Training:
    """A layer, a memory and an optimizer."""

    def __init__(self, kind: str, miner: str, device: torch.device) -> None:
        torch.manual_seed(0)
        self.layer = nn.Linear(DIM, DIM).to(device)
        self.memory = build(kind, miner=MINERS[miner]()).to(device)
        self.optimizer = torch.optim.SGD(self.layer.parameters(), 0.01, momentum=0.9)

    def step(self, batch: Batch) -> Tensor:
        loss: Tensor = self.memory(self.layer(batch.embeddings.detach()), batch.labels)
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        return loss.detach()

    def save(self) -> bytes:
        file = io.BytesIO()
        torch.save([part.state_dict() for part in self._parts()], file)
        return file.getvalue()

    def load(self, saved: bytes) -> None:
        states = torch.load(io.BytesIO(saved), map_location="cpu", weights_only=True)
        for part, state in zip(self._parts(), states, strict=True):
            part.load_state_dict(state)

    def _parts(self) -> list[Any]:
        return [self.layer, self.memory, self.optimizer]


@contextmanager
def _deterministic() -> Iterator[None]:
    torch.use_deterministic_algorithms(True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(False)


def _move(kind: str, device: torch.device) -> Outcome:
    """A memory of the CPU goes on upon the device as on the CPU, and comes back with the same numbers."""
    given = list(batches(_STEPS))
    here, there, back = build(kind), build(kind).to(device), build(kind)
    for batch in given[: _STEPS // 2]:
        here(*batch.on(_CPU))
    there.load_state_dict(here.state_dict())
    error = 0.0
    for batch in given[_STEPS // 2 :]:
        found, expected = step(there, batch.on(device)), step(here, batch.on(_CPU))
        error = max(error, relative_error([*found, rows_of(there)], [*expected, rows_of(here)]))
    back.load_state_dict(there.state_dict())
    if not torch.equal(back.embedding_memory, there.embedding_memory.cpu()):
        return Outcome(float("inf"), _TOLERANCE, "the rows have changed on the way back")
    last = given[0]
    found, expected = step(back, last.on(_CPU)), step(there, last.on(device))
    return Outcome(max(error, relative_error(found, expected)), _TOLERANCE)
