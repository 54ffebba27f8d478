"""Eq. 1 and §4.5 of Classification is a Strong Baseline for Deep Metric Learning."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from differences import gradient
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from pytorch_metric_learning import losses
from pytorch_metric_learning.distances import LpDistance
from torch import Tensor

from pml_xbn.losses import SampledNormalizedSoftmaxLoss

D, C = 6, 40
LABELS = torch.tensor([31, 4, 4, 0, 31, 17])


def eq_1(f: np.ndarray, w: np.ndarray, labels: Tensor, classes: list[int], temperature: float) -> float:
    total = 0.0
    for row, label in zip(f, labels.tolist(), strict=True):
        x = row / np.linalg.norm(row)
        exps = {z: np.exp(np.dot(x, w[:, z] / np.linalg.norm(w[:, z])) / temperature) for z in classes}
        total -= np.log(exps[label] / sum(exps.values()))
    return total / len(f)


def drawn_classes(loss_fn: SampledNormalizedSoftmaxLoss) -> list[int]:
    """Those that the last backward pass moved."""
    return (loss_fn.W.grad != 0).any(dim=0).nonzero().squeeze(1).tolist()


def step(loss_fn: SampledNormalizedSoftmaxLoss, f: Tensor, labels: Tensor = LABELS) -> list[int]:
    loss_fn.W.grad = None
    loss_fn(f, labels).backward()
    return drawn_classes(loss_fn)


def test_share_1_is_pmls_loss_in_value_and_gradient(dtype: torch.dtype, device: torch.device) -> None:
    wide = torch.promote_types(dtype, torch.float32)
    sampled = SampledNormalizedSoftmaxLoss(C, D, share=1).to(device, wide)
    pmls = losses.NormalizedSoftmaxLoss(C, D).to(wide)
    pmls.load_state_dict(sampled.state_dict())
    f = torch.randn(len(LABELS), D, device=device).to(dtype).requires_grad_()
    f_pml = f.detach().to(wide).requires_grad_()  # PML would compute in half precision
    pairs = tuple(torch.tensor(x, device=device) for x in ([0, 1], [4, 2], [0, 0, 3], [1, 3, 5]))
    for indices in (None, pairs):
        sampled.W.grad = pmls.W.grad = f.grad = f_pml.grad = None
        loss, expected = sampled(f, LABELS, indices), pmls(f_pml, LABELS, indices)
        loss.backward()
        expected.backward()
        assert torch.equal(loss, expected)
        assert torch.equal(sampled.W.grad, pmls.W.grad)
        assert torch.equal(f.grad, f_pml.grad.to(dtype))
        assert torch.equal(sampled.get_logits(f), pmls.get_logits(f_pml))


def test_share_1_is_pmls_loss_with_another_distance(device: torch.device) -> None:
    sampled = SampledNormalizedSoftmaxLoss(C, D, distance=LpDistance()).to(device)
    pmls = losses.NormalizedSoftmaxLoss(C, D, distance=LpDistance())
    pmls.load_state_dict(sampled.state_dict())
    f = torch.randn(len(LABELS), D, device=device)
    assert torch.equal(sampled(f, LABELS), pmls(f, LABELS))


@pytest.mark.parametrize("d", [6, 128, 512, 2048])
def test_weights_start_uniform_between_the_authors_bounds(d: int) -> None:
    """Their code draws U(±1/√d), of mean square length d · 1 / 3d."""
    weights = SampledNormalizedSoftmaxLoss(1000, d).W.detach()
    assert weights.abs().max() <= d**-0.5
    assert weights.abs().max() > 0.99 * d**-0.5
    assert weights.mean().abs() < 5 * d**-0.5 / (3 * weights.numel()) ** 0.5
    assert weights.norm(dim=0).square().mean().sqrt() == pytest.approx(3**-0.5, rel=0.05)


def turn_of_a_first_step(loss_fn: torch.nn.Module) -> float:
    """Mean angle, in degrees, by which SGD at 0.01 turns the weights of a batch's 15 classes of 5."""
    labels = torch.arange(15).repeat_interleave(5)
    f = torch.randn(15, 512).repeat_interleave(5, dim=0) + 0.5 * torch.randn(75, 512)
    before = loss_fn.W.detach().double()
    optimizer = torch.optim.SGD(loss_fn.parameters(), lr=0.01, momentum=0.9, weight_decay=1e-4)
    loss_fn(f, labels).backward()
    optimizer.step()
    cosines = torch.cosine_similarity(before, loss_fn.W.detach().double(), dim=0)[:15]
    return float(torch.rad2deg(torch.acos(cosines.clamp(max=1))).mean())


def test_a_first_step_turns_the_weights() -> None:
    """Those of PML, 40 times as long, it leaves where they are: that angle falls with their square."""
    ours, pmls = SampledNormalizedSoftmaxLoss(100, 512), losses.NormalizedSoftmaxLoss(100, 512)
    assert pmls.W.detach().norm(dim=0).mean() == pytest.approx(22.6, abs=0.2)
    assert 1.5 < turn_of_a_first_step(ours) < 3
    assert turn_of_a_first_step(pmls) < 0.002


@pytest.mark.parametrize("share", [0.05, 0.3, 0.9])
def test_value_and_gradients_are_those_of_eq_1_over_the_drawn_classes(
    share: float, dtype: torch.dtype, device: torch.device
) -> None:
    loss_fn = SampledNormalizedSoftmaxLoss(C, D, temperature=0.5, share=share).to(device)
    if dtype == torch.float64:
        loss_fn = loss_fn.double()
    f = torch.randn(len(LABELS), D, device=device).to(dtype).requires_grad_()
    f64, w64 = f.detach().double().cpu().numpy(), loss_fn.W.detach().double().cpu().numpy()
    loss = loss_fn(f, LABELS)
    loss.backward()
    classes = drawn_classes(loss_fn)

    rtol = 1e-12 if dtype == torch.float64 else 2e-6
    assert loss.item() == pytest.approx(eq_1(f64, w64, LABELS, classes, 0.5), rel=rtol)
    of_w = gradient(lambda w: eq_1(f64, w, LABELS, classes, 0.5), w64)
    of_f = gradient(lambda x: eq_1(x, w64, LABELS, classes, 0.5), f64)
    atol = {torch.float16: 1e-3, torch.float32: 1e-6, torch.float64: 1e-8}[dtype]
    np.testing.assert_allclose(loss_fn.W.grad.double().cpu().numpy(), of_w, atol=max(atol / 1000, 1e-8) * 100)
    np.testing.assert_allclose(f.grad.double().cpu().numpy(), of_f, atol=atol)


@given(
    num_classes=st.integers(2, 60),
    share=st.floats(0.01, 1.0),
    labels=st.lists(st.integers(0, 59), min_size=1, max_size=12),
)
@settings(max_examples=60)
def test_the_subset_has_the_batchs_classes_and_the_size_of_the_share(
    num_classes: int, share: float, labels: list[int]
) -> None:
    labels = [label % num_classes for label in labels]
    size = max(len(set(labels)), round(share * num_classes))
    assume(size > 1)  # among one class alone the gradient, by which the subset is seen here, is 0
    loss_fn = SampledNormalizedSoftmaxLoss(num_classes, 4, temperature=1.0, share=share)
    classes = step(loss_fn, torch.randn(len(labels), 4), torch.tensor(labels))
    assert len(classes) == size
    assert set(labels) <= set(classes)


def test_every_other_class_is_drawn_as_often() -> None:
    loss_fn = SampledNormalizedSoftmaxLoss(C, D, share=0.25)
    counts, f = torch.zeros(C), torch.randn(len(LABELS), D)
    num_draws = 3000
    for _ in range(num_draws):
        counts[step(loss_fn, f)] += 1
    in_batch = LABELS.unique()
    assert (counts[in_batch] == num_draws).all()
    others = torch.ones(C, dtype=torch.bool).index_fill(0, in_batch, False)
    chance = (10 - len(in_batch)) / (C - len(in_batch))
    deviation = (counts[others] - num_draws * chance).abs() / (num_draws * chance * (1 - chance)) ** 0.5
    assert deviation.max() < 5


def test_resume_with_the_generators_state_draws_the_same_classes(device: torch.device) -> None:
    f = torch.randn(len(LABELS), D, device=device)
    loss_fn = SampledNormalizedSoftmaxLoss(C, D, share=0.4).to(device)
    step(loss_fn, f)
    weights, random_state = loss_fn.state_dict(), torch.get_rng_state()
    first = [step(loss_fn, f) for _ in range(4)]

    resumed = SampledNormalizedSoftmaxLoss(C, D, share=0.4).to(device)
    resumed.load_state_dict(weights)
    assert [step(resumed, f) for _ in range(4)] != first
    torch.set_rng_state(random_state)
    assert [step(resumed, f) for _ in range(4)] == first


@pytest.mark.parametrize("share", [1.0, 0.1])
def test_all_classes_are_seen_in_eval_mode_and_nothing_is_drawn(share: float, device: torch.device) -> None:
    loss_fn = SampledNormalizedSoftmaxLoss(C, D, share=share).to(device).eval()
    pmls = losses.NormalizedSoftmaxLoss(C, D)
    pmls.load_state_dict(loss_fn.state_dict())
    f = torch.randn(len(LABELS), D, device=device)
    random_state = torch.get_rng_state()
    assert torch.equal(loss_fn(f, LABELS), pmls(f, LABELS))
    assert torch.equal(torch.get_rng_state(), random_state)
    assert loss_fn.get_logits(f).shape == (len(LABELS), C)


@pytest.mark.parametrize(
    ("kwargs", "message"),
    [
        ({"share": 0.0}, "share=0.0: pass a number above 0 and up to 1"),
        ({"share": 10}, "share=10"),
        ({"share": float("nan")}, "share=nan"),
        ({"temperature": 0.0}, "temperature=0.0: pass a finite number above 0"),
    ],
)
def test_a_bad_setting_is_named(kwargs: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        SampledNormalizedSoftmaxLoss(C, D, **kwargs)
