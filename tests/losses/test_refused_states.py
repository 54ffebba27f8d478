"""A state that is refused leaves all as it was: rows, labels, counts, adapters and the loss's parameters."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from every_memory import EVERY, D, M, are_equal, assert_same_runs, state, step
from pytorch_metric_learning.losses import CrossBatchMemory, MarginLoss, SupConLoss
from torch import Tensor, nn

from pml_xbn import AXBNWrapper, TwoTowerMemory, XBNWrapper
from pml_xbn.losses import AdaptiveCrossBatchMemory

State = dict[str, Tensor]
KINDS = ["plain", "xbn", "axbn", "super-class"]


def trained(kind: str, num_steps: int, loss: nn.Module | None = None) -> AdaptiveCrossBatchMemory:
    memory = EVERY[kind](loss or MarginLoss(learn_beta=True))
    for number in range(num_steps):
        step(memory, number)
    with torch.no_grad():
        for values in memory.loss.parameters():
            values.add_(num_steps)  # of a run of its own
    return memory


def of_another(cls: Callable[..., nn.Module], *sizes: int) -> Callable[[State], State]:
    return lambda _: cls(MarginLoss(learn_beta=True), *sizes).state_dict()


def changed(name: str, change: Callable[[Tensor], Tensor]) -> Callable[[State], State]:
    return lambda given: {**given, name: change(given[name])}


def with_number(index: int, number: int) -> Callable[[State], State]:
    return changed("queue.numbers", lambda x: x.index_fill(0, torch.tensor(index), number))


def without(name: str) -> Callable[[State], State]:
    return lambda given: {key: value for key, value in given.items() if key != name}


def longer(values: Tensor) -> Tensor:
    return torch.cat([values, values[-1:]])


REFUSED: dict[str, Callable[[State], State]] = {
    "larger memory": of_another(AdaptiveCrossBatchMemory, D, M + 1),
    "smaller memory": of_another(XBNWrapper, D, M - 1),
    "wider rows": of_another(AXBNWrapper, D + 1, M),
    "PML's, larger": of_another(CrossBatchMemory, D, M + 1),
    "PML's, wider": of_another(CrossBatchMemory, D + 1, M),
    "more labels": changed("queue.labels", longer),
    "labels of floats": changed("queue.labels", lambda x: x + 0.5),
    "ids of two columns": changed("queue.ids", lambda x: x.unsqueeze(1).repeat(1, 2)),
    "a map of another width": changed("queue.map", lambda x: x[:, 1:]),
    "sums of another width": changed("queue.sums", lambda x: x[:, 1:]),
    "one number too many": changed("queue.numbers", longer),
    "more rows than memory_size": with_number(1, M + 1),
    "rows below none": with_number(1, -1),
    "a next index beyond the last": with_number(2, M),
    "calls below none": with_number(0, -3),
    "sums that are neither there nor not": with_number(3, 7),
    "no rows": without("queue.rows"),
    "no map": without("queue.map"),
    "no β": without("loss.beta"),
    "β of three classes": changed("loss.beta", lambda x: x.expand(3)),
    "rows without numbers": lambda given: {name: values.to("meta") for name, values in given.items()},
    "only the rows without numbers": changed("queue.rows", lambda x: x.to("meta")),
    "something else": lambda given: {**given, "queue.more": torch.zeros(1)},
}


@pytest.mark.filterwarnings("ignore:the checkpoint holds no queue position")
@pytest.mark.parametrize("num_steps", [0, 2, 6])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", REFUSED)
def test_a_refused_state_leaves_all_as_it_was(name: str, kind: str, num_steps: int) -> None:
    memory, twin = trained(kind, num_steps), trained(kind, num_steps)
    given = REFUSED[name](trained(kind, 4).state_dict())
    with pytest.raises((RuntimeError, ValueError)):
        memory.load_state_dict(given)
    assert are_equal(state(memory), state(twin))
    assert_same_runs(memory, twin)


@pytest.mark.parametrize("options", [{}, {"assign": True}], ids=["copied", "assigned"])
@pytest.mark.parametrize("own", EVERY)
@pytest.mark.parametrize("other", EVERY)
def test_a_state_of_another_class_is_loaded_whole_or_not_at_all(
    other: str, own: str, options: dict[str, bool]
) -> None:
    memory, given = trained(own, 2), trained(other, 4).state_dict()
    before = state(memory)
    try:
        memory.load_state_dict(given, **options)
    except (RuntimeError, ValueError):
        assert are_equal(state(memory), before)
    else:
        assert are_equal(state(memory), given)


class LazyHook(nn.Module):
    """A hook whose weights are made of the first rows, as torch's lazy modules do."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.LazyLinear(D)

    def forward(self, rows: Tensor, *_: Tensor) -> Tensor:
        return self.layer(rows)


def test_a_hook_that_has_no_weights_yet_takes_those_of_a_state() -> None:
    trained, fresh = EVERY["plain"](), EVERY["plain"]()
    for memory in (trained, fresh):
        memory.register_memory_hook(LazyHook())
    for number in range(3):
        step(trained, number)
    fresh.load_state_dict(trained.state_dict())
    assert_same_runs(trained, fresh)


@pytest.mark.parametrize("place", ["query_memory", "document_memory"])
def test_two_towers_load_both_memories_or_none(place: str) -> None:
    memories = {name: trained("axbn", 3) for name in ("document_memory", "query_memory")}
    towers, others = TwoTowerMemory(**memories), {**memories, place: trained("xbn", 5)}
    before = state(towers)
    with pytest.raises((RuntimeError, ValueError)):
        towers.load_state_dict(TwoTowerMemory(**others).state_dict())
    assert are_equal(state(towers), before)


@pytest.mark.parametrize("own", ["axbn", "xbn"])
def test_within_a_model_an_adapter_refuses_before_rows_are_loaded(own: str) -> None:
    """There the model's ``load_state_dict`` is PyTorch's, which loads the other modules until one raises."""
    memory = trained(own, 2, SupConLoss())
    before = state(memory)
    given = nn.ModuleDict({"loss": trained("xbn" if own == "axbn" else "axbn", 4, SupConLoss())}).state_dict()
    with pytest.raises(ValueError, match="build the memory as it was built then"):
        nn.ModuleDict({"loss": memory}).load_state_dict(given)
    assert are_equal(state(memory), before)
