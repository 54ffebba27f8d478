"""A step that is interrupted or fails leaves the state of before or of after it, and training goes on."""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
import torch
from every_memory import DTYPES, EVERY, are_equal, batch, maker, state, step
from pytorch_metric_learning.losses import ContrastiveLoss
from pytorch_metric_learning.miners import MultiSimilarityMiner
from torch import Tensor, nn

import pml_xbn
from pml_xbn import PerClassXBN, XBNWrapper
from pml_xbn.losses import AdaptiveCrossBatchMemory
from pml_xbn.losses._memory_hooks import MemoryHooks

PACKAGE = str(Path(pml_xbn.__file__).parent)


class InterruptAt:
    """Raises KeyboardInterrupt at the k-th line of the package that runs; counts them if k is None."""

    def __init__(self, k: int | None) -> None:
        self.k, self.num_lines = k, 0
        self.lines_of_hooks: set[int] = set()

    def __call__(self, frame: FrameType, event: str, _: Any) -> Any:
        if not frame.f_code.co_filename.startswith(PACKAGE):
            return None
        if event == "line":
            self.num_lines += 1
            if frame.f_code is MemoryHooks.adapted.__code__:
                self.lines_of_hooks.add(self.num_lines)
            if self.num_lines == self.k:
                raise KeyboardInterrupt
        return self


@contextmanager
def tracing(trace: InterruptAt) -> Iterator[None]:
    before = sys.gettrace()
    gc.disable()  # it would run lines of what earlier steps have left
    sys.settrace(trace)
    try:
        yield
    finally:
        sys.settrace(before)
        gc.enable()


def interrupted(memory: AdaptiveCrossBatchMemory, k: int | None) -> tuple[int, set[int]]:
    """Interrupts the fifth step; returns how many lines have been run, and which of them ran the hooks."""
    embeddings, labels = batch(4)
    trace = InterruptAt(k)

    def traced_step() -> None:
        with tracing(trace):
            memory(embeddings, labels)

    # Python may be interrupted between the body of a `with` and its end, and then never ends it. What no_grad
    # and saved_tensors_hooks leave behind then belongs to the thread, and goes with it.
    with ThreadPoolExecutor(1) as thread, nullcontext() if k is None else pytest.raises(KeyboardInterrupt):
        thread.submit(traced_step).result()
    return trace.num_lines, trace.lines_of_hooks


def with_hook(memory: AdaptiveCrossBatchMemory) -> AdaptiveCrossBatchMemory:
    memory.register_memory_hook(Counting())
    return memory


class OfSamples(XBNWrapper):
    """A memory of two samples of every class."""

    def forward(self, embeddings: Tensor, labels: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        ids = 2 * labels + torch.arange(len(labels)) % 2
        return super().forward(embeddings, labels, *args, sample_ids=ids, **kwargs)


MAKERS: dict[str, Callable[[], AdaptiveCrossBatchMemory]] = {
    "samples": maker(OfSamples, update="average", update_momentum=0.5),
    "samples, gradient": maker(OfSamples, update="gradient", update_learning_rate=0.1),
    "xbn": EVERY["xbn"],
    "axbn": EVERY["axbn"],
    "per class": EVERY["per class"],
    "half": lambda: EVERY["xbn"](memory_dtype=torch.bfloat16),
    "unit norm, xbm*": lambda: EVERY["axbn"](normalize_memory=True, batch_loss_weight=1.0),
    "mined": maker(XBNWrapper, miner=MultiSimilarityMiner()),
    "hooked": lambda: with_hook(EVERY["xbn"]()),
}


@pytest.mark.parametrize("has_been_written_to", [False, True])
@pytest.mark.parametrize("kind", MAKERS)
def test_an_interrupted_step_has_happened_or_not(kind: str, has_been_written_to: bool) -> None:
    def after_four_steps() -> AdaptiveCrossBatchMemory:
        memory = MAKERS[kind]()
        for number in range(4):
            step(memory, number)
        if has_been_written_to:
            memory.embedding_memory[3] = 2.0
        return memory

    without, whole = after_four_steps(), after_four_steps()
    num_lines, lines_of_hooks = interrupted(whole, None)
    assert num_lines > 100
    possible = [[state(memory), (step(memory, 5), state(memory))[1]] for memory in (without, whole)]
    seen = []
    # Lines of what runs the hooks, those near the commit, which comes last, and some of the others.
    some = {*range(1, num_lines, 1 + num_lines // 40), *range(num_lines - 12, num_lines + 1)}
    for k in sorted(some | lines_of_hooks):
        memory = after_four_steps()
        interrupted(memory, k)
        at_once, later = state(memory), (step(memory, 5), state(memory))[1]
        fits = [are_equal(at_once, now) and are_equal(later, then) for now, then in possible]
        assert any(fits), f"line {k} of {num_lines}"
        seen.append(fits[1])
    assert seen == sorted(seen)  # not, and then for good
    assert not seen[0]
    assert seen[-1]


class Failing(ContrastiveLoss):
    """Raises what it is told to, before or after its work."""

    error: BaseException | None = None
    is_late = False

    def forward(self, *args: Any) -> Tensor:
        loss = super().forward(*args) if self.is_late or self.error is None else None
        if self.error is not None:
            raise self.error
        return loss


class Counting(nn.Module):
    """A hook with a state of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("count", torch.zeros(()))
        self.error: BaseException | None = None

    def forward(self, rows: Tensor, *_: Tensor) -> Tensor:
        self.count += 1
        if self.error is not None:
            rows.fill_(7.0)
            raise self.error
        return rows + 0.01


ERRORS = [KeyboardInterrupt(), MemoryError(), ValueError("no"), SystemExit()]


@pytest.mark.parametrize("saved", ["never", "before"])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("kind", EVERY)
def test_a_loss_that_fails_leaves_everything_as_it_was(kind: str, dtype: torch.dtype, saved: str) -> None:
    memory = EVERY[kind](Failing(), memory_dtype=dtype)
    twin = EVERY[kind](Failing(), memory_dtype=dtype)
    for number in range(8):
        step(memory, number)
        step(twin, number)
        before = {} if saved == "never" else memory.state_dict()
        pointer = memory.queue.contents.rows.stored.data_ptr()
        for memory.loss.is_late in (False, True):
            for memory.loss.error in ERRORS[:2]:
                with pytest.raises(type(memory.loss.error)):
                    memory(*batch(number + 20))
        memory.loss.error = None
        assert are_equal(state(memory), state(twin))
        assert saved == "never" or are_equal(before, state(twin))
        assert memory.queue.contents.rows.stored.data_ptr() == pointer


@pytest.mark.parametrize("error", ERRORS, ids=repr)
@pytest.mark.parametrize("kind", EVERY)
def test_a_hook_that_fails_leaves_everything_as_it_was(kind: str, error: BaseException) -> None:
    memory, hook = EVERY[kind](), Counting()
    memory.register_memory_hook(hook)
    for number in range(5):
        step(memory, number)
        before = state(memory)
        hook.error = error
        with pytest.raises(type(error)):
            memory(*batch(number + 20))
        hook.error = None
        assert are_equal(state(memory), before)


@pytest.mark.parametrize("error", ERRORS, ids=repr)
def test_a_miner_that_fails_leaves_everything_as_it_was(error: BaseException) -> None:
    class Miner(MultiSimilarityMiner):
        fails = False

        def mine(self, *args: Any) -> Any:
            if self.fails:
                raise error
            return super().mine(*args)

    memory = EVERY["per class"](miner=Miner())
    for number in range(5):
        step(memory, number)
        before = state(memory)
        memory.miner.fails = True
        with pytest.raises(type(error)):
            memory(*batch(number + 20))
        memory.miner.fails = False
        assert are_equal(state(memory), before)


def test_a_graph_of_before_has_its_gradient_after_a_failed_step() -> None:
    memory = EVERY["per class"](Failing())
    for number in range(4):
        step(memory, number)
    embeddings, labels = batch(4)
    loss = memory(embeddings, labels)
    (expected,) = torch.autograd.grad(loss, embeddings, retain_graph=True)
    memory.loss.error, memory.loss.is_late = KeyboardInterrupt(), True
    with pytest.raises(KeyboardInterrupt):
        memory(*batch(5))
    memory.loss.error = None
    (now,) = torch.autograd.grad(loss, embeddings, retain_graph=True)
    assert torch.equal(now, expected)
    step(memory, 6)
    (later,) = torch.autograd.grad(loss, embeddings)
    torch.testing.assert_close(later, expected)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_rows_of_few_groups_that_are_written_in_place_are_taken_back(dtype: torch.dtype) -> None:
    memory = PerClassXBN(Failing(), 4, 100, memory_dtype=dtype)
    memory.fill_memory(torch.randn(100, 4), torch.arange(100) // 4)
    embeddings, labels = torch.randn(6, 4, requires_grad=True), torch.tensor([9, 9, 9, 30, 31, 32])
    loss = memory(embeddings, labels)
    (expected,) = torch.autograd.grad(loss, embeddings, retain_graph=True)
    before, stored = state(memory), memory.queue.contents.rows.stored
    memory.loss.error = ValueError("no")
    for memory.loss.is_late in (False, True):
        with pytest.raises(ValueError, match="no"):
            memory(torch.randn(6, 4), labels)
        assert are_equal(state(memory), before)
        assert torch.equal(torch.autograd.grad(loss, embeddings, retain_graph=True)[0], expected)
    memory.loss.error = None
    memory(torch.randn(6, 4), labels)
    assert memory.queue.contents.rows.stored is stored
    places = memory.queue.contents.newest
    changed = (stored != before["queue.rows"]).any(dim=1)
    assert changed[36:40].all()  # rows of a group of the batch
    assert changed[places].all()
    assert changed.sum() < 30
    tight = 100 * max(torch.finfo(dtype).eps, torch.finfo(torch.float32).eps)
    (later,) = torch.autograd.grad(loss, embeddings)
    torch.testing.assert_close(later, expected, rtol=tight, atol=tight)
