"""Who may call a memory: one thread at a time, no replica of ``DataParallel``, no backward pass, no graph."""

from __future__ import annotations

import copy
import pickle
import threading
from collections.abc import Callable

import pytest
import torch
from every_memory import EVERY, D, are_equal, assert_same_runs, batch, state, step
from pytorch_metric_learning.losses import ContrastiveLoss
from pytorch_metric_learning.regularizers import LpRegularizer
from torch import Tensor, nn
from torch.autograd import forward_ad
from torch.utils.checkpoint import checkpoint

from pml_xbn import TwoTowerMemory
from pml_xbn.losses import AdaptiveCrossBatchMemory


def raises_in(call: Callable[[], object], name: str) -> BaseException | None:
    """What a call raises in a thread of that name."""
    raised: list[BaseException] = []

    def run() -> None:
        try:
            call()
        except BaseException as error:
            raised.append(error)

    thread = threading.Thread(target=run, name=name)
    thread.start()
    thread.join()
    return raised[0] if raised else None


def two_towers() -> TwoTowerMemory:
    return TwoTowerMemory(document_memory=EVERY["xbn"](), query_memory=EVERY["axbn"]())


@pytest.mark.parametrize("call", ["training", "eval", "fill_memory"])
@pytest.mark.parametrize("kind", EVERY)
def test_a_second_thread_is_refused_and_both_are_named(kind: str, call: str) -> None:
    memory, twin = EVERY[kind](), EVERY[kind]()
    errors = []

    def second(*_: Tensor) -> None:
        if call == "eval":
            memory.training = False
        errors.append(raises_in(lambda: calls[call](*batch(7)), "evaluation"))
        memory.training = True

    calls = {"training": memory, "eval": memory, "fill_memory": memory.fill_memory}
    for number in range(3):
        step(memory, number)
        step(twin, number)
    handle = memory.register_memory_hook(second)
    step(memory, 3)
    handle.remove()
    step(twin, 3)
    (error,) = errors
    assert isinstance(error, RuntimeError)
    assert f"thread 'evaluation' calls a {type(memory).__name__} while thread 'MainThread' does" in str(error)
    assert_same_runs(memory, twin)


def test_threads_may_take_turns() -> None:
    memory, twin = EVERY["xbn"](), EVERY["xbn"]()
    for number in range(4):
        assert raises_in(lambda number=number: step(memory, number), f"thread {number}") is None
        step(twin, number)
    assert_same_runs(memory, twin)


def test_a_second_thread_in_two_towers_is_refused_between_their_memories() -> None:
    towers = two_towers()
    errors: list[BaseException | None] = []
    embeddings, labels = batch(0)

    def second(*_: object) -> None:
        errors.append(raises_in(lambda: towers(embeddings, embeddings, labels), "other"))

    towers.document_memory.register_forward_hook(second)
    towers(embeddings, embeddings, labels)
    (error,) = errors
    assert "thread 'other' calls a XBNWrapper while thread 'MainThread' does" in str(error)
    assert towers.document_memory.num_rows == len(labels)


@pytest.mark.parametrize("error", [ValueError("no"), KeyboardInterrupt()])
def test_a_step_that_failed_lets_another_thread_in(error: BaseException) -> None:
    memory = EVERY["xbn"]()

    def fail(*_: Tensor) -> None:
        raise error

    step(memory, 0)
    with memory.register_memory_hook(fail), pytest.raises(type(error)):
        step(memory, 1)
    assert raises_in(lambda: step(memory, 2), "other") is None


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda memory: pickle.loads(pickle.dumps(memory))])
def test_a_copy_that_is_made_within_a_call_is_in_no_thread(copied: Callable) -> None:
    memory = EVERY["plain"]()
    step(memory, 0)
    with memory._one_thread:
        copy_of_memory = copied(memory)
    assert raises_in(lambda: step(copy_of_memory, 1), "other") is None


@pytest.mark.parametrize("kind", EVERY)
def test_a_replica_is_refused_and_names_what_to_use(kind: str) -> None:
    """DataParallel's own replicas need GPUs; it makes them by this method of a module."""
    memory = EVERY[kind]()
    step(memory, 0)
    before = state(memory)
    replica = memory._replicate_for_data_parallel()
    for call in (replica, replica.eval(), replica.fill_memory):
        with pytest.raises(
            RuntimeError, match=f"{type(memory).__name__} is a replica .*DistributedDataParallel"
        ):
            call(*batch(1))
    assert are_equal(state(memory), before)
    step(memory, 1)


def test_data_parallel_without_gpus_makes_no_replica() -> None:
    if torch.cuda.is_available():
        pytest.skip("it makes some here")
    memory = EVERY["xbn"]()
    step(nn.DataParallel(memory), 0)
    assert memory.num_rows > 0


class Encoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(D, 8), nn.Linear(8, D)

    def forward(self, x: Tensor) -> Tensor:
        return self.second(self.first(x).tanh())


def encoder() -> Encoder:
    torch.manual_seed(0)
    return Encoder()


@pytest.mark.parametrize("use_reentrant", [True, False])
@pytest.mark.parametrize("num_steps", [0, 5], ids=["empty", "full"])
@pytest.mark.parametrize("kind", EVERY)
def test_a_memory_within_a_checkpoint_is_refused_and_stays_as_it_was(
    kind: str, num_steps: int, use_reentrant: bool
) -> None:
    memory, model = EVERY[kind](), encoder()
    for number in range(num_steps):
        step(memory, number)
    (x, labels), states = batch(9), [state(memory)]

    def step_in_checkpoint() -> None:
        # The reentrant one runs the function again in the backward pass, and the other one as soon as
        # autograd computes a gradient: that of the loss, or, of some losses, within the forward pass.
        loss = checkpoint(lambda x: memory(model(x), labels), x, use_reentrant=use_reentrant)
        states.append(state(memory))
        loss.backward()

    with pytest.raises(RuntimeError, match=r"called within a backward pass, as torch\.utils\.checkpoint"):
        step_in_checkpoint()
    assert are_equal(state(memory), states[-1])
    step(memory, 9)


def test_a_loss_of_pmls_code_within_a_checkpoint_is_refused_in_the_backward_pass() -> None:
    memory = EVERY["xbn"](ContrastiveLoss(embedding_regularizer=LpRegularizer()))
    (x, labels), model = batch(0), encoder()
    loss = checkpoint(lambda x: memory(model(x), labels), x, use_reentrant=False)
    before = state(memory)
    with pytest.raises(RuntimeError, match="called within a backward pass"):
        loss.backward()
    assert are_equal(state(memory), before)
    assert memory.num_rows == len(labels)


def test_fill_memory_within_a_checkpoint_is_refused_in_the_backward_pass() -> None:
    memory, model = EVERY["xbn"](), encoder()
    x, labels = batch(0)

    def fill(x: Tensor) -> Tensor:
        embeddings = model(x)
        memory.fill_memory(embeddings, labels)
        return embeddings.sum()

    loss = checkpoint(fill, x, use_reentrant=True)  # the other one stops before it comes to the memory
    with pytest.raises(RuntimeError, match="called within a backward pass"):
        loss.backward()
    assert memory.num_rows == len(labels)


@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")
@pytest.mark.parametrize("mode", ["grad", "dual"])
@pytest.mark.parametrize("call", ["training", "eval"])
@pytest.mark.parametrize("kind", EVERY)
def test_derivatives_that_a_memory_does_not_have_are_refused(kind: str, call: str, mode: str) -> None:
    memory = EVERY[kind]()
    for number in range(3):
        step(memory, number)
    memory.train(call == "training")
    (x, labels), before = batch(9), state(memory)
    x = x.detach()

    def derive() -> None:
        if mode == "grad":
            torch.func.grad(lambda y: memory(y, labels))(x)
        else:
            with forward_ad.dual_level():
                memory(forward_ad.make_dual(x, x), labels)

    what = "forward-mode differentiation" if mode == "dual" else r"a function that torch\.func transforms"
    with pytest.raises(RuntimeError, match=f"embeddings in {what}: use loss"):
        derive()
    assert are_equal(state(memory), before)


@pytest.mark.parametrize("use_reentrant", [True, False])
def test_a_checkpointed_model_beside_a_memory_trains_as_without(use_reentrant: bool) -> None:
    results = []
    for is_checkpointed in (False, True):
        memory, model, values = EVERY["xbn"](), encoder(), []
        for number in range(5):
            x, labels = batch(number)
            embeddings = checkpoint(model, x, use_reentrant=use_reentrant) if is_checkpointed else model(x)
            loss = memory(embeddings, labels)
            loss.backward()
            values += [loss.detach(), x.grad]
        results.append([*values, *(p.grad for p in model.parameters()), memory.embedding_memory])
    for one, other in zip(*results, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=0)


def test_a_memory_is_read_in_a_backward_pass() -> None:
    """As somebody does who looks at its loss from a hook of a gradient."""
    memory, watched = EVERY["xbn"](), []
    step(memory, 0)

    def look(gradient: Tensor) -> None:
        with torch.no_grad():
            watched.append(memory(*batch(2)).item())

    embeddings, labels = batch(1)
    embeddings.register_hook(look)
    memory(embeddings, labels).backward()
    with torch.no_grad():
        assert watched == [memory(*batch(2)).item()]


def test_a_memory_of_the_base_class_says_its_name() -> None:
    memory = AdaptiveCrossBatchMemory(EVERY["xbn"]().loss, D, 14)
    with pytest.raises(RuntimeError, match="this AdaptiveCrossBatchMemory is a replica"):
        memory._replicate_for_data_parallel()(*batch(0))
