"""A loss is NaN, and its gradient holds NaN, where the batch or a stored row holds NaN or inf.

PML's class gives NaN for one, or for both, or finite numbers where its masks leave NaN out, by loss, miner,
and class of the row. Ours follows one rule.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from across_ranks import of_all_ranks
from pytorch_metric_learning import distances, losses, miners, reducers
from pytorch_metric_learning.losses import CrossBatchMemory
from ranks import on_ranks
from torch import Tensor, distributed, nn

from pml_xbn import TwoTowerMemory, XBNWrapper
from pml_xbn.losses import AdaptiveCrossBatchMemory

B, D, M = 8, 6, 32
DTYPES = [torch.float32, torch.float64, torch.float16, torch.bfloat16]
BAD = [torch.nan, torch.inf, -torch.inf]
LOSSES: list[str] = losses.CrossBatchMemory.supported_losses()
MINERS: dict[str, Callable[[], Any]] = {
    "none": lambda: None,
    "angular": miners.AngularMiner,
    "easy": lambda: miners.BatchEasyHardMiner("easy", "semihard"),
    "all positives": lambda: miners.BatchEasyHardMiner("all", "hard"),
    "hard": miners.BatchHardMiner,
    "distance weighted": miners.DistanceWeightedMiner,
    "hdc": miners.HDCMiner,
    "multi-similarity": miners.MultiSimilarityMiner,
    "pair margin": lambda: miners.PairMarginMiner(0.8, 1.3),
    "triplet margin": miners.TripletMarginMiner,
    "easy triplets": lambda: miners.TripletMarginMiner(0.3, "easy"),
}
# Options of the memory, and how it is called.
MODES: dict[str, tuple[dict[str, Any], str]] = {
    "ignore": ({"nonfinite": "ignore"}, "train"),
    "skip": ({"nonfinite": "skip"}, "train"),
    "eval": ({}, "eval"),
    "no gradients": ({}, "no_grad"),
    "warm-up": ({"warmup": 9, "nonfinite": "ignore"}, "train"),
    "warm-up, skip": ({"warmup": 9, "nonfinite": "skip"}, "train"),
    "batch loss": ({"batch_loss_weight": 0.5, "nonfinite": "ignore"}, "train"),
    "batch loss, skip": ({"batch_loss_weight": 0.5, "nonfinite": "skip"}, "train"),
    "mask": ({"nonfinite": "ignore"}, "mask"),
    "mask, skip": ({"nonfinite": "skip"}, "mask"),
    "mask, eval": ({}, "mask, eval"),
    "samples": ({"nonfinite": "ignore"}, "samples"),
    "pairs": ({"nonfinite": "ignore"}, "pairs"),
    "pairs, skip": ({"nonfinite": "skip"}, "pairs"),
    "empty": ({"nonfinite": "skip"}, "empty"),
}
# Where the number is that is not finite.
PLACES = ["a number", "an embedding", "all", "of no pair", "stored", "stored, of no pair"]


def batch(seed: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(B, D, generator=generator), torch.arange(B) % 4


def spoilt(place: str, bad: float, row: int = 3) -> tuple[Tensor, Tensor]:
    embeddings, labels = batch(9)
    if place in ("a number", "stored"):
        embeddings[row, 1] = bad
    else:
        embeddings[slice(None) if place == "all" else row] = bad
    if "of no pair" in place:
        labels[row] = 77
    return embeddings, labels


def called(memory: AdaptiveCrossBatchMemory, embeddings: Tensor, labels: Tensor, call: str) -> Tensor:
    memory.train("eval" not in call)
    if call == "no_grad":
        with torch.no_grad():
            return memory(embeddings, labels)
    if "mask" in call:
        return memory(embeddings, labels, enqueue_mask=torch.arange(B) % 2 == 1)
    if call == "samples":
        return memory(embeddings, labels, sample_ids=torch.arange(B) * 3)
    pairs = (torch.tensor([0]), torch.tensor([4]), torch.tensor([1]), torch.tensor([2]))
    return memory(embeddings, labels, pairs if call == "pairs" else None)


def assert_nan(value: Tensor, embeddings: Tensor) -> None:
    assert value.isnan()
    if value.requires_grad:
        value.backward()
        assert embeddings.grad is not None
        assert embeddings.grad.isnan().any()


def assert_told(memory: AdaptiveCrossBatchMemory, mode: str, place: str, bad: float) -> None:
    call = MODES[mode][1]
    if call != "empty":
        memory.fill_memory(*batch(0))
        for seed in range(2):
            memory(*batch(seed))
    if "stored" in place:
        wanted, memory.nonfinite = memory.nonfinite, "ignore"
        memory.fill_memory(*spoilt(place, bad))
        memory.nonfinite = wanted
        embeddings, labels = batch(10)
    else:
        embeddings, labels = spoilt(place, bad)
    before = memory.num_rows, memory.embedding_memory
    embeddings.requires_grad_()
    assert_nan(called(memory, embeddings, labels, call), embeddings)
    if memory.nonfinite == "skip" and "stored" not in place:
        assert memory.num_rows == before[0]
        assert torch.equal(memory.embedding_memory, before[1])


def kind_for(mode: str, place: str) -> type[AdaptiveCrossBatchMemory]:
    """One that takes the step: a memory that adapts refuses rows of NaN, but with ``nonfinite="ignore"``."""
    options, call = MODES[mode]
    is_refused = "stored" in place and options.get("nonfinite") != "ignore" and "eval" not in call
    return AdaptiveCrossBatchMemory if is_refused else XBNWrapper


def can_be(mode: str, place: str) -> bool:
    """Whether a call of this kind compares anything with stored rows, or has any."""
    return "stored" not in place or not ("warm-up" in mode or mode == "empty")


CASES = [(mode, place) for mode in MODES for place in PLACES if can_be(mode, place)]


@pytest.mark.parametrize("miner", MINERS)
@pytest.mark.parametrize("loss", LOSSES)
def test_in_every_mode(loss: str, miner: str) -> None:
    """Every loss and miner in some of the cases, and all of them in all."""
    first = 11 * LOSSES.index(loss) + list(MINERS).index(miner)
    for number in range(first, first + 2 * len(CASES), 41):
        mode, place = CASES[number % len(CASES)]
        by_itself = "warm-up" in mode or "batch loss" in mode
        if (miner, place) == ("distance weighted", "all") and by_itself:
            continue  # of a batch by itself PML's code draws, and raises
        kind = (kind_for(mode, place), AdaptiveCrossBatchMemory)[number % 2]
        options = MODES[mode][0] | {"memory_dtype": DTYPES[number % 4]}
        memory = kind(getattr(losses, loss)(), D, M, MINERS[miner](), **options)
        assert_told(memory, mode, place, BAD[number % 3])


@pytest.mark.parametrize("miner", [name for name in MINERS if name != "distance weighted"])
@pytest.mark.parametrize("loss", LOSSES)
def test_pmls_class_never_gives_a_finite_loss_and_gradient(loss: str, miner: str) -> None:
    """The reason for the rule: what it says of a batch with NaN differs, but it is never a usable step."""
    for place in ("a number", "all", "of no pair"):
        make = getattr(losses, loss)
        theirs = CrossBatchMemory(make(), D, M, MINERS[miner]())
        ours = AdaptiveCrossBatchMemory(make(), D, M, MINERS[miner](), nonfinite="ignore")
        for memory in (theirs, ours):
            memory(*batch(0))
            embeddings, labels = spoilt(place, torch.nan)
            value = memory(embeddings.requires_grad_(), labels)
            value.backward()
            assert value.isnan() or (memory is theirs and embeddings.grad.isnan().any())


class OwnSupCon(losses.SupConLoss):
    """Computed by PML's code, as it has a method of its own."""

    def compute_loss(self, *args: Any) -> Any:
        return super().compute_loss(*args)


OTHERS: dict[str, Callable[[], Any]] = {
    "subclass": OwnSupCon,
    "class weights": lambda: losses.SupConLoss(reducer=reducers.ClassWeightedReducer(torch.ones(100))),
    "sum": lambda: losses.CircleLoss(reducer=reducers.SumReducer()),
    "per anchor": lambda: losses.SupConLoss(reducer=reducers.PerAnchorReducer()),
    "taxicab": lambda: losses.ContrastiveLoss(distance=distances.LpDistance(p=1)),
    "not normalized": lambda: losses.TripletMarginLoss(
        distance=distances.LpDistance(normalize_embeddings=False)
    ),
    "products": lambda: losses.NTXentLoss(
        distance=distances.DotProductSimilarity(normalize_embeddings=False)
    ),
    "divisor": lambda: losses.MarginLoss(reducer=reducers.DivisorReducer()),
    "learned": lambda: losses.MarginLoss(learn_beta=True, num_classes=100),
    "plain SNR": lambda: losses.SignalToNoiseRatioContrastiveLoss(
        distance=distances.SNRDistance(normalize_embeddings=False)
    ),
}


@pytest.mark.parametrize("other", OTHERS)
def test_with_other_losses_distances_and_reducers(other: str) -> None:
    for number, (mode, place) in enumerate(CASES[::5]):
        memory = kind_for(mode, place)(OTHERS[other](), D, M, None, **MODES[mode][0])
        assert_told(memory, mode, place, BAD[number % 3])


@pytest.mark.parametrize("zeros", [slice(0, 1), slice(0, B)], ids=["the first", "all but one"])
@pytest.mark.parametrize("loss", LOSSES)
def test_rows_of_zeros_do_not_hide_it(loss: str, zeros: slice) -> None:
    """Their products with NaN are told, those with finite numbers are zero."""
    for place in ("an embedding", "stored", "stored, of no pair"):
        for bad in BAD:
            memory = AdaptiveCrossBatchMemory(getattr(losses, loss)(), D, M, nonfinite="ignore")
            embeddings, labels = spoilt(place, bad)
            embeddings[[row for row in range(B)[zeros] if row != 3]] = 0
            if "stored" in place:
                memory.fill_memory(embeddings, labels)
                embeddings, labels = torch.zeros(B, D), torch.arange(B) % 4
            assert memory(embeddings, labels).isnan()


@pytest.mark.parametrize("loss", LOSSES)
def test_a_batch_of_one(loss: str) -> None:
    for place in ("an embedding", "stored"):
        memory = XBNWrapper(getattr(losses, loss)(), D, M, nonfinite="ignore")
        embeddings, labels = (x[3:4] for x in spoilt(place, torch.nan))
        memory.fill_memory(*batch(0))
        if place == "stored":
            memory.fill_memory(embeddings, labels)
            embeddings, labels = (x[:1] for x in batch(1))
        embeddings.requires_grad_()
        assert_nan(memory(embeddings, labels), embeddings)


@pytest.mark.parametrize("bad", BAD)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("kind", [AdaptiveCrossBatchMemory, XBNWrapper])
def test_as_long_as_the_row_is_stored_and_no_longer(kind: Any, dtype: torch.dtype, bad: float) -> None:
    memory = kind(losses.ContrastiveLoss(), D, M, nonfinite="ignore", memory_dtype=dtype)
    for seed in range(5):
        assert memory(*batch(seed)).isfinite()
    memory(*spoilt("a number", bad))
    for seed in range(10, 10 + M // B - 1):
        assert memory(*batch(seed)).isnan()
    for seed in range(20, 26):
        assert memory(*batch(seed)).isfinite()


@pytest.mark.parametrize("call", ["train", "eval"])
@pytest.mark.parametrize("nonfinite", ["skip", "ignore"])
@pytest.mark.parametrize("tower", [0, 1])
def test_of_two_towers(tower: int, nonfinite: str, call: str) -> None:
    for is_one_sided in (False, True):
        memories = [XBNWrapper(losses.ContrastiveLoss(), D, M, nonfinite=nonfinite) for _ in range(2)]
        memory = TwoTowerMemory(
            document_memory=memories[0], query_memory=None if is_one_sided else memories[1]
        )
        queries, documents = batch(0)[0].requires_grad_(), batch(1)[0].requires_grad_(not is_one_sided)
        assert memory(queries, documents, torch.arange(B)).isfinite()
        inputs = [batch(2)[0], batch(3)[0]]
        inputs[tower][3, 1] = torch.nan
        for number in range(1 if is_one_sided else 2):
            inputs[number].requires_grad_()
        assert_nan(memory.train(call == "train")(*inputs, torch.arange(B)), inputs[0])


def test_a_result_that_is_no_tensor_is_the_reducers() -> None:
    memory = AdaptiveCrossBatchMemory(
        losses.SupConLoss(reducer=reducers.DoNothingReducer()), D, M, nonfinite="ignore"
    )
    memory(*batch(0))
    assert memory(*spoilt("all", torch.nan))["loss"]["losses"].isnan().all()


# -- ranks -------------------------------------------------------------------------------------------------

LOSSES_ON_RANKS = losses.ContrastiveLoss, losses.SupConLoss, losses.CircleLoss, losses.NTXentLoss
MINERS_ON_RANKS = "none", "multi-similarity", "distance weighted"
# Whether rows are on all ranks or spread, what a memory does with NaN, and its other options.
OPTIONS_ON_RANKS: list[dict[str, Any]] = [
    {way: True, "nonfinite": nonfinite, **more}
    for way in ("gather_distributed", "shard_distributed")
    for nonfinite in ("skip", "ignore")
    for more in ({}, {"batch_loss_weight": 0.5}, {"warmup": 9})
]
CASES_ON_RANKS = [
    pytest.param(
        loss, miner, options, id=f"{loss.__name__}, {miner}, {', '.join(map(str, options.values()))}"
    )
    for loss, miner, options in list(itertools.product(LOSSES_ON_RANKS, MINERS_ON_RANKS, OPTIONS_ON_RANKS))[
        ::11
    ]
    if not ("shard_distributed" in options and miner == "distance weighted")
]


@pytest.mark.parametrize("is_masked", [False, True])
@pytest.mark.parametrize(("loss", "miner", "options"), CASES_ON_RANKS)
@on_ranks(2)
def test_all_ranks_are_told_of_what_one_has_in_its_batch_or_all_have_stored(
    loss: type[nn.Module], miner: str, options: dict[str, Any], is_masked: bool
) -> None:
    memory = XBNWrapper(loss(), 4, 30, MINERS[miner](), **options)

    def step(number: int, is_bad: bool = False) -> tuple[Tensor, Tensor]:
        """The loss, and the embeddings with their gradient."""
        generator = torch.Generator().manual_seed(100 * number + distributed.get_rank())
        embeddings = torch.randn(6, 4, generator=generator)
        if is_bad and distributed.get_rank() == 1:
            embeddings[3, 1] = torch.nan  # which is stored where there is a mask
        mask = torch.arange(6) % 2 == 1 if is_masked else None
        value = memory(embeddings.requires_grad_(), torch.arange(6) % 3, None, mask)
        value.backward()
        return value, embeddings

    def assert_told(value: Tensor, embeddings: Tensor) -> None:
        assert value.isnan()
        assert any(of_all_ranks(bool(embeddings.grad.isnan().any())))

    assert step(0)[0].isfinite()
    assert_told(*step(1, is_bad=True))
    if "warmup" in options:
        return
    if options["nonfinite"] == "ignore":
        assert_told(*step(2))
    else:
        assert step(2)[0].isfinite()
