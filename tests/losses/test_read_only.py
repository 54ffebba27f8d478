"""In ``eval()``, and without gradients, the memory is read and never written."""

from __future__ import annotations

import copy
import pickle
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from exact import exact
from pytorch_metric_learning import miners
from pytorch_metric_learning.losses import ContrastiveLoss, LiftedStructureLoss, SupConLoss
from pytorch_metric_learning.reducers import MeanReducer
from pytorch_metric_learning.utils import loss_and_miner_utils as lmu
from torch import Tensor, nn

from pml_xbn import AXBNWrapper, XBNWrapper
from pml_xbn.losses import AdaptiveCrossBatchMemory

D = 4


@contextmanager
def evaluating(loss_fn: nn.Module) -> Iterator[None]:
    loss_fn.eval()
    yield
    loss_fn.train()


MODES: dict[str, Callable] = {
    "eval": evaluating,
    "no_grad": lambda _: torch.no_grad(),
    "inference_mode": lambda _: torch.inference_mode(),
}


@pytest.fixture(params=MODES)
def reading(request: pytest.FixtureRequest) -> Callable:
    return MODES[request.param]


def make(miner: object = None) -> AXBNWrapper:
    loss = ContrastiveLoss(neg_margin=1.5, reducer=MeanReducer())
    return AXBNWrapper(loss, D, 12, miner, measurement_noise=5.0)


def batch(size: int = 5) -> tuple[Tensor, Tensor]:
    return torch.randn(size, D), torch.arange(size) % 3


@pytest.mark.parametrize("miner", [None, miners.PairMarginMiner(0.1, 1.3)])
@pytest.mark.parametrize("steps", [1, 4])
def test_loss_is_that_against_the_stored_rows(reading: Callable, miner: object, steps: int) -> None:
    loss_fn = make(miner)
    for _ in range(steps):
        loss_fn(*batch())
    before = exact(loss_fn)
    rows, labels = loss_fn.embedding_memory[: loss_fn.num_rows], loss_fn.label_memory[: loss_fn.num_rows]
    embeddings, new_labels = batch()
    with reading(loss_fn):
        loss = loss_fn(embeddings, new_labels)
    pairs = lmu.get_all_pairs_indices(new_labels, labels)
    if miner is not None:
        pairs = miner(embeddings, new_labels, rows, labels)
    torch.testing.assert_close(loss, loss_fn.loss(embeddings, new_labels, pairs, rows, labels))
    assert exact(loss_fn) == before


def test_a_memory_without_rows_gives_zero_and_says_once_what_to_do(reading: Callable) -> None:
    loss_fn = make(miners.BatchHardMiner())
    with reading(loss_fn):
        with pytest.warns(UserWarning, match="memory of this AXBNWrapper is empty.*fill_memory.*training"):
            assert loss_fn(*batch()) == 0
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            assert loss_fn(*batch()) == 0


def test_while_the_memory_warms_up_the_loss_is_the_batchs_own(reading: Callable) -> None:
    """As in training. A validation loss of zero there would be the least of all."""
    loss_fn = XBNWrapper(ContrastiveLoss(neg_margin=1.5), D, 12, warmup=2)
    for _ in range(2):
        embeddings, labels = batch()
        before = exact(loss_fn)
        with reading(loss_fn):
            loss = loss_fn(embeddings, labels)
        assert exact(loss_fn) == before
        torch.testing.assert_close(loss, loss_fn.loss(embeddings, labels))
        torch.testing.assert_close(loss, loss_fn(embeddings, labels))


def test_with_given_pairs_the_loss_is_that_of_a_batch_that_is_stored(reading: Callable) -> None:
    loss_fn = make()
    loss_fn(*batch())
    rows, labels = loss_fn.embedding_memory[:5], loss_fn.label_memory[:5]
    before = exact(loss_fn)
    embeddings, new_labels = batch()
    given = lmu.get_all_pairs_indices(new_labels)
    with reading(loss_fn):
        loss = loss_fn(embeddings, new_labels, given)
    refs, ref_labels = torch.cat([rows, embeddings]), torch.cat([labels, new_labels])
    pairs = lmu.get_all_pairs_indices(new_labels, ref_labels)
    pairs = lmu.remove_self_comparisons(pairs, torch.arange(5, 10), 10)
    shifted = (given[0], given[1] + 5, given[2], given[3] + 5)
    both = tuple(torch.cat(pair) for pair in zip(pairs, shifted, strict=True))
    torch.testing.assert_close(loss, loss_fn.loss(embeddings, new_labels, both, refs, ref_labels))
    assert exact(loss_fn) == before


def test_given_pairs_of_lifted_structure_do_not_depend_on_the_order_of_rows(reading: Callable) -> None:
    stored, labels = batch(12)
    embeddings, new_labels = batch()
    values = []
    for order in (torch.arange(12), torch.arange(12).flip(0)):
        loss_fn = AdaptiveCrossBatchMemory(LiftedStructureLoss(), D, 12)
        loss_fn(stored[order], labels[order])
        with reading(loss_fn):
            values.append(loss_fn(embeddings, new_labels, lmu.get_all_pairs_indices(new_labels)))
    torch.testing.assert_close(*values)


def test_evaluation_between_steps_changes_no_later_step(reading: Callable) -> None:
    disturbed, plain = make(), make()
    for _ in range(6):
        embeddings, labels = batch()
        with reading(disturbed):
            disturbed(*batch())
        assert torch.equal(disturbed(embeddings, labels), plain(embeddings, labels))
    assert torch.equal(disturbed.embedding_memory, plain.embedding_memory)


def trained_after(prepare: Callable[[XBNWrapper], XBNWrapper]) -> dict[str, object]:
    """What is in memory after some steps that come after what happened in inference mode."""
    torch.manual_seed(0)
    loss_fn = XBNWrapper(SupConLoss(), D, 10)
    loss_fn(*batch(4))
    with torch.inference_mode():
        loss_fn = prepare(loss_fn)
    for _ in range(4):
        embeddings = torch.randn(4, D, requires_grad=True)
        loss_fn(embeddings, torch.arange(4) % 2).backward()
    return exact(loss_fn)


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


class WritesToLabels(SupConLoss):
    def compute_loss(
        self, embeddings: Tensor, labels: Tensor, pairs: Any, rows: Tensor, of_rows: Tensor
    ) -> Any:
        of_rows.fill_(7)
        return super().compute_loss(embeddings, labels, pairs, rows, of_rows)


class MinerThatWritesToLabels(miners.BaseMiner):
    def mine(self, embeddings: Tensor, labels: Tensor, rows: Tensor, of_rows: Tensor) -> Any:
        found = lmu.get_all_pairs_indices(labels, of_rows)
        of_rows.fill_(7)
        return found


@pytest.mark.parametrize("is_training", [True, False])
@pytest.mark.parametrize(
    ("loss", "miner"), [(WritesToLabels(), None), (SupConLoss(), MinerThatWritesToLabels())]
)
def test_what_a_loss_or_miner_writes_to_labels_of_rows_is_not_the_memorys(
    loss: Any, miner: Any, is_training: bool
) -> None:
    memory, twin = XBNWrapper(loss, 4, 16, miner), XBNWrapper(SupConLoss(), 4, 16)
    for one in (memory, twin):
        torch.manual_seed(0)
        for _ in range(3):
            one(torch.randn(8, 4), torch.arange(8) % 4)
        one.train(is_training)(torch.randn(8, 4), torch.arange(8) % 4)
    assert torch.equal(memory.label_memory, twin.label_memory)
