"""Without adaptation the memory is PML's ``CrossBatchMemory``.

One class stands for all, as they run the same code; ``test_all_combinations.py`` has more miners, reducers
and distances. Where PML's class is wrong is in ``test_host_bugs.py``.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from kinds import KINDS, WRAPPERS
from pytorch_metric_learning import losses, miners
from pytorch_metric_learning.distances import CosineSimilarity
from pytorch_metric_learning.reducers import ThresholdReducer
from torch import nn

from pml_xbn import XBNWrapper
from pml_xbn.losses import AdaptiveCrossBatchMemory

FOREVER = 10**9
MINERS = {
    "no miner": lambda: None,
    "pairs": lambda: miners.PairMarginMiner(pos_margin=0.2, neg_margin=0.8),
    "triplets": lambda: miners.TripletMarginMiner(margin=0.2),
    "multi-similarity": lambda: miners.MultiSimilarityMiner(),
}
# Of the batch's dtype. Ours computes in float32 what comes in half precision, so PML gets float32 there.
TOLERANCE = {
    torch.float16: {"rtol": 1e-3, "atol": 1e-3},
    torch.bfloat16: {"rtol": 1e-2, "atol": 1e-2},
    torch.float32: {"rtol": 1e-5, "atol": 1e-5},
    torch.float64: {"rtol": 1e-12, "atol": 1e-12},
}


def batches(num: int, size: int, device: torch.device, dtype: torch.dtype) -> list[tuple]:
    """Batches with two or more rows of every class."""
    labels = (torch.arange(size, device=device) // 2)[torch.randperm(size)]
    return [(torch.randn(size, 6, device=device).to(dtype), labels) for _ in range(num)]


def assert_same_steps(pml: nn.Module, ours: nn.Module, steps: list[tuple], dtype: torch.dtype) -> None:
    for seed, (embeddings, labels, *rest) in enumerate(steps):
        values, gradients = [], []
        for loss_fn in (pml, ours):
            batch = embeddings.clone().requires_grad_()
            torch.manual_seed(seed)  # some losses draw their triplets
            loss = loss_fn(batch if loss_fn is ours else batch.to(memory_dtype(dtype)), labels, *rest)
            loss.backward()
            values.append(loss.detach().to(dtype))
            gradients.append(batch.grad)
        assert gradients[1].dtype == dtype
        # CircleLoss multiplies cosines by γ = 80, and their rounding with them: PML's more than ours.
        gamma = getattr(pml.loss, "gamma", 1.0)
        tolerance = {name: gamma * bound for name, bound in TOLERANCE[dtype].items()}
        torch.testing.assert_close(values[1], values[0], **tolerance)
        torch.testing.assert_close(gradients[1], gradients[0], **tolerance)


def memory_dtype(dtype: torch.dtype) -> torch.dtype:
    return torch.promote_types(dtype, torch.float32)


@pytest.mark.parametrize("miner", MINERS)
@pytest.mark.parametrize("loss", losses.CrossBatchMemory.supported_losses())
@pytest.mark.parametrize("memory_dtype", [torch.float32, torch.float64], ids=str)
def test_delay_beyond_the_run_is_cross_batch_memory(
    loss: str, miner: str, device: torch.device, memory_dtype: torch.dtype
) -> None:
    make_loss = getattr(losses, loss)
    # 4 rows a batch, 10 in memory: partly filled, full, and wrapped around with an overlap. Where the memory
    # is the batch, PML is right in taking numbers of rows for those of anchors.
    size = 4 if loss == "LiftedStructureLoss" else 10
    pml = losses.CrossBatchMemory(make_loss(), 6, size, MINERS[miner]()).to(device)
    options = {"delay": FOREVER, "memory_dtype": memory_dtype}
    ours = XBNWrapper(make_loss(), 6, size, MINERS[miner](), **options).to(device)
    assert_same_steps(pml, ours, batches(4, 4, device, memory_dtype), memory_dtype)
    assert ours.queue_idx == pml.queue_idx
    assert ours.has_been_filled == pml.has_been_filled
    assert torch.equal(ours.embedding_memory, pml.embedding_memory)
    assert torch.equal(ours.label_memory, pml.label_memory)


@pytest.mark.parametrize("kind", ["plain", *WRAPPERS])
def test_so_is_every_class(kind: str, device: torch.device) -> None:
    pml = losses.CrossBatchMemory(losses.SupConLoss(), 6, 10).to(device)
    ours = KINDS[kind].memory(losses.SupConLoss(), 6, 10, delay=FOREVER).to(device)
    assert_same_steps(pml, ours, batches(4, 4, device, torch.float32), torch.float32)
    assert torch.equal(ours.embedding_memory, pml.embedding_memory)


@pytest.mark.parametrize("loss", ["ContrastiveLoss", "SupConLoss", "TripletMarginLoss"])
def test_every_dtype(loss: str, device: torch.device, dtype: torch.dtype) -> None:
    make_loss = getattr(losses, loss)
    pml = losses.CrossBatchMemory(make_loss(), 6, 30).to(device)
    ours = XBNWrapper(make_loss(), 6, 30, delay=FOREVER, memory_dtype=memory_dtype(dtype)).to(device)
    assert_same_steps(pml, ours, batches(5, 8, device, dtype), dtype)


@pytest.mark.parametrize("miner", MINERS)
def test_batch_as_large_as_memory_is_the_wrapped_loss(miner: str, device: torch.device) -> None:
    inner, chooses = losses.ContrastiveLoss(), MINERS[miner]()
    ours = XBNWrapper(losses.ContrastiveLoss(), 6, 8, MINERS[miner](), delay=FOREVER)
    for embeddings, labels in batches(3, 8, device, torch.float32):
        mined = chooses(embeddings, labels) if chooses else None
        torch.testing.assert_close(ours(embeddings, labels), inner(embeddings, labels, mined))


LEARNED = [
    ("SupConLoss", "temperature"),
    ("NTXentLoss", "temperature"),
    ("MultiSimilarityLoss", "alpha"),
    ("CircleLoss", "gamma"),
    ("TripletMarginLoss", "margin"),
]


@pytest.mark.parametrize(("loss", "setting"), LEARNED)
def test_a_setting_that_is_learned_gets_pmls_gradient(loss: str, setting: str) -> None:
    pml, ours = (
        memory(getattr(losses, loss)(), 6, 24)
        for memory in (losses.CrossBatchMemory, AdaptiveCrossBatchMemory)
    )
    for memory in (pml, ours):
        value = float(getattr(memory.loss, setting))
        setattr(memory.loss, setting, nn.Parameter(torch.tensor(value)))
    for step in batches(4, 12, torch.device("cpu"), torch.float32):
        gradients = []
        for memory in (pml, ours):
            memory.zero_grad()
            memory(*step).backward()
            gradients.append(getattr(memory.loss, setting).grad)
        assert gradients[0] != 0
        torch.testing.assert_close(*reversed(gradients), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("part", ["distance", "reducer"])
def test_what_a_distance_or_a_reducer_learns_is_computed_as_by_pml(part: str) -> None:
    embeddings, labels = batches(1, 12, torch.device("cpu"), torch.float32)[0]
    value, of_power = [], []
    for make in (losses.CrossBatchMemory, AdaptiveCrossBatchMemory):
        loss: Any = losses.SupConLoss(distance=CosineSimilarity(power=2), reducer=ThresholdReducer(low=0.5))
        if part == "distance":
            loss.distance.power = nn.Parameter(torch.tensor(2.0))
        else:
            loss.reducer.low = nn.Parameter(torch.tensor(0.5), requires_grad=True)
        value.append(make(loss, 6, 24)(embeddings.abs().requires_grad_(), labels))
        value[-1].backward()
        of_power.append(loss.distance.power.grad if part == "distance" else torch.ones(()))
    torch.testing.assert_close(*value)
    torch.testing.assert_close(*of_power)
    assert of_power[0] != 0


def test_a_subclass_may_let_another_loss_pass_as_with_pml() -> None:
    class Own(losses.BaseMetricLossFunction):
        def compute_loss(self, embeddings: Any, labels: Any, indices: Any, refs: Any, ref_labels: Any) -> Any:
            value = self.distance(embeddings, refs)
            return {"loss": {"losses": value.mean(), "indices": None, "reduction_type": "already_reduced"}}

        def get_default_distance(self) -> Any:
            return CosineSimilarity()

    class LetsItPass:
        @staticmethod
        def supported_losses() -> list[str]:
            return [*losses.CrossBatchMemory.supported_losses(), "Own"]

    class Ours(LetsItPass, AdaptiveCrossBatchMemory):
        pass

    memory = Ours(Own(), 6, 24)
    embeddings, labels = batches(1, 12, torch.device("cpu"), torch.float32)[0]
    torch.testing.assert_close(memory(embeddings, labels), CosineSimilarity()(embeddings, embeddings).mean())
    with pytest.raises(ValueError, match=r"FastAPLoss cannot be used.*Own, or a subclass"):
        Ours(losses.FastAPLoss(), 6, 24)
    with pytest.raises(ValueError, match="TripletMarginLoss cannot be used"):
        Ours(nn.TripletMarginLoss(), 6, 24)  # PyTorch's


def test_enqueue_mask(device: torch.device) -> None:
    """MoCo's call: the keys are stored, the queries are anchors, and nothing is its own copy."""
    pml = losses.CrossBatchMemory(losses.ContrastiveLoss(), 6, 10)
    ours = XBNWrapper(losses.ContrastiveLoss(), 6, 10, delay=FOREVER)
    steps = []
    for step in range(6):
        labels = torch.arange(4, device=device).repeat(2) + 4 * step
        mask = torch.arange(8, device=device) >= 4
        steps.append((torch.randn(8, 6, device=device), labels, None, mask))
    assert_same_steps(pml, ours, steps, torch.float32)
    assert torch.equal(ours.label_memory, pml.label_memory)


def test_queue_holds_the_batch_where_it_says() -> None:
    ours = XBNWrapper(losses.ContrastiveLoss(), 6, 81, delay=FOREVER)
    for step in range(30):
        assert ours.queue_idx == step * 8 % 81
        rows = (ours.queue_idx + torch.arange(8)) % 81
        embeddings = torch.randn(8, 6)
        ours(embeddings, torch.arange(8))
        assert torch.equal(ours.embedding_memory[rows], embeddings)
        assert torch.equal(ours.label_memory[rows], torch.arange(8))
        assert torch.equal(ours.curr_batch_idx, rows)


def test_positional_arguments_are_pmls() -> None:
    miner = miners.PairMarginMiner()
    ours = XBNWrapper(losses.SupConLoss(), 6, 20, miner)
    assert (ours.embedding_size, ours.memory_size, ours.miner) == (6, 20, miner)
    assert isinstance(ours, losses.CrossBatchMemory)
