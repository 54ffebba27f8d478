"""Eq. 5 to 7 and 10 of Stop-Gradient Softmax Loss, against a re-computation row by row in float64 NumPy."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from differences import gradient
from pytorch_metric_learning.distances import LpDistance

from pml_xbn.losses import StopGradientSoftmaxLoss

B, D, C = 7, 5, 4
LABELS = [0, 0, 1, 2, 2, 2, 1]  # no row of class 3
TOLERANCE = {torch.float16: 2e-6, torch.float32: 2e-6, torch.float64: 1e-12}


def softmax_loss(f: np.ndarray, w: np.ndarray, smoothing: float) -> float:
    """Eq. 5, with a target of 1 - smoothing for the own class and smoothing / C for every class."""
    total = 0.0
    for row, label in zip(f, LABELS, strict=True):
        logits = [float(np.dot(w[:, j], row)) for j in range(w.shape[1])]
        log_sum = np.log(sum(np.exp(logits)))
        for j, logit in enumerate(logits):
            target = smoothing / len(logits) + (1 - smoothing if j == label else 0)
            total -= target * (logit - log_sum)
    return total / len(f)


def sgsl_loss(f: np.ndarray, w: np.ndarray, gamma: float) -> float:
    """Eq. 6."""
    total = 0.0
    for row, label in zip(f, LABELS, strict=True):
        cosines = [
            float(np.dot(w[:, j], row) / np.linalg.norm(w[:, j]) / np.linalg.norm(row))
            for j in range(w.shape[1])
        ]
        others = [np.exp(gamma * cosine) for j, cosine in enumerate(cosines) if j != label]
        total += np.log(1 + np.exp(np.log(sum(others)) / gamma - cosines[label]))
    return total / len(f)


def case(dtype: torch.dtype, device: torch.device, **kwargs: float) -> tuple:
    """A loss whose W has the dtype, embeddings of it, and both in float64 NumPy."""
    loss_fn = StopGradientSoftmaxLoss(C, D, **kwargs).to(device)
    if dtype == torch.float64:
        loss_fn = loss_fn.double()
    f = torch.randn(B, D, device=device).to(dtype).requires_grad_()
    return loss_fn, f, f.detach().double().cpu().numpy(), loss_fn.W.detach().double().cpu().numpy()


@pytest.mark.parametrize(("gamma", "beta"), [(1.0, 1.0), (30.0, 1.0), (30.0, 0.1), (30.0, 10.0)])
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_value_and_gradients_are_those_of_eq_10(
    gamma: float, beta: float, smoothing: float, dtype: torch.dtype, device: torch.device
) -> None:
    loss_fn, f, f64, w64 = case(dtype, device, gamma=gamma, beta=beta, label_smoothing=smoothing)
    loss = loss_fn(f, torch.tensor(LABELS))
    loss.backward()

    expected = softmax_loss(f64, w64, smoothing) + beta * sgsl_loss(f64, w64, gamma)
    assert softmax_loss(f64, w64, smoothing) < 3
    assert loss.item() == pytest.approx(expected, rel=TOLERANCE[dtype])

    # The weights get the gradient of Eq. 5 alone, the embeddings that of both.
    of_w = gradient(lambda w: softmax_loss(f64, w, smoothing), w64)
    of_f = gradient(lambda x: softmax_loss(x, w64, smoothing) + beta * sgsl_loss(x, w64, gamma), f64)
    assert np.abs(gradient(lambda w: sgsl_loss(f64, w, gamma), w64)).max() > 0.01
    atol = {torch.float16: 1e-3, torch.float32: 1e-6, torch.float64: 1e-8}[dtype]
    np.testing.assert_allclose(loss_fn.W.grad.double().cpu().numpy(), of_w, atol=max(atol / 100, 1e-6))
    np.testing.assert_allclose(f.grad.double().cpu().numpy(), of_f, atol=atol)


def test_the_part_between_unit_vectors_joins_below_the_threshold_and_not_at_it(device: torch.device) -> None:
    loss_fn, f, f64, w64 = case(torch.float64, device)
    softmax, sgsl = softmax_loss(f64, w64, 0.1), sgsl_loss(f64, w64, 30.0)
    for threshold, expected in (
        (softmax * 1.0001, softmax + sgsl),
        (softmax * 0.9999, softmax),
        (0.0, softmax),
        (float("inf"), softmax + sgsl),
    ):
        loss_fn.threshold = threshold
        f.grad = None
        loss = loss_fn(f, torch.tensor(LABELS))
        loss.backward()
        assert loss.item() == pytest.approx(expected, rel=1e-12)
        joined = expected > softmax
        of_f = gradient(lambda x: softmax_loss(x, w64, 0.1) + joined * sgsl_loss(x, w64, 30.0), f64)  # noqa: B023
        np.testing.assert_allclose(f.grad.cpu().numpy(), of_f, atol=1e-8)


def test_logits_are_the_plain_products(dtype: torch.dtype, device: torch.device) -> None:
    loss_fn, f, f64, w64 = case(dtype, device)
    np.testing.assert_allclose(loss_fn.get_logits(f).detach().double().cpu().numpy(), f64 @ w64, atol=1e-5)


@pytest.mark.parametrize(
    ("kwargs", "message"),
    [
        ({"gamma": 0.0}, "gamma=0.0: pass a finite number above 0"),
        ({"gamma": float("inf")}, "gamma=inf"),
        ({"threshold": -1.0}, "threshold=-1.0"),
        ({"threshold": float("nan")}, "threshold=nan"),
        ({"label_smoothing": 1.5}, r"label_smoothing=1.5: pass a number in \[0, 1\]"),
        ({"beta": -0.5}, "beta=-0.5: pass a finite number"),
    ],
)
def test_a_bad_setting_is_named(kwargs: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        StopGradientSoftmaxLoss(C, D, **kwargs)


def test_eq_5_has_one_distance() -> None:
    with pytest.raises(TypeError, match="multiple values for keyword argument 'distance'"):
        StopGradientSoftmaxLoss(C, D, distance=LpDistance())
