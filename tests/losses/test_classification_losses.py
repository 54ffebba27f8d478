"""What both classification losses do: PML's reducers, miners, regularizers logging, and checked input."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from pytorch_metric_learning import reducers, regularizers
from torch import Tensor

from pml_xbn.losses import SampledNormalizedSoftmaxLoss, StopGradientSoftmaxLoss
from pml_xbn.losses.base_classification_loss import BaseClassificationLoss

D, C = 4, 7
LABELS = torch.tensor([0, 0, 3, 3, 1, 4])
MAKE: dict[str, Callable[..., BaseClassificationLoss]] = {
    "Eq. 7": lambda **kw: StopGradientSoftmaxLoss(C, D, **kw),
    "Eq. 7, softmax alone": lambda **kw: StopGradientSoftmaxLoss(C, D, threshold=0.0, **kw),
    "Eq. 1": lambda **kw: SampledNormalizedSoftmaxLoss(C, D, **kw),
    "Eq. 1, sampled": lambda **kw: SampledNormalizedSoftmaxLoss(C, D, share=0.8, **kw),
}


@pytest.fixture(params=MAKE)
def make(request: pytest.FixtureRequest) -> Callable[..., BaseClassificationLoss]:
    return MAKE[request.param]


def rows(device: torch.device, d: int = D) -> Tensor:
    return torch.randn(len(LABELS), d, device=device)


def per_row(loss_fn: BaseClassificationLoss, f: Tensor) -> Tensor:
    """The losses of the rows, with their random classes where some are drawn."""
    labels = LABELS.to(f.device)
    parts = loss_fn.compute_loss(f, labels, None, f, labels)
    return torch.stack([part["losses"] for part in parts.values()])


def test_default_is_the_mean_over_rows(make: Callable, device: torch.device) -> None:
    loss_fn, f = make().to(device), rows(device)
    random_state = torch.get_rng_state()
    expected = per_row(loss_fn, f).mean(dim=1).sum()
    torch.set_rng_state(random_state)
    torch.testing.assert_close(loss_fn(f, LABELS), expected)


@pytest.mark.parametrize(
    ("reducer", "expected"),
    [
        (reducers.MeanReducer(), lambda x: x.mean()),
        (reducers.AvgNonZeroReducer(), lambda x: x[x > 0].mean() if (x > 0).any() else x.sum()),
        (reducers.ThresholdReducer(low=0.7), lambda x: x[x > 0.7].mean() if (x > 0.7).any() else 0 * x.sum()),
        (
            reducers.ClassWeightedReducer(torch.arange(1.0, C + 1)),
            lambda x: (x * (LABELS.to(x.device) + 1)).mean(),
        ),
    ],
    ids=lambda x: type(x).__name__,
)
def test_reducers_of_pml(
    make: Callable, reducer: reducers.BaseReducer, expected: Callable, device: torch.device
) -> None:
    loss_fn, f = make(reducer=reducer).to(device), rows(device)
    random_state = torch.get_rng_state()
    total = sum(expected(part) for part in per_row(loss_fn, f))
    torch.set_rng_state(random_state)
    torch.testing.assert_close(loss_fn(f, LABELS), total)


def test_a_row_weighs_as_often_as_it_was_mined(make: Callable, device: torch.device) -> None:
    loss_fn, f = make().to(device), rows(device)
    triplets = tuple(torch.tensor(x, device=device) for x in ([0, 0, 2], [1, 1, 3], [2, 4, 0]))
    # Row 0 is there 3 times; 1 and 2 twice; 3 and 4 once; 5 never.
    weights = torch.tensor([3, 2, 2, 1, 1, 0], device=device) / 3
    random_state = torch.get_rng_state()
    expected = (per_row(loss_fn, f) * weights).mean(dim=1).sum()
    torch.set_rng_state(random_state)
    torch.testing.assert_close(loss_fn(f, LABELS, triplets), expected)


def test_regularizers_are_added(make: Callable, device: torch.device) -> None:
    f = rows(device)
    plain = make().to(device)
    loss_fn = make(
        weight_regularizer=regularizers.LpRegularizer(),
        weight_reg_weight=0.5,
        embedding_regularizer=regularizers.LpRegularizer(),
        embedding_reg_weight=0.25,
    ).to(device)
    loss_fn.load_state_dict(plain.state_dict(), strict=False)
    random_state = torch.get_rng_state()
    loss = loss_fn(f, LABELS)
    torch.set_rng_state(random_state)
    added = 0.5 * plain.W.norm(dim=0).mean() + 0.25 * f.norm(dim=1).mean()
    torch.testing.assert_close(loss, plain(f, LABELS) + added)


@pytest.mark.parametrize("weight_regularizer", [None, regularizers.LpRegularizer()])
@pytest.mark.parametrize("frozen", ["weights", "embeddings", "both"])
def test_what_is_frozen_changes_no_other_gradient(
    make: Callable, frozen: str, weight_regularizer: regularizers.BaseRegularizer | None, device: torch.device
) -> None:
    loss_fn, f = make(weight_regularizer=weight_regularizer).to(device), rows(device).requires_grad_()
    random_state = torch.get_rng_state()

    def value_and_gradients() -> list[Tensor | None]:
        f.grad = loss_fn.W.grad = None
        torch.set_rng_state(random_state)
        loss = loss_fn(f, LABELS)
        if loss.requires_grad:
            loss.backward()
        return [loss.detach(), f.grad, loss_fn.W.grad]

    value, of_embeddings, of_weights = value_and_gradients()
    loss_fn.W.requires_grad_(frozen == "embeddings")
    f.requires_grad_(frozen == "weights")
    expected = [
        value,
        of_embeddings if frozen == "weights" else None,
        of_weights if frozen == "embeddings" else None,
    ]
    for found, other in zip(value_and_gradients(), expected, strict=True):
        assert (found is None) == (other is None)
        if found is not None:
            torch.testing.assert_close(found, other)
    loss_fn.W.requires_grad_(True)
    f.requires_grad_(True)
    for found, other in zip(value_and_gradients(), (value, of_embeddings, of_weights), strict=True):
        torch.testing.assert_close(found, other)


def test_a_batch_of_half_precision_leaves_the_weights_as_they_are(
    make: Callable, dtype: torch.dtype, device: torch.device
) -> None:
    loss_fn, f = make().to(device), rows(device).to(dtype).requires_grad_()
    loss = loss_fn(f, LABELS)
    loss.backward()
    assert loss.dtype == torch.promote_types(dtype, torch.float32)
    assert loss_fn.W.dtype == loss_fn.W.grad.dtype == torch.float32
    assert f.grad.dtype == dtype


def test_autocast_changes_nothing(make: Callable, device: torch.device) -> None:
    loss_fn, f = make().to(device), rows(device)
    random_state = torch.get_rng_state()
    expected = loss_fn(f, LABELS)
    torch.set_rng_state(random_state)
    with torch.autocast(device.type, dtype=torch.bfloat16):
        loss = loss_fn(f, LABELS)
        logits = loss_fn.get_logits(f)
    loss.backward()
    assert torch.equal(loss, expected)
    assert torch.equal(logits, loss_fn.get_logits(f))


@pytest.mark.parametrize("labels_dtype", [torch.uint8, torch.int32, torch.int64])
def test_labels_of_every_integer_dtype(
    make: Callable, labels_dtype: torch.dtype, device: torch.device
) -> None:
    loss_fn, f = make().to(device), rows(device)
    random_state = torch.get_rng_state()
    expected = loss_fn(f, LABELS)
    torch.set_rng_state(random_state)
    assert torch.equal(loss_fn(f, LABELS.to(device, labels_dtype)), expected)


def test_there_may_be_more_classes_than_the_dtype_of_the_labels_has_numbers() -> None:
    loss_fn = StopGradientSoftmaxLoss(num_classes=300, embedding_size=D)
    assert loss_fn(torch.randn(2, D), torch.tensor([100, 255], dtype=torch.uint8)) > 0


def test_weights_are_the_whole_state(make: Callable) -> None:
    assert {key: value.shape for key, value in make().state_dict().items()} == {"W": (D, C)}


def test_settings_are_recorded(make: Callable) -> None:
    loss_fn = make()
    assert {"num_classes", "embedding_size"} <= set(loss_fn._record_these)
    assert all(hasattr(loss_fn, name) for name in loss_fn._record_these)


BAD_CALLS: dict[str, tuple[tuple, type[Exception], str]] = {
    "wrong embedding size": (
        (torch.ones(6, 7), LABELS),
        ValueError,
        r"shape \(6, 7\): pass \(n, 4\)",
    ),
    "1-D embeddings": ((torch.ones(6), LABELS), ValueError, r"shape \(6,\)"),
    "integer embeddings": ((torch.ones(6, D).long(), LABELS), ValueError, "dtype torch.int64"),
    "no tensor": (([[1.0] * D] * 6, LABELS), TypeError, "embeddings is a list: pass a tensor"),
    "too few labels": ((torch.ones(6, D), LABELS[:5]), ValueError, r"labels has shape \(5,\).*\(6,\)"),
    "2-D labels": ((torch.ones(6, D), LABELS[:, None]), ValueError, r"labels has shape \(6, 1\)"),
    "float labels": ((torch.ones(6, D), LABELS.float()), ValueError, "labels has dtype torch.float32"),
    "no labels": ((torch.ones(6, D), None), TypeError, "labels is a NoneType: pass a tensor"),
    "labels that are no class": (
        (torch.ones(6, D), torch.tensor([0, 7, -1, 1, 9, 7])),
        ValueError,
        r"labels \[-1, 7, 9\] are no class of num_classes=7: pass labels from 0 to 6",
    ),
    "a number of pairs": (
        (torch.ones(6, D), LABELS, 5),
        TypeError,
        r"indices_tuple is a int: pass a tuple of tensors, 3 \(anchors",
    ),
    "pairs beyond the batch": (
        (torch.ones(6, D), LABELS, (torch.tensor([6]),) * 3),
        ValueError,
        r"indices_tuple has numbers \[6\] for a batch of 6",
    ),
    "reference embeddings": (
        (torch.ones(6, D), LABELS, None, torch.zeros(6, D), LABELS),
        ValueError,
        "ref",
    ),
}


@pytest.mark.parametrize("name", BAD_CALLS)
def test_a_bad_call_names_the_value(make: Callable, name: str) -> None:
    args, error, message = BAD_CALLS[name]
    with pytest.raises(error, match=message):
        make()(*args)


@pytest.mark.parametrize("cls", [StopGradientSoftmaxLoss, SampledNormalizedSoftmaxLoss])
@pytest.mark.parametrize(
    ("args", "message"),
    [
        ((1, D), "num_classes=1: pass an integer, 2 or more"),
        ((2.5, D), "num_classes=2.5"),
        ((C, 0), "embedding_size=0: pass an integer, 1 or more"),
    ],
)
def test_a_bad_size_is_named(cls: type[BaseClassificationLoss], args: tuple, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        cls(*args)


def test_a_batch_without_numbers_takes_no_weight_away(make: Callable) -> None:
    loss_fn, embeddings = make(), torch.randn(len(LABELS), D, device="meta")
    before = loss_fn.W.detach().clone()
    for call in (loss_fn, lambda *args: loss_fn.compute_loss(*args, None, *args)):
        with pytest.raises(ValueError, match='embeddings is on the device "meta"'):
            call(embeddings, LABELS)
    assert torch.equal(loss_fn.W, before)
