"""The hook interface: order, removal, errors, and what a failure leaves behind."""

from __future__ import annotations

import copy

import pytest
import torch
from pytorch_metric_learning.losses import ContrastiveLoss
from torch import Tensor, nn

from pml_xbn import AXBNWrapper
from pml_xbn.losses import AdaptiveCrossBatchMemory

D = 3


def step(loss_fn: nn.Module, size: int = 4) -> Tensor:
    return loss_fn(torch.randn(size, D), torch.arange(size) % 2)


@pytest.fixture
def memory() -> AdaptiveCrossBatchMemory:
    return AdaptiveCrossBatchMemory(ContrastiveLoss(), D, 10)


def test_hooks_run_in_order_and_each_sees_what_the_last_one_left(memory: AdaptiveCrossBatchMemory) -> None:
    memory.register_memory_hook(lambda rows, *_: rows * 0 + 3)
    memory.register_memory_hook(lambda rows, *_: None)
    memory.register_memory_hook(lambda rows, *_: rows * 2)
    step(memory)
    step(memory)
    assert torch.equal(memory.embedding_memory[:4], torch.full((4, D), 6.0))


def test_hooks_get_occupied_rows_and_the_detached_batch(memory: AdaptiveCrossBatchMemory) -> None:
    seen = []
    memory.register_memory_hook(lambda *args: seen.append(args))
    for size in (4, 3, 5):
        embeddings = torch.randn(size, D, dtype=torch.float64, requires_grad=True)
        labels = torch.arange(size, dtype=torch.uint8)
        memory(embeddings, labels)
        _, row_labels, batch, batch_labels = seen[-1]
        assert torch.equal(batch, embeddings.detach().float())
        assert not batch.requires_grad
        assert batch_labels.tolist() == labels.tolist()
        assert row_labels.dtype == batch_labels.dtype == torch.int64
    assert [args[0].shape for args in seen] == [(0, D), (4, D), (7, D)]
    assert [args[1].tolist() for args in seen[1:]] == [[0, 1, 2, 3], [0, 1, 2, 3, 0, 1, 2]]


def test_a_hook_may_remove_itself(memory: AdaptiveCrossBatchMemory) -> None:
    calls: list[str] = []

    def once(*_: Tensor) -> None:
        calls.append("once")
        handle.remove()

    handle = memory.register_memory_hook(once)
    memory.register_memory_hook(lambda *_: calls.append("always"))
    step(memory)
    step(memory)
    assert calls == ["once", "always", "always"]


def test_a_removed_hook_no_longer_runs(memory: AdaptiveCrossBatchMemory) -> None:
    calls = []
    with memory.register_memory_hook(lambda *_: calls.append("first")):
        handle = memory.register_memory_hook(lambda *_: calls.append("second"))
        step(memory)
        handle.remove()
        step(memory)
    step(memory)
    assert calls == ["first", "second", "first"]


def test_a_module_hook_is_part_of_the_checkpoint(memory: AdaptiveCrossBatchMemory) -> None:
    class Counter(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("calls", torch.zeros((), dtype=torch.int64))

        def forward(self, *_: Tensor) -> None:
            self.calls += 1

    memory.register_memory_hook(Counter())
    step(memory)
    assert memory.state_dict()["memory_hook_0.calls"] == 1


@pytest.mark.parametrize(
    ("hook", "error", "message"),
    [
        (lambda rows, *_: rows[1:], ValueError, r"returned shape \(3, 3\): return all 4 rows"),
        (lambda rows, *_: rows.tolist(), TypeError, "returned a list"),
    ],
)
def test_what_a_hook_returns_is_checked(
    memory: AdaptiveCrossBatchMemory, hook: object, error: type[Exception], message: str
) -> None:
    step(memory)
    memory.register_memory_hook(hook)
    before = copy.deepcopy(memory.state_dict())
    with pytest.raises(error, match=message):
        step(memory)
    assert_same_state(memory.state_dict(), before)


def test_a_hook_must_be_callable(memory: AdaptiveCrossBatchMemory) -> None:
    with pytest.raises(TypeError, match="hook is a Tensor"):
        memory.register_memory_hook(torch.zeros(3))


class Fails:
    """Raises whenever it is told to, after spoiling what it was given."""

    def __init__(self) -> None:
        self.now = False

    def __call__(self, rows: Tensor, *_: Tensor) -> None:
        if self.now:
            rows.fill_(float("nan"))
            raise RuntimeError("told to")


class FailingLoss(ContrastiveLoss):
    fails = False

    def forward(self, *args: object, **kwargs: object) -> Tensor:
        if self.fails:
            raise KeyboardInterrupt
        return super().forward(*args, **kwargs)


def assert_same_state(after: dict, before: dict) -> None:
    assert after.keys() == before.keys()
    for key, value in before.items():
        if isinstance(value, Tensor):
            assert torch.equal(after[key], value), key
        else:
            assert str(after[key]) == str(value), key


def axbn(miner: object = None) -> AXBNWrapper:
    loss_fn = AXBNWrapper(FailingLoss(), D, 10, miner, measurement_noise=9.0, gain_update_interval=1)
    for _ in range(3):
        step(loss_fn)
    return loss_fn


def test_a_failing_hook_leaves_everything_as_it_was() -> None:
    loss_fn, fails = axbn(), Fails()
    loss_fn.register_memory_hook(fails)
    before = copy.deepcopy(loss_fn.state_dict())
    fails.now = True
    with pytest.raises(RuntimeError, match="told to"):
        step(loss_fn)
    assert_same_state(loss_fn.state_dict(), before)


def test_a_failing_loss_leaves_everything_as_it_was() -> None:
    loss_fn = axbn()
    before = copy.deepcopy(loss_fn.state_dict())
    loss_fn.loss.fails = True
    with pytest.raises(KeyboardInterrupt):
        step(loss_fn)
    assert_same_state(loss_fn.state_dict(), before)


def test_a_failing_miner_leaves_everything_as_it_was() -> None:
    loss_fn = axbn()
    before = copy.deepcopy(loss_fn.state_dict())

    def miner(*_: Tensor) -> None:
        raise RuntimeError("no pairs today")

    loss_fn.miner = miner
    with pytest.raises(RuntimeError, match="no pairs today"):
        step(loss_fn)
    assert_same_state(loss_fn.state_dict(), before)


def test_after_a_failure_the_run_goes_on_as_if_it_had_not_been() -> None:
    failed, smooth = axbn(), None
    smooth = copy.deepcopy(failed)
    failed.loss.fails = True
    with pytest.raises(KeyboardInterrupt):
        step(failed)
    failed.loss.fails = False
    for _ in range(3):
        embeddings, labels = torch.randn(4, D), torch.arange(4) % 2
        assert torch.equal(failed(embeddings, labels), smooth(embeddings, labels))
    assert torch.equal(failed.embedding_memory, smooth.embedding_memory)
