"""Whether the host waits for the device."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from benchmarks.on_gpu.contract.check import Check, Outcome
from benchmarks.on_gpu.contract.losses import LOSSES, MINERS_OF, parts
from benchmarks.on_gpu.contract.memories import KINDS, batches, build
from pml_xbn.memory._findings import Findings, Found

_STEPS = 20  # the memory fills and goes round
_FIRST = 2  # steps that are not looked at: kernels and memory are set up
_WAIT = "called a synchronizing"  # is in what torch warns of and raises


def checks() -> Iterator[Check]:
    for kind in KINDS:
        yield Check("no step waits", f"{kind}, nonfinite=ignore", "float32", partial(_refuse, kind))
        yield Check("waits of a step", f"{kind}, nonfinite=raise", "float32", partial(_count, kind))
    for loss in LOSSES:
        for miner in MINERS_OF[loss]:
            case = f"XBN, {loss}, {miner}, nonfinite=ignore"
            yield Check("waits of a step, noted", case, "float32", partial(_note, loss, miner))


def _refuse(kind: str, device: torch.device) -> Outcome:
    """Forward and backward while torch raises an error at every wait; a CPU counts them."""
    memory = build(kind, nonfinite="ignore").to(device)
    waits = 0
    for number, batch in enumerate(batches(_STEPS)):
        given = batch.on(device)
        if device.type != "cuda" or number < _FIRST:
            waits += _waits_of(memory, given, device) if number >= _FIRST else _step(memory, given)
            continue
        torch.cuda.synchronize(device)
        try:
            with _sync_debug_mode("error"):
                _step(memory, given)
        except RuntimeError as error:
            if _WAIT not in str(error):
                raise
            return Outcome(1, 0, str(error).splitlines()[0])
    return Outcome(waits, 0)


def _count(kind: str, device: torch.device) -> Outcome:
    """The waits of a step that checks its input; one is allowed."""
    memory = build(kind).to(device)
    return Outcome(_most_waits(memory, device), 1)


def _note(loss: str, miner: str, device: torch.device) -> Outcome:
    """The waits of a loss and a miner, which may be PML's own, whose lists of pairs have to be counted."""
    memory = build("XBN", *parts(loss, miner), nonfinite="ignore").to(device)
    return Outcome(_most_waits(memory, device), float("inf"))


def _most_waits(memory: Any, device: torch.device) -> int:
    found = [0]
    for number, batch in enumerate(batches(_STEPS)):
        given = batch.on(device)
        if number < _FIRST:
            _step(memory, given)
        else:
            found.append(_waits_of(memory, given, device))
    return max(found)


def _step(memory: Any, batch: Any) -> int:
    memory(*batch).backward()
    return 0


def _waits_of(memory: Any, batch: Any, device: torch.device) -> int:
    """Returns the waits of forward and backward."""
    if device.type != "cuda":
        with _as_on_a_gpu(), _Reads() as reads:
            _step(memory, batch)
        return reads.count
    with _sync_debug_mode("warn") as told:
        _step(memory, batch)
    return sum(_WAIT in str(warning.message) for warning in told)


@contextmanager
def _as_on_a_gpu() -> Iterator[None]:
    """Has a memory on a CPU read no number that it would not read on a GPU."""
    modules = [x for name, x in list(sys.modules.items()) if name.startswith("pml_xbn.")]
    with ExitStack() as patches:
        for module in modules:
            if hasattr(module, "can_read"):
                patches.enter_context(patch.object(module, "can_read", lambda _: False))
        # On a GPU it looks at a copy that has come to the host.
        patches.enter_context(patch.object(Findings, "take_", lambda *_, **__: Found(False, False, False)))
        yield


@contextmanager
def _sync_debug_mode(mode: str) -> Iterator[list[warnings.WarningMessage]]:
    """Has torch warn of every wait, or raise an error; the warnings are caught."""
    before = torch.cuda.get_sync_debug_mode()
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        torch.cuda.set_sync_debug_mode(mode)  # which warns that it is a prototype
        try:
            yield told
        finally:
            torch.cuda.set_sync_debug_mode(before)


class _Reads(TorchFunctionMode):
    """Counts the tensors that are read as numbers, for which a CPU need not wait but a GPU would."""

    count = 0

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += func in (Tensor.tolist, Tensor.item, Tensor.__bool__, Tensor.__int__, Tensor.__float__)
        return func(*args, **(kwargs or {}))
