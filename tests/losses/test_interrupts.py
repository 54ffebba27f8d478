"""A step in which a hook, the miner or the loss raises leaves everything as it was, and training goes on."""

from __future__ import annotations

import sys
from typing import Any

import pytest
import torch
from every_memory import DTYPES, EVERY, are_equal, batch, state, step
from pytorch_metric_learning.miners import MultiSimilarityMiner
from torch import Tensor
from troubled import TroubledHook, TroubledLoss

from pml_xbn import PerClassXBN
from pml_xbn._arithmetic import slices
from pml_xbn.memory import _rows

ERRORS = [KeyboardInterrupt(), MemoryError(), ValueError("no"), SystemExit()]


@pytest.mark.parametrize("saved", ["never", "before"])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("kind", EVERY)
def test_a_loss_that_fails_leaves_everything_as_it_was(kind: str, dtype: torch.dtype, saved: str) -> None:
    memory, twin = (EVERY[kind](TroubledLoss(), memory_dtype=dtype) for _ in range(2))
    for number in range(8):
        step(memory, number)
        step(twin, number)
        before = {} if saved == "never" else memory.state_dict()
        for memory.loss.is_late in (False, True):
            for memory.loss.error in ERRORS[:2]:
                with pytest.raises(type(memory.loss.error)):
                    memory(*batch(number + 20))
        memory.loss.error = None
        assert are_equal(state(memory), state(twin))
        assert saved == "never" or are_equal(before, state(twin))


@pytest.mark.parametrize("error", ERRORS, ids=repr)
@pytest.mark.parametrize("kind", EVERY)
def test_a_hook_that_fails_leaves_everything_as_it_was(kind: str, error: BaseException) -> None:
    memory, hook = EVERY[kind](), TroubledHook(shift=0.01)
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


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_rows_of_few_groups_that_are_written_in_place_are_taken_back(dtype: torch.dtype) -> None:
    memory = PerClassXBN(TroubledLoss(), 4, 100, memory_dtype=dtype)
    memory.fill_memory(torch.randn(100, 4), torch.arange(100) // 4)
    embeddings, labels = torch.randn(6, 4, requires_grad=True), torch.tensor([9, 9, 9, 30, 31, 32])
    loss = memory(embeddings, labels)
    (expected,) = torch.autograd.grad(loss, embeddings, retain_graph=True)
    before = state(memory)
    memory.loss.error = ValueError("no")
    for memory.loss.is_late in (False, True):
        with pytest.raises(ValueError, match="no"):
            memory(torch.randn(6, 4), labels)
        assert are_equal(state(memory), before)
        assert torch.equal(torch.autograd.grad(loss, embeddings, retain_graph=True)[0], expected)
    memory.loss.error = None
    memory(torch.randn(6, 4), labels)
    tight = 100 * max(torch.finfo(dtype).eps, torch.finfo(torch.float32).eps)
    (later,) = torch.autograd.grad(loss, embeddings)
    torch.testing.assert_close(later, expected, rtol=tight, atol=tight)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_rows_that_were_made_equal_are_taken_back_as_they_were(dtype: torch.dtype) -> None:
    """Their map cannot hold new rows, so the next step stores them anew first."""
    memory, twin = (EVERY["xbn"](TroubledLoss(), memory_dtype=dtype) for _ in range(2))
    for number in range(4):
        embeddings, labels = (x.detach() for x in batch(number))
        if number == 3:
            embeddings[:, 1] = 5.0
        for which in (memory, twin):
            which(embeddings, labels)
    before, memory.loss.error = state(memory), ValueError("no")
    with pytest.raises(ValueError, match="no"):
        memory(*batch(20))
    assert are_equal(state(memory), before)
    memory.loss.error = None
    for number in (4, 5):
        for a, b in zip(step(memory, number), step(twin, number), strict=True):
            assert torch.equal(a, b)
        assert are_equal(state(memory), state(twin))


@pytest.mark.parametrize("after", [0, 1, 2, "all"])
def test_rows_that_are_being_stored_anew_are_taken_back(
    after: int | str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Storing anew writes all rows, a part at a time: here 5 of 14."""
    memory, twin = EVERY["xbn"](), EVERY["xbn"]()
    for number in range(2):
        for which in (memory, twin):
            embeddings, labels = batch(number)
            embeddings.data[:, 1] = 5.0  # no spread
            which(embeddings, labels)
    before, rows = state(memory), memory.embedding_memory.clone()

    def parts(num_rows: int, size: int) -> Any:
        is_anew = sys._getframe(1).f_code.co_name == "written_standardized_" and size > 1024
        for number, part in enumerate(slices(num_rows, 5 if is_anew else size)):
            if is_anew and number == after:
                raise KeyboardInterrupt
            yield part

    def no_sums(_: Tensor) -> Any:
        raise MemoryError

    with monkeypatch.context() as patch:
        if after == "all":
            patch.setattr(_rows, "sums_of", no_sums)
        else:
            patch.setattr(_rows, "slices", parts)
        with pytest.raises((KeyboardInterrupt, MemoryError)):
            memory.fill_memory(*batch(2))
    assert are_equal({**state(memory), "queue.rows": before["queue.rows"]}, before)
    torch.testing.assert_close(memory.embedding_memory, rows)
    for which in (memory, twin):
        step(which, 2)
    torch.testing.assert_close(memory.embedding_memory, twin.embedding_memory)
