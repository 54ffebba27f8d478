"""The hook interface: order, removal, errors, and what a failure leaves behind."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import every_memory
import pytest
import torch
from as_on_a_gpu import read_as
from every_memory import EVERY, are_equal, assert_same_runs, state
from pytorch_metric_learning.losses import ContrastiveLoss, SupConLoss
from torch import Tensor, nn

from pml_xbn import TwoTowerMemory, XBNWrapper
from pml_xbn.adapters import MomentMatching
from pml_xbn.losses import AdaptiveCrossBatchMemory

D = 3


def step(loss_fn: nn.Module, size: int = 4) -> Tensor:
    return loss_fn(torch.randn(size, D), torch.arange(size) % 2)


@pytest.fixture
def memory() -> AdaptiveCrossBatchMemory:
    return AdaptiveCrossBatchMemory(ContrastiveLoss(), D, 10)


@pytest.mark.parametrize("kind", EVERY)
def test_the_memory_reads_as_the_rows_that_a_hook_is_given(kind: str) -> None:
    memory, seen = EVERY[kind](), []

    def look(rows: Tensor, *_: Tensor) -> None:
        seen.append((rows.clone(), memory.embedding_memory[: len(rows)].clone()))

    memory.register_memory_hook(look)
    for number in range(4):
        every_memory.step(memory, number)
    for given, read in seen:
        torch.testing.assert_close(read, given)


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
    before = state(memory)
    with pytest.raises(error, match=message):
        step(memory)
    assert are_equal(state(memory), before)


@pytest.mark.parametrize("name", ["reset_queue", "fill_memory"])
def test_a_hook_that_changes_its_own_memory_is_refused(memory: AdaptiveCrossBatchMemory, name: str) -> None:
    step(memory)
    arguments = (torch.ones(6, D), torch.arange(6)) if name == "fill_memory" else ()
    memory.register_memory_hook(lambda *_: getattr(memory, name)(*arguments))
    before = state(memory)
    with pytest.raises(RuntimeError, match=r"return other rows instead|reset_queue within a step"):
        step(memory)
    assert are_equal(state(memory), before)


def test_rows_that_a_hook_has_looked_at_are_new_when_the_loss_looks(memory: AdaptiveCrossBatchMemory) -> None:
    seen = []
    memory.register_memory_hook(lambda *_: seen.append(memory.embedding_memory))
    memory.loss.register_forward_pre_hook(lambda _, args: seen.append((args[3], memory.embedding_memory)))
    step(memory)
    step(memory)
    rows, value = seen[-1]
    assert torch.equal(rows, value[: len(rows)])


def test_a_hook_must_be_callable(memory: AdaptiveCrossBatchMemory) -> None:
    with pytest.raises(TypeError, match="hook is a Tensor"):
        memory.register_memory_hook(torch.zeros(3))


def test_an_adapter_beside_another_hook_does_what_it_does_alone() -> None:
    memories = [XBNWrapper(ContrastiveLoss(), D, 10) for _ in range(2)]
    memories[1].register_memory_hook(lambda rows, *_: rows)
    for number in range(9):
        embeddings, labels = torch.randn(4, D) + number, torch.arange(4) % 2
        values = [memory(embeddings, labels) for memory in memories]
        torch.testing.assert_close(*values, rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(*(x.embedding_memory for x in memories), rtol=1e-5, atol=1e-5)


def test_rows_of_a_hook_are_checked_like_those_of_a_batch(memory: AdaptiveCrossBatchMemory) -> None:
    step(memory)
    before = state(memory)
    with memory.register_memory_hook(lambda rows, *_: rows / 0):
        with pytest.raises(ValueError, match="memory hook <lambda> returned NaN or inf"):
            step(memory)
        assert are_equal(state(memory), before)
        memory.nonfinite = "ignore"
        step(memory)


def test_a_hook_that_writes_to_labels_and_fails_has_changed_nothing(memory: AdaptiveCrossBatchMemory) -> None:
    step(memory)
    before, labels = state(memory), torch.arange(4) % 2

    def spoil(_: Tensor, memory_labels: Tensor, __: Tensor, batch_labels: Tensor) -> None:
        memory_labels.fill_(7)
        batch_labels.fill_(7)
        raise OSError("disk on fire")

    with memory.register_memory_hook(spoil), pytest.raises(OSError, match="disk on fire"):
        memory(torch.randn(4, D), labels)
    assert are_equal(state(memory), before)
    assert labels.tolist() == [0, 1, 0, 1]


def test_a_removed_hook_leaves_the_checkpoint() -> None:
    memory = AdaptiveCrossBatchMemory(ContrastiveLoss(), D, 10)
    before = memory.state_dict().keys()
    handle = memory.register_memory_hook(nn.Bilinear(D, D, D))
    with_hook = memory.state_dict().keys()
    handle.remove()
    assert memory.state_dict().keys() == before < with_hook
    copied = copy.deepcopy(memory)
    assert copied.state_dict().keys() == before


@pytest.mark.parametrize("hook", [MomentMatching(), nn.Bilinear(D, D, D)])
@pytest.mark.parametrize("was_there", [False, True])
def test_what_is_left_when_a_hook_is_removed_loads(hook: nn.Module, was_there: bool) -> None:
    """Where it never was, and where it was removed too."""
    memory, fresh = (AdaptiveCrossBatchMemory(ContrastiveLoss(), D, 10) for _ in range(2))
    handles = [which.register_memory_hook(hook) for which in (memory, fresh)[: 1 + was_there]]
    for which in (memory, fresh):
        which.register_memory_hook(MomentMatching(momentum=0.5))
    for handle in handles:
        handle.remove()
    step(memory)
    fresh.load_state_dict(memory.state_dict())
    assert are_equal(state(fresh), state(memory))


def test_a_hook_that_is_registered_again_is_still_in_the_checkpoint(memory: AdaptiveCrossBatchMemory) -> None:
    adapter = MomentMatching(momentum=0.9)
    handle = memory.register_memory_hook(adapter)
    names = memory.state_dict().keys()
    handle.remove()
    first = memory.register_memory_hook(adapter)
    assert memory.state_dict().keys() == names
    memory.register_memory_hook(adapter)
    first.remove()  # and not the second one
    assert memory.state_dict().keys() == names


def test_an_adapter_that_is_registered_again_keeps_its_estimate(memory: AdaptiveCrossBatchMemory) -> None:
    adapter = MomentMatching(momentum=0.1)
    handle = memory.register_memory_hook(adapter)
    batches = [torch.randn(4, D, dtype=torch.float64) + 5 for _ in range(2)]
    memory(batches[0].float(), torch.arange(4))
    handle.remove()
    memory.register_memory_hook(adapter)
    adapter.momentum = 0.75  # may be scheduled
    memory(batches[1].float(), torch.arange(4))
    expected = 0.75 * batches[0].mean(dim=0) + 0.25 * batches[1].mean(dim=0)
    torch.testing.assert_close(adapter.estimated.mean, expected, rtol=1e-6, atol=1e-6)


class Slow(nn.Module):
    """A hook with a buffer that it makes in its first call."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("centre", None)
        self.fails = False

    def forward(self, rows: Tensor, _: Tensor, batch: Tensor, __: Tensor) -> Tensor:
        self.centre = batch.mean(dim=0) if self.centre is None else self.centre.lerp(batch.mean(dim=0), 0.1)
        if self.fails:
            raise OSError("disk on fire")
        return rows + self.centre


def test_a_buffer_that_a_failed_step_made_is_gone(memory: AdaptiveCrossBatchMemory) -> None:
    hook = Slow()
    memory.register_memory_hook(hook)
    hook.fails = True
    with pytest.raises(OSError, match="disk on fire"):
        step(memory)
    assert hook.centre is None


Act = Callable[[AdaptiveCrossBatchMemory, dict[str, Any]], object]  # with a state from before the step


def write_rows(memory: AdaptiveCrossBatchMemory, _: Any) -> None:
    memory.embedding_memory.mul_(2.0)


def write_labels(memory: AdaptiveCrossBatchMemory, _: Any) -> None:
    memory.label_memory.add_(1)


def assign_rows(memory: AdaptiveCrossBatchMemory, _: Any) -> None:
    memory.embedding_memory = memory.embedding_memory * 2


def assign_labels(memory: AdaptiveCrossBatchMemory, _: Any) -> None:
    memory.label_memory = memory.label_memory + 1


# What code of others may do to a memory in the middle of its step.
CHANGES: dict[str, Act] = {
    "writes to rows": write_rows,
    "writes to labels": write_labels,
    "assigns rows": assign_rows,
    "assigns labels": assign_labels,
    "loads a state": lambda memory, saved: memory.load_state_dict(saved),
    "loads a model's state": lambda memory, saved: nn.ModuleList([memory]).load_state_dict(
        {f"0.{name}": x for name, x in saved.items()}
    ),
    "loads a state of the queue": lambda memory, saved: memory.queue.load_state_dict(
        {name.removeprefix("queue."): x for name, x in saved.items() if name.startswith("queue.")}
    ),
    "moves": lambda memory, _: memory.to("meta"),
}


def hook_that(act: Act, memory: AdaptiveCrossBatchMemory) -> Callable[..., None]:
    """A hook of a memory, or of a module, that leaves what it is given as it is."""

    saved = memory.state_dict()

    def hook(*_: Any) -> None:
        act(memory, saved)

    return hook


@pytest.mark.parametrize("kind", ["plain", "momentum", "per class"])
@pytest.mark.parametrize("name", CHANGES)
def test_what_a_hook_does_to_its_memory_is_refused_as_it_would_be_lost(name: str, kind: str) -> None:
    memory, twin = EVERY[kind](), EVERY[kind]()
    for number in range(4):
        for which in (memory, twin):
            every_memory.step(which, number)
    with memory.register_memory_hook(hook_that(CHANGES[name], memory)):
        for _ in range(2):
            with pytest.raises(RuntimeError, match="within a step of the memory would be lost"):
                memory(*every_memory.batch(20))
            assert are_equal(state(memory), state(twin))
    assert_same_runs(memory, twin)


@pytest.mark.parametrize("name", CHANGES)
def test_so_is_what_the_wrapped_loss_does(name: str) -> None:
    memory, twin = EVERY["xbn"](), EVERY["xbn"]()
    for which in (memory, twin):
        every_memory.step(which, 0)
    handle = memory.loss.register_forward_hook(hook_that(CHANGES[name], memory))
    with pytest.raises(RuntimeError, match="within a step of the memory would be lost"):
        memory(*every_memory.batch(20))
    handle.remove()
    assert are_equal(state(memory), state(twin))
    assert_same_runs(memory, twin)


def test_labels_that_were_taken_before_the_step_and_are_written_to_in_it_are_given_back(
    memory: AdaptiveCrossBatchMemory,
) -> None:
    step(memory)
    taken, before = memory.label_memory, state(memory)
    with (
        memory.register_memory_hook(hook_that(lambda *_: taken.fill_(7), memory)),
        pytest.raises(RuntimeError, match="what was written to label_memory within a step"),
    ):
        step(memory)
    assert are_equal(state(memory), before)
    taken[0] = 5  # between steps it counts
    assert memory.state_dict()["queue.labels"][0] == 5


@pytest.mark.parametrize("name", ["embedding_memory", "label_memory"])
@pytest.mark.parametrize("taken", ["before the step", "two steps before", "by a hook of the step"])
@pytest.mark.parametrize("kind", ["plain", "xbn"])
def test_what_the_wrapped_loss_writes_to_a_tensor_that_was_taken_earlier_is_refused(
    kind: str, taken: str, name: str
) -> None:
    memory = EVERY[kind]()
    every_memory.step(memory, 0)
    kept: list[Tensor] = []

    def take(*_: Any) -> None:
        kept.append(getattr(memory, name))

    if "before" in taken:
        take()
    if taken == "two steps before":
        every_memory.step(memory, 1)
    before = state(memory)
    if taken == "by a hook of the step":
        memory.register_memory_hook(take)
    handle = memory.loss.register_forward_hook(lambda *_: [kept[-1].mul_(2)].clear())
    with pytest.raises(RuntimeError, match=f"what was written to {name} within a step"):
        memory(*every_memory.batch(20))
    handle.remove()
    assert are_equal(state(memory), before)
    every_memory.step(memory, 21)


@pytest.mark.parametrize("changed", ["document_memory", "query_memory"])
@pytest.mark.parametrize("hooked", ["document_memory", "query_memory"])
def test_a_hook_of_one_tower_that_writes_to_a_memory_changes_neither(hooked: str, changed: str) -> None:
    memories = {name: EVERY["xbn"]() for name in ("document_memory", "query_memory")}
    towers = TwoTowerMemory(**memories)
    queries, documents, labels = torch.randn(3, 4), torch.randn(3, 4), torch.arange(3)
    towers(queries, documents, labels)
    before = state(towers)
    memories[hooked].register_memory_hook(hook_that(write_rows, memories[changed]))
    with pytest.raises(RuntimeError, match="within a step of the memory would be lost"):
        towers(queries, documents, labels)
    assert are_equal(state(towers), before)


def test_rows_that_a_hook_writes_to_and_does_not_return_are_not_lost_in_silence(
    memory: AdaptiveCrossBatchMemory,
) -> None:
    step(memory)
    before = state(memory)
    with (
        memory.register_memory_hook(lambda rows, *_: [rows.add_(1)].clear()),
        pytest.raises(RuntimeError, match="return the rows that it has made"),
    ):
        step(memory)
    assert are_equal(state(memory), before)
    memory.register_memory_hook(lambda rows, *_: rows.add_(1))
    expected = memory.embedding_memory[:4] + 1
    step(memory)
    assert torch.equal(memory.embedding_memory[:4], expected)


class Counting(nn.Module):
    """A hook with every kind of buffer, and things that it makes in its first call."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("saved", torch.zeros(2))
        self.register_buffer("unsaved", torch.zeros(2), persistent=False)
        self.register_buffer("none_yet", None, persistent=False)
        self.inner = nn.Module()
        self.inner.register_buffer("deep", torch.zeros(()), persistent=False)
        self.error: Exception | None = None

    def forward(self, *_: Tensor) -> None:
        for values in (self.saved, self.unsaved, self.inner.deep):
            values += 1
        self.none_yet = torch.ones(()) if self.none_yet is None else self.none_yet + 1
        if self.error is not None:
            self.register_buffer("late", torch.ones(()), persistent=False)
            self.register_buffer("late_and_saved", torch.ones(()))
            self.attribute = 1
            raise self.error

    def held(self) -> dict[str, Tensor | None]:
        buffers = {name: values.clone() for name, values in self.named_buffers()}
        return {"none_yet": None, **buffers, "attribute": getattr(self, "attribute", None)}


@pytest.mark.parametrize("num_steps", [0, 2])
def test_all_buffers_of_a_hook_are_given_back(memory: AdaptiveCrossBatchMemory, num_steps: int) -> None:
    hook = Counting()
    memory.register_memory_hook(hook)
    for _ in range(num_steps):
        step(memory)
    before, unsaved = str(hook.held()), hook.unsaved
    hook.error = OSError("disk on fire")
    with pytest.raises(OSError, match="disk on fire"):
        step(memory)
    hook.error = None
    assert str(hook.held()) == before
    assert hook.unsaved is unsaved
    step(memory)
    assert hook.unsaved.tolist() == [num_steps + 1] * 2


def test_a_refused_state_gives_back_all_buffers_of_a_hook(memory: AdaptiveCrossBatchMemory) -> None:
    class Scaled(Counting):
        def _load_from_state_dict(self, *args: Any) -> None:
            super()._load_from_state_dict(*args)
            self.unsaved.copy_(2 * self.saved)  # made of what is loaded

    hook = Scaled()
    memory.register_memory_hook(hook)
    step(memory)
    before = str(hook.held())
    given = {**memory.state_dict(), "memory_hook_0.saved": torch.full((2,), 9.0), "more": torch.zeros(1)}
    with pytest.raises(RuntimeError, match="more"):
        memory.load_state_dict(given)
    assert str(hook.held()) == before


@pytest.mark.parametrize("reads", [True, False], ids=["on a CPU", "as on a GPU"])
def test_delay_delays_plain_hooks_and_unit_length(monkeypatch: pytest.MonkeyPatch, reads: bool) -> None:
    if not reads:  # the host reads no number of a tensor that a step computes
        read_as(monkeypatch, lambda _: False)
    memory = AdaptiveCrossBatchMemory(ContrastiveLoss(), 4, 16, delay=2, normalize_memory=True)
    calls = []
    memory.register_memory_hook(lambda rows, *_: calls.append(len(rows)))
    batches = 3 * torch.rand(4, 4, 4) + 1
    for batch in batches:
        if len(calls) == 0:
            before = memory.embedding_memory[: memory.num_rows].clone()
        memory(batch.requires_grad_(), torch.arange(4) // 2)
    assert calls == [8, 12]  # in the third call and the fourth
    torch.testing.assert_close(before, torch.cat(list(batches[:2])).detach())  # as they came
    lengths = memory.embedding_memory.norm(dim=1)
    torch.testing.assert_close(lengths[:12], torch.ones(12))


@pytest.mark.parametrize("take", [lambda memory: memory.state_dict(), copy.deepcopy])
def test_what_is_taken_of_a_memory_within_a_step_is_refused(
    take: Callable[[AdaptiveCrossBatchMemory], object],
) -> None:
    loss = SupConLoss()
    memory = XBNWrapper(loss, embedding_size=2, memory_size=8)
    batch = torch.randn(4, 2, requires_grad=True), torch.tensor([0, 0, 1, 1])
    memory(*batch)
    handle = loss.register_forward_pre_hook(lambda *_: take(memory) and None)
    with pytest.raises(RuntimeError, match="take it when the step is over"):
        memory(*batch)
    handle.remove()
    assert memory.num_rows == 4
    take(memory)
