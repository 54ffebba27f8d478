"""A reducer that returns no number, as PML's ``DoNothingReducer``: all calls return one kind, or raise."""

from __future__ import annotations

from itertools import product
from typing import Any

import pytest
import torch
from every_memory import EVERY, D, are_equal, batch, state, step
from pytorch_metric_learning import losses
from pytorch_metric_learning.reducers import BaseReducer, DoNothingReducer, MeanReducer
from pytorch_metric_learning.utils import loss_and_miner_utils as lmu
from torch import Tensor

from pml_xbn import TwoTowerMemory
from pml_xbn.losses import AdaptiveCrossBatchMemory, BatchLoss


class Terms(BaseReducer):
    """A reducer of somebody's own, of which nobody knows that it returns a list."""

    def forward(self, loss_dict: dict[str, Any], embeddings: Tensor, labels: Tensor) -> Any:
        return [torch.as_tensor(part["losses"]).sum() for part in loss_dict.values()]


LOSSES = {"ContrastiveLoss": losses.ContrastiveLoss, "SupConLoss": losses.SupConLoss}


def loss_of(name: str, reducer: BaseReducer | None = None) -> Any:
    loss = LOSSES[name]()
    loss.reducer = DoNothingReducer() if reducer is None else reducer
    return loss


def terms_of(value: dict[str, Any]) -> dict[str, Tensor]:
    return {name: torch.as_tensor(part["losses"]) for name, part in value.items()}


ALL_STORED = {"enqueue_mask": torch.ones(5, dtype=torch.bool)}
NONE_STORED = {"enqueue_mask": torch.zeros(5, dtype=torch.bool)}
CALLS: dict[str, dict[str, Any]] = {
    "training": {},
    "no anchors": ALL_STORED,
    "nothing to store": NONE_STORED,
    "some of each": {"enqueue_mask": torch.arange(5) > 2},
    "samples": {"sample_ids": torch.arange(5)},
    "pairs": {"indices_tuple": lmu.get_all_pairs_indices(batch(9)[1])},
}


@pytest.mark.parametrize("name", LOSSES)
@pytest.mark.parametrize("kind", EVERY)
def test_every_call_returns_the_terms_by_the_names_of_the_loss(kind: str, name: str) -> None:
    """In training and in eval, warmed up or not, and with an empty memory."""
    names = losses.ContrastiveLoss().sub_loss_names() if name == "ContrastiveLoss" else ["loss"]
    for warmup, num_steps, is_training, call in product((0, 2), (0, 1, 4), (True, False), CALLS):
        memory = EVERY[kind](loss_of(name), warmup=warmup)
        for number in range(num_steps):
            memory(*batch(number))
        value = memory.train(is_training)(*batch(9), **CALLS[call])
        assert isinstance(value, dict), (warmup, num_steps, is_training, call)
        assert list(value) == names
        assert all(set(part) >= {"losses", "indices", "reduction_type"} for part in value.values())


@pytest.mark.parametrize("name", LOSSES)
def test_terms_are_those_whose_mean_another_reducer_returns(name: str) -> None:
    ours, mean = EVERY["xbn"](loss_of(name)), EVERY["xbn"](LOSSES[name](reducer=MeanReducer()))
    for number in range(4):
        terms = terms_of(ours(*batch(number)))
        expected = mean(*batch(number))
        torch.testing.assert_close(sum(x.mean() for x in terms.values()), expected)


def test_without_pairs_terms_are_zero_as_pmls_are() -> None:
    embeddings, _ = batch(0)
    different = torch.arange(len(embeddings))
    pmls = loss_of("SupConLoss")(embeddings, different)
    ours = AdaptiveCrossBatchMemory(loss_of("SupConLoss"), D, 14)(embeddings, different, **ALL_STORED)
    assert ours == pmls
    assert BatchLoss(loss_of("SupConLoss"))(embeddings[:0], different[:0]) == pmls


@pytest.mark.parametrize("kind", EVERY)
def test_a_weight_of_the_batch_is_refused_when_built_and_when_set(kind: str) -> None:
    message = "batch_loss_weight=1.0 with a DoNothingReducer, which returns no number to add to: pass"
    with pytest.raises(ValueError, match=message):
        EVERY[kind](loss_of("ContrastiveLoss"), batch_loss_weight=1.0)
    memory = EVERY[kind](loss_of("ContrastiveLoss"))
    with pytest.raises(ValueError, match=message):
        memory.batch_loss_weight = 1.0
    weighted = EVERY[kind](batch_loss_weight=1.0)
    with pytest.raises(ValueError, match=message):
        weighted.loss = loss_of("ContrastiveLoss")
    weighted.batch_loss_weight = 0.0
    weighted.loss = loss_of("ContrastiveLoss")
    assert isinstance(weighted(*batch(0)), dict)


@pytest.mark.parametrize("reducer", [DoNothingReducer(), Terms()], ids=lambda x: type(x).__name__)
@pytest.mark.parametrize("call", CALLS)
def test_a_reducer_that_is_set_later_is_refused_by_the_step_which_changes_nothing(
    call: str, reducer: BaseReducer
) -> None:
    memory = EVERY["xbn"](batch_loss_weight=0.5)
    step(memory, 0)
    memory.loss.reducer = reducer
    before = state(memory)
    with pytest.raises(ValueError, match=f"batch_loss_weight=0.5 with a {type(reducer).__name__}"):
        memory(*batch(9), **CALLS[call])
    assert are_equal(state(memory), before)
    memory.eval()(*batch(1))


def test_two_towers_of_terms_are_refused_when_built() -> None:
    for first, second in product((loss_of("SupConLoss"), None), repeat=2):
        memories = EVERY["xbn"](first), EVERY["axbn"](second)
        if first is second is None:
            continue
        with pytest.raises(
            ValueError, match=r"two towers with a .*DoNothingReducer.*do not both return a number"
        ):
            TwoTowerMemory(document_memory=memories[0], query_memory=memories[1])


@pytest.mark.parametrize("reducer", [DoNothingReducer(), Terms()], ids=lambda x: type(x).__name__)
def test_a_reducer_that_is_set_later_is_refused_by_two_towers_which_change_nothing(
    reducer: BaseReducer,
) -> None:
    towers = TwoTowerMemory(document_memory=EVERY["xbn"](), query_memory=EVERY["axbn"]())
    embeddings, labels = batch(0)
    towers(embeddings, embeddings, labels)
    towers.query_memory.loss.reducer = reducer
    before = state(towers)
    with pytest.raises(
        ValueError, match=f"two towers with a AvgNonZeroReducer and a {type(reducer).__name__}"
    ):
        towers(embeddings, embeddings, labels)
    assert are_equal(state(towers), before)


@pytest.mark.parametrize("is_training", [True, False])
def test_one_sided_towers_return_the_terms(is_training: bool) -> None:
    embeddings, labels = batch(0)
    towers = TwoTowerMemory(document_memory=EVERY["xbn"](loss_of("SupConLoss")))
    towers.train(is_training)
    for _ in range(2):
        assert list(towers(embeddings, embeddings.detach(), labels)) == ["loss"]


def test_a_list_of_a_reducer_of_ones_own_is_returned_by_every_call() -> None:
    for num_steps, is_training, call in product((0, 2), (True, False), CALLS):
        memory = EVERY["xbn"](loss_of("ContrastiveLoss", Terms()))
        for number in range(num_steps):
            memory(*batch(number))
        value = memory.train(is_training)(*batch(9), **CALLS[call])
        assert isinstance(value, list)
        assert len(value) == 2


def test_a_reducer_that_returns_terms_returns_those_of_pml() -> None:
    loss = loss_of("ContrastiveLoss")
    ours, pmls = (make(loss, D, 10) for make in (AdaptiveCrossBatchMemory, losses.CrossBatchMemory))
    for _ in range(3):
        embeddings, labels = torch.randn(4, D), torch.arange(4) % 2
        found, expected = ours(embeddings, labels), pmls(embeddings, labels)
        assert found.keys() == expected.keys()
        for name, terms in found.items():
            torch.testing.assert_close(terms["losses"], expected[name]["losses"])
