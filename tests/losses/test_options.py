"""``delay``, ``warmup``, ``batch_loss_weight``, ``normalize_memory``, ``fill_memory``, ``reset_queue``."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable
from typing import Any

import pytest
import torch
from as_on_a_gpu import read_as
from kinds import KINDS
from pytorch_metric_learning import losses, miners
from torch import Tensor

from pml_xbn import AXBNWrapper, PerClassXBN, SuperClassXBN, TwoTowerMemory, XBNWrapper
from pml_xbn.losses import (
    AdaptiveCrossBatchMemory,
    BatchLoss,
    SampledNormalizedSoftmaxLoss,
    StopGradientSoftmaxLoss,
)
from pml_xbn.losses._options import MemoryOptions

D = 3


def batch(size: int = 6, shift: float = 0.0) -> tuple[Tensor, Tensor]:
    return torch.randn(size, D) + shift, torch.arange(size) % 3


def contrastive() -> losses.ContrastiveLoss:
    return losses.ContrastiveLoss(neg_margin=1.5)


@pytest.mark.parametrize("kind", ["xbn", "per class"])
@pytest.mark.parametrize("reads", [True, False], ids=["on a CPU", "as on a GPU"])
def test_delay_stores_and_uses_rows_that_it_does_not_adapt(
    monkeypatch: pytest.MonkeyPatch, reads: bool, kind: str
) -> None:
    if not reads:
        read_as(monkeypatch, lambda _: False)
    delayed = KINDS[kind].memory(contrastive(), D, 40, delay=3)
    plain = losses.CrossBatchMemory(contrastive(), D, 40)
    for step in range(5):
        embeddings, labels = batch(shift=step)
        ours, pmls = delayed(embeddings, labels), plain(embeddings, labels)
        assert torch.equal(delayed.embedding_memory, plain.embedding_memory) == (step < 3)
        assert torch.isclose(ours, pmls, rtol=1e-5) == (step < 3)


def test_the_filter_starts_after_the_delay() -> None:
    ours = AXBNWrapper(contrastive(), D, 40, measurement_noise=100.0, delay=2)
    for shift in (50.0, 50.0, 0.0):
        embeddings, labels = batch(shift=shift)
        ours(embeddings, labels)
    torch.testing.assert_close(ours.adapter.estimated.mean.float(), embeddings.mean(0))


@pytest.mark.parametrize("miner", [None, miners.PairMarginMiner(0.1, 1.0)])
def test_warmup_is_the_wrapped_loss_and_stores_nothing(miner: miners.BaseMiner | None) -> None:
    ours, inner = XBNWrapper(contrastive(), D, 40, miner, warmup=2, batch_loss_weight=0.5), contrastive()
    for step in range(4):
        embeddings, labels = batch()
        embeddings.requires_grad_()
        values = ours(embeddings, labels), inner(embeddings, labels, miner and miner(embeddings, labels))
        gradients = [torch.autograd.grad(value, embeddings)[0] for value in values]
        assert torch.equal(*values) == torch.equal(*gradients) == (step < 2)  # both sides of a pair get one
        assert ours.num_rows == 6 * max(0, step - 1)


def test_warmup_with_a_mask_compares_queries_with_keys() -> None:
    ours, inner = XBNWrapper(contrastive(), D, 40, warmup=1), contrastive()
    embeddings, labels = batch(8)
    mask = torch.arange(8) >= 4
    expected = inner(embeddings[~mask], labels[~mask], None, embeddings[mask], labels[mask])
    assert torch.equal(ours(embeddings, labels, None, mask), expected)
    assert ours.num_rows == 0


def test_delay_counts_from_the_end_of_warmup() -> None:
    ours = AdaptiveCrossBatchMemory(contrastive(), D, 40, warmup=2, delay=3)
    calls = []
    ours.register_memory_hook(lambda memory, *_: calls.append(len(memory)))
    for _ in range(7):
        ours(*batch())
    assert calls == [18, 24]


@pytest.mark.parametrize("weight", [0.25, 1.0])
def test_batch_loss_weight_adds_the_wrapped_loss(weight: float) -> None:
    plain, added = (
        XBNWrapper(contrastive(), D, 40),
        XBNWrapper(contrastive(), D, 40, batch_loss_weight=weight),
    )
    inner = contrastive()
    for _ in range(3):
        embeddings, labels = batch()
        expected = plain(embeddings, labels) + weight * inner(embeddings, labels)
        torch.testing.assert_close(added(embeddings, labels), expected)


def test_normalize_memory_gives_adapted_rows_unit_norm() -> None:
    ours = XBNWrapper(contrastive(), D, 40, normalize_memory=True)
    for _ in range(4):
        before = ours.num_rows
        embeddings, labels = batch()
        ours(embeddings, labels)
        norms = ours.embedding_memory[:before].norm(dim=1)
        torch.testing.assert_close(norms, torch.ones(before))
        torch.testing.assert_close(ours.embedding_memory[before : before + 6], embeddings)


def test_fill_memory_stores_rows_as_they_are() -> None:
    ours = XBNWrapper(contrastive(), D, 10)
    first, second = batch(6), batch(7, shift=9)
    ours.fill_memory(*first)
    torch.testing.assert_close(ours.embedding_memory[:6], first[0])
    ours.fill_memory(*second)
    assert (ours.num_rows, ours.queue_idx, ours.num_calls) == (10, 3, 0)
    torch.testing.assert_close(ours.embedding_memory[:3], second[0][4:])
    torch.testing.assert_close(ours.embedding_memory[3:6], first[0][3:])
    assert torch.equal(ours.label_memory[6:], second[1][:4])


def test_reset_queue_empties_the_memory_and_keeps_counting() -> None:
    ours = XBNWrapper(contrastive(), D, 10, warmup=1)
    for _ in range(3):
        ours(*batch())
    ours.reset_queue()
    assert (ours.num_rows, ours.num_calls, ours.queue_idx, ours.has_been_filled) == (0, 3, 0, False)
    assert not ours.embedding_memory.any()
    ours(*batch())
    assert ours.num_rows == 6


@pytest.mark.parametrize("size", [7, 10, 25])
def test_a_memory_that_is_reset_has_the_size_that_it_was_given(size: int) -> None:
    ours, theirs = XBNWrapper(contrastive(), D, 10), XBNWrapper(contrastive(), D, size)
    for memory in (ours, theirs):
        memory(*batch())
        memory.memory_size = size
        memory.reset_queue()
    for _ in range(4):
        inputs = batch()
        torch.testing.assert_close(ours(*inputs), theirs(*inputs))
        assert ours.queue_idx == theirs.queue_idx
    assert ours.embedding_memory.shape == (size, D)
    torch.testing.assert_close(ours.embedding_memory, theirs.embedding_memory)


def test_settings_may_be_scheduled() -> None:
    """What is set before a step counts in that step, as if the memory had been built with it."""
    ours = XBNWrapper(contrastive(), D, 20, warmup=5)
    ours(*batch())
    ours.warmup, ours.delay = 1, 1
    for weight in (0.0, 0.5, 1.0):
        ours.batch_loss_weight = weight
        twin = copy.deepcopy(ours)
        twin.batch_loss_weight = 0.0
        inputs = batch()
        expected = twin(*inputs) + weight * contrastive()(*inputs)
        torch.testing.assert_close(ours(*inputs), expected)
    ours.normalize_memory, ours.nonfinite = True, "skip"
    ours(torch.full((6, D), torch.nan), torch.arange(6))
    assert ours.num_rows == 18
    ours.update = "average"
    ours.update_momentum = 0.5
    ids = torch.arange(6)
    ours(*batch(), sample_ids=ids)
    ours(*batch(), sample_ids=ids)
    torch.testing.assert_close(ours.embedding_memory[ours.id_memory >= 0].norm(dim=1), torch.ones(6))
    ours.loss, ours.miner = losses.SupConLoss(), miners.BatchHardMiner()
    ours(*batch(), sample_ids=ids)


def test_settings_are_recordables() -> None:
    ours = XBNWrapper(contrastive(), D, 10, delay=4)
    ours(*batch())
    recorded = {name: getattr(ours, name) for name in ours._record_these}
    assert (recorded["num_rows"], recorded["delay"], recorded["queue_idx"]) == (6, 4, 6)


@pytest.mark.parametrize(
    "cls", [AdaptiveCrossBatchMemory, XBNWrapper, AXBNWrapper, PerClassXBN, SuperClassXBN]
)
def test_a_misspelt_keyword_names_the_nearest(cls: type) -> None:
    superclasses = {"superclasses": [0, 0, 0]} if cls is SuperClassXBN else {}
    with pytest.raises(
        TypeError, match=f"{cls.__name__} has no keyword 'memry_dtype': did you mean 'memory_dtype'"
    ):
        cls(contrastive(), D, 40, memry_dtype=torch.float16, **superclasses)


@pytest.mark.parametrize("cls", [XBNWrapper, AXBNWrapper, PerClassXBN, SuperClassXBN])
def test_every_class_has_the_options_of_the_memory_and_hands_them_on(cls: type) -> None:
    parameters = inspect.signature(AdaptiveCrossBatchMemory).parameters
    own = inspect.signature(cls).parameters
    assert {name: own[name] for name in parameters} == dict(parameters)
    assert not any(parameter.kind is parameter.VAR_KEYWORD for parameter in own.values())
    options: dict[str, Any] = {
        "memory_size": 30,
        "delay": 2,
        "warmup": 3,
        "batch_loss_weight": 0.5,
        "normalize_memory": True,
        "gather_distributed": True,
        "shard_distributed": False,
        "process_group": None,  # tests of groups hand one on
        "nonfinite": "skip",
        "memory_dtype": torch.float64,
        "update": "average",
        "update_momentum": 0.25,
        "collect_stats": True,
    }
    assert {"loss", "embedding_size", "miner", *options} == parameters.keys()
    superclasses = {"superclasses": [0, 0, 0]} if cls is SuperClassXBN else {}
    ours = cls(contrastive(), D, miner=miners.BatchHardMiner(), **options, **superclasses)
    assert {name: getattr(ours, name) for name in options} == options
    assert isinstance(ours.miner, miners.BatchHardMiner)


def test_the_options_have_the_types_that_the_memory_asks_for() -> None:
    parameters = inspect.signature(AdaptiveCrossBatchMemory).parameters.values()
    types = {x.name: x.annotation for x in parameters if x.kind is x.KEYWORD_ONLY}
    assert {name: x.__forward_arg__ for name, x in MemoryOptions.__annotations__.items()} == types


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (
            lambda: XBNWrapper(contrastive(), embeding_size=8),
            "XBNWrapper .*'embeding_size'.*'embedding_size'",
        ),
        (
            lambda: SuperClassXBN(contrastive(), 8, superclass=[0]),
            "SuperClassXBN .*'superclass'.*'superclasses'",
        ),
        (lambda: AdaptiveCrossBatchMemory(embedding_size=8, los=contrastive()), "'los'.*'loss'"),
        (lambda: TwoTowerMemory(document_memry=None), "'document_memry'.*'document_memory'"),
        (
            lambda: BatchLoss(contrastive(), gather_distribute=True),
            "'gather_distribute'.*'gather_distributed'",
        ),
        (lambda: StopGradientSoftmaxLoss(num_classs=3, embedding_size=8), "'num_classs'.*'num_classes'"),
        (lambda: SampledNormalizedSoftmaxLoss(3, 8, weight_init=None), "'weight_init'.*'weight_init_func'"),
    ],
)
def test_a_misspelt_parameter_is_named_before_it_is_missed(build: Callable[[], object], message: str) -> None:
    with pytest.raises(TypeError, match=message):
        build()


def test_a_parameter_that_is_missing_is_named() -> None:
    with pytest.raises(TypeError, match="'embedding_size'"):
        XBNWrapper(contrastive())


def test_a_subclass_may_take_keywords_out_before_the_memory_sees_them() -> None:
    class Mine(XBNWrapper):
        def __init__(self, *args: object, **kwargs: object) -> None:
            scale = kwargs.pop("scale")
            super().__init__(*args, **kwargs)
            self.scale = scale

    assert Mine(contrastive(), D, scale=2.0).scale == 2.0
    assert list(inspect.signature(Mine).parameters) == ["args", "kwargs"]


def test_the_keywords_of_a_subclass_count_too() -> None:
    class Mine(XBNWrapper):
        def __init__(self, *args: object, **kwargs: object) -> None:
            super().__init__(*args, **kwargs)

    with pytest.raises(TypeError, match="Mine has no keyword 'momentun': did you mean 'momentum'"):
        Mine(contrastive(), D, momentun=0.9)


def test_the_repr_shows_sizes_and_options() -> None:
    shown = repr(XBNWrapper(contrastive(), D, 40, delay=7, memory_dtype=torch.bfloat16))
    for text in (
        "embedding_size=3",
        "memory_size=40",
        "delay=7",
        "memory_dtype=torch.bfloat16",
        "nonfinite=raise",
        "MomentMatching(match_std=True, momentum=0.0",
    ):
        assert text in shown
