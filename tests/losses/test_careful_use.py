"""What careful users do, and what breaks a memory that trusts them too much."""

from __future__ import annotations

import copy
import pickle
import weakref
from collections.abc import Callable

import pytest
import torch
from pytorch_metric_learning.losses import ContrastiveLoss, CrossBatchMemory, SupConLoss
from pytorch_metric_learning.reducers import DoNothingReducer
from torch import Tensor, nn

from pml_xbn import XBNWrapper
from pml_xbn.adapters import MomentMatching
from pml_xbn.losses import AdaptiveCrossBatchMemory

D = 3


def step(loss_fn: nn.Module, size: int = 4) -> Tensor:
    return loss_fn(torch.randn(size, D), torch.arange(size) % 2)


def everything(loss_fn: nn.Module) -> str:
    return str(loss_fn.state_dict())


@pytest.fixture
def memory() -> AdaptiveCrossBatchMemory:
    return AdaptiveCrossBatchMemory(ContrastiveLoss(), D, 10)


def test_a_batch_that_is_seen_again_has_no_distance_to_itself(memory: AdaptiveCrossBatchMemory) -> None:
    embeddings, labels = torch.randn(40, D), torch.arange(40) % 4
    memory = AdaptiveCrossBatchMemory(ContrastiveLoss(), D, 100)
    memory(embeddings, labels)
    loss = memory(embeddings, labels)
    unit = nn.functional.normalize(embeddings.double())
    distances = (unit[:, None] - torch.cat([unit, unit])[None]).norm(dim=2)
    is_same = labels[:, None] == torch.cat([labels, labels])
    is_own = torch.cat([torch.zeros(40, 40), torch.eye(40)], dim=1).bool()
    positive, negative = distances[is_same & ~is_own], (1 - distances[~is_same]).relu()
    expected = sum(terms[terms > 0].mean() for terms in (positive, negative))
    assert loss.item() == pytest.approx(expected.item(), rel=1e-5)


def test_a_reducer_that_returns_terms_returns_those_of_pml() -> None:
    loss = ContrastiveLoss(reducer=DoNothingReducer())
    ours, pmls = (make(loss, D, 10) for make in (AdaptiveCrossBatchMemory, CrossBatchMemory))
    for _ in range(3):
        embeddings, labels = torch.randn(4, D), torch.arange(4) % 2
        found, expected = ours(embeddings, labels), pmls(embeddings, labels)
        assert found.keys() == expected.keys()
        for name, terms in found.items():
            torch.testing.assert_close(terms["losses"], expected[name]["losses"])


def test_rows_of_a_hook_are_checked_like_those_of_a_batch(memory: AdaptiveCrossBatchMemory) -> None:
    step(memory)
    before = everything(memory)
    with memory.register_memory_hook(lambda rows, *_: rows / 0):
        with pytest.raises(ValueError, match="memory hook <lambda> returned NaN or inf"):
            step(memory)
        assert everything(memory) == before
        memory.nonfinite = "ignore"
        step(memory)


def test_a_hook_that_writes_to_labels_and_fails_has_changed_nothing(memory: AdaptiveCrossBatchMemory) -> None:
    step(memory)
    before, labels = everything(memory), torch.arange(4) % 2

    def spoil(_: Tensor, memory_labels: Tensor, __: Tensor, batch_labels: Tensor) -> None:
        memory_labels.fill_(7)
        batch_labels.fill_(7)
        raise OSError("disk on fire")

    with memory.register_memory_hook(spoil), pytest.raises(OSError, match="disk on fire"):
        memory(torch.randn(4, D), labels)
    assert everything(memory) == before
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
    assert everything(fresh) == everything(memory)


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


def test_finite_rows_beyond_the_range_of_the_memory_are_refused(memory: AdaptiveCrossBatchMemory) -> None:
    step(memory)
    before = everything(memory)
    huge = torch.full((4, D), 1e300, dtype=torch.float64)
    with pytest.raises(ValueError, match=r"in rows \[0, 1, 2, 3\], or numbers beyond 5\.2e\+33"):
        memory(huge, torch.arange(4))
    assert everything(memory) == before


@pytest.mark.parametrize("make", [AdaptiveCrossBatchMemory, XBNWrapper])
def test_a_refused_batch_does_not_take_the_rows_to_its_device(make: type) -> None:
    memory = make(ContrastiveLoss(), D, 10)
    step(memory)
    step(memory)
    with pytest.raises(ValueError, match="do not fit"):
        memory(torch.randn(11, D, device="meta"), torch.arange(11, device="meta"))
    with pytest.raises((NotImplementedError, RuntimeError)) as error:  # numbers of it cannot be read
        memory(torch.randn(4, D, device="meta"), torch.arange(4, device="meta"))
    assert "expected device" not in str(error.value)
    assert memory.embedding_memory.device.type == memory.label_memory.device.type == "cpu"
    step(memory)


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


def trained_after(prepare: Callable[[XBNWrapper], XBNWrapper]) -> str:
    """What is in memory after some steps that come after what happened in inference mode."""
    torch.manual_seed(0)
    loss_fn = XBNWrapper(SupConLoss(), D, 10)
    step(loss_fn)
    with torch.inference_mode():
        loss_fn = prepare(loss_fn)
    for _ in range(4):
        embeddings = torch.randn(4, D, requires_grad=True)
        loss_fn(embeddings, torch.arange(4) % 2).backward()
    return everything(loss_fn)


@pytest.mark.parametrize("way", ["copy", "pickle", "float64"])
def test_what_happens_in_inference_mode_leaves_training_alone(way: str) -> None:
    def prepare(loss_fn: XBNWrapper) -> XBNWrapper:
        if way == "float64":
            loss_fn.eval()(torch.randn(4, D, dtype=torch.float64), torch.arange(4))
            torch.manual_seed(1)
            return loss_fn.train()
        torch.manual_seed(1)
        return copy.deepcopy(loss_fn) if way == "copy" else pickle.loads(pickle.dumps(loss_fn))

    def untouched(loss_fn: XBNWrapper) -> XBNWrapper:
        torch.manual_seed(1)
        return loss_fn

    assert trained_after(prepare) == trained_after(untouched)


def test_a_memory_that_is_built_or_reset_in_inference_mode_can_be_trained() -> None:
    with torch.inference_mode():
        loss_fn = XBNWrapper(SupConLoss(), D, 10)
    for _ in range(2):
        for _ in range(3):
            loss_fn(torch.randn(4, D, requires_grad=True), torch.arange(4) % 2).backward()
        with torch.inference_mode():
            loss_fn.reset_queue()
        assert loss_fn.num_rows == 0


def test_a_second_derivative_is_refused() -> None:
    loss_fn, embeddings = XBNWrapper(SupConLoss(), D, 10), torch.randn(4, D, requires_grad=True)
    loss = loss_fn(embeddings, torch.arange(4) % 2)
    (gradient,) = torch.autograd.grad(loss, embeddings, create_graph=True)
    penalties = gradient.sum(), loss + gradient.square().sum()  # the second has another way to the embeddings
    for penalty in penalties:
        with pytest.raises(RuntimeError, match="no second derivative"):
            penalty.backward(retain_graph=True)


def test_a_gradient_can_be_differentiated_with_respect_to_a_weight_of_the_loss() -> None:
    """As GradNorm does."""
    loss_fn, embeddings = XBNWrapper(SupConLoss(), D, 10), torch.randn(4, D, requires_grad=True)
    weight = torch.tensor(2.0, requires_grad=True)
    loss = weight * loss_fn(embeddings, torch.arange(4) % 2)
    (gradient,) = torch.autograd.grad(loss, embeddings, create_graph=True)
    (found,) = torch.autograd.grad(gradient.sum(), weight, retain_graph=True)
    torch.testing.assert_close(found, gradient.detach().sum() / 2)
    with pytest.raises(RuntimeError, match="no second derivative"):
        gradient.sum().backward()


def test_a_loss_that_is_kept_keeps_no_embeddings() -> None:
    loss_fn, leaf = XBNWrapper(SupConLoss(), D, 10), torch.randn(4, D, requires_grad=True)
    embeddings = 2 * leaf
    loss = loss_fn(embeddings, torch.arange(4) % 2)
    loss.backward()
    kept = weakref.ref(embeddings)
    del embeddings
    assert kept() is None
    assert loss.requires_grad


def test_rows_after_a_batch_of_nearly_equal_ones_fit_in_half_precision() -> None:
    memory = AdaptiveCrossBatchMemory(ContrastiveLoss(), D, 20, memory_dtype=torch.float16)
    memory(1 + 1e-6 * torch.randn(8, D), torch.arange(8))
    embeddings = torch.randn(8, D)
    memory(embeddings, torch.arange(8))
    torch.testing.assert_close(memory.embedding_memory[8:16], embeddings, rtol=2e-3, atol=2e-3)


def test_rows_that_are_written_before_labels_are_assigned_are_stored(
    memory: AdaptiveCrossBatchMemory,
) -> None:
    step(memory)
    memory.embedding_memory[0] = 7.0
    memory.label_memory = torch.arange(10)
    assert memory.embedding_memory[0].tolist() == [7.0] * D


def test_labels_of_another_length_are_refused(memory: AdaptiveCrossBatchMemory) -> None:
    with pytest.raises(ValueError, match=r"label_memory of shape \(3,\): assign \(10,\)"):
        memory.label_memory = torch.arange(3)
