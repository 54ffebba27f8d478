"""The host reads nothing of the device in a step with a fused loss, and so does not wait for it.

A GPU says so itself. A CPU is treated as a GPU here, and every read of a number is refused.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest.mock import patch

import pytest
import torch
from as_on_a_gpu import read_as
from kinds import KINDS
from pytorch_metric_learning import losses, miners
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from pml_xbn.memory._findings import Findings, Found

B, D, M = 16, 8, 40
# Operations whose result the host has to know, or whose shape depends on numbers.
READS = ("_local_scalar_dense", "nonzero", "masked_select", "is_nonzero", "equal", "_unique2")
MINERS: dict[str, Callable[[], Any]] = {
    "no miner": lambda: None,
    "pair margin": lambda: miners.PairMarginMiner(0.6, 1.3),
    "multi-similarity": miners.MultiSimilarityMiner,
    "batch hard": miners.BatchHardMiner,
    "triplet margin": miners.TripletMarginMiner,
}
LOSSES = [name for name in losses.CrossBatchMemory.supported_losses() if name != "AngularLoss"]


class Refusing(TorchDispatchMode):
    """Refuses operations that a GPU would make the host wait for."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.overloadpacket.__name__
        indices = args[1] if len(args) > 1 and isinstance(args[1], list | tuple) else ()
        is_mask = any(isinstance(x, Tensor) and x.dtype == torch.bool for x in indices)
        if name in READS or is_mask:
            raise AssertionError(f"the step asks for {name}, for which a GPU waits")
        return func(*args, **(kwargs or {}))


class RefusingLists(TorchFunctionMode):
    """Refuses a tensor that is read as a list, which no operation shows."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is Tensor.tolist:
            raise AssertionError("the step reads a list, for which a GPU waits")
        return func(*args, **(kwargs or {}))


@contextmanager
def refused_reads(device: torch.device) -> Iterator[None]:
    """A block in which a read of a number of the device raises an error."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch's, that the mode is a prototype
            torch.cuda.set_sync_debug_mode("error")
            try:
                yield
            finally:
                torch.cuda.set_sync_debug_mode("default")
        return
    with pytest.MonkeyPatch.context() as monkeypatch, ExitStack() as stack:
        read_as(monkeypatch, lambda _: False)
        # A GPU looks at a copy that has come to the host.
        stack.enter_context(patch.object(Findings, "take_", lambda *_, **__: Found(False, False, False)))
        stack.enter_context(RefusingLists())
        stack.enter_context(Refusing())
        yield


def assert_waits_for_nothing(memory: nn.Module, device: torch.device) -> None:
    """Over two wrap-arounds, once kernels are loaded and memory has been taken."""
    memory.to(device)
    for step in range(8):
        embeddings = (torch.randn(B, D) + step / 10).to(device).requires_grad_()
        labels = torch.randint(0, 4, (B,)).to(device)
        if step < 2:
            memory(embeddings, labels).backward()
            continue
        with refused_reads(device):
            memory(embeddings, labels).backward()


@pytest.mark.parametrize(
    ("loss", "miner"),
    [("SupConLoss", miner) for miner in MINERS]
    + [(loss, miner) for loss in LOSSES for miner in ("no miner", "pair margin") if loss != "SupConLoss"],
)
def test_with_every_loss_but_that_of_angles(loss: str, miner: str, device: torch.device) -> None:
    assert_waits_for_nothing(KINDS["xbn"].memory(getattr(losses, loss)(), D, M, MINERS[miner]()), device)


@pytest.mark.parametrize("nonfinite", ["raise", "skip", "ignore"])
@pytest.mark.parametrize("kind", KINDS)
def test_of_every_kind_of_memory(kind: str, nonfinite: str, device: torch.device) -> None:
    assert_waits_for_nothing(KINDS[kind].memory(losses.SupConLoss(), D, M, nonfinite=nonfinite), device)


def test_once_a_delay_is_over(device: torch.device) -> None:
    assert_waits_for_nothing(KINDS["xbn"].memory(losses.SupConLoss(), D, M, delay=1), device)


def test_a_step_that_reads_is_refused(device: torch.device) -> None:
    memory = KINDS["xbn"].memory(losses.SupConLoss(), D, M, nonfinite="raise_at_once")
    with pytest.raises((AssertionError, RuntimeError), match=r"waits|synchronizing"):
        assert_waits_for_nothing(memory, device)
