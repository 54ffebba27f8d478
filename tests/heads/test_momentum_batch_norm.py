"""Momentum Batch Normalization against float64 NumPy, call by call."""

from __future__ import annotations

import copy
from itertools import pairwise

import numpy as np
import pytest
import torch
from differences import gradient

from pml_xbn.heads import MomentumBatchNorm

D = 3
SIZES = [8, 8, 5, 2, 8, 8, 20]  # with num_calls=5 the last two have the whole momentum


class Reference:
    """The training and inference steps of Yong et al.'s algorithm."""

    def __init__(self, num_calls: int, ideal_batch_size: int, weight: np.ndarray, bias: np.ndarray) -> None:
        self.total, self.ideal, self.t = num_calls, ideal_batch_size, 0
        self.weight, self.bias = weight, bias
        self.mean = self.var = np.full(D, 1e9)  # no matter: λ is 0 at the first call
        self.inference_mean, self.inference_var = np.zeros(D), np.ones(D)

    def train(self, x: np.ndarray) -> np.ndarray:
        self.t += 1
        m = len(x)
        rho = min(m / self.ideal, 1) ** (1 / self.total)
        lam = rho ** (self.total / (self.total - 1) * max(self.total - self.t, 0)) - rho**self.total
        self.old = self.mean, self.var, lam
        batch_mean = sum(x) / m
        batch_var = sum((x - batch_mean) ** 2) / m
        self.mean = lam * self.mean + (1 - lam) * batch_mean
        self.var = lam * self.var + (1 - lam) * batch_var
        tau = 0.9 ** (m / self.ideal)
        self.inference_mean = tau * self.inference_mean + (1 - tau) * batch_mean
        self.inference_var = tau * self.inference_var + (1 - tau) * batch_var
        return self.normalized(x, *self.old)

    def normalized(self, x: np.ndarray, mean: np.ndarray, var: np.ndarray, lam: float) -> np.ndarray:
        """What the last call gives, as a function of its batch."""
        mean = lam * mean + (1 - lam) * x.mean(axis=0)
        var = lam * var + (1 - lam) * x.var(axis=0)
        return (x - mean) / np.sqrt(var + 1e-5) * self.weight + self.bias

    def infer(self, x: np.ndarray) -> np.ndarray:
        scale = self.weight / np.sqrt(self.inference_var + 1e-5)
        return (x - self.inference_mean) * scale + self.bias


@pytest.mark.parametrize("ideal_batch_size", [16, 8, 1])
def test_value_and_gradients_call_by_call(
    ideal_batch_size: int, dtype: torch.dtype, device: torch.device
) -> None:
    rng = np.random.default_rng(1)
    norm = MomentumBatchNorm(D, num_calls=5, ideal_batch_size=ideal_batch_size)
    torch.nn.init.normal_(norm.weight, 1.0)
    torch.nn.init.normal_(norm.bias)
    norm = norm.to(device, torch.promote_types(dtype, torch.float32))
    weight, bias = norm.weight.detach().double().cpu().numpy(), norm.bias.detach().double().cpu().numpy()
    reference = Reference(5, ideal_batch_size, weight, bias)
    tolerance = {torch.float16: 4e-3, torch.float32: 2e-5, torch.float64: 1e-9}[dtype]
    for step, size in enumerate(SIZES):
        rows = torch.tensor(rng.normal(step, 1 + step, (size, D)), device=device).to(dtype).requires_grad_()
        rows64 = rows.detach().double().cpu().numpy()
        out = norm.train()(rows)
        assert out.dtype == dtype
        expected = reference.train(rows64)
        np.testing.assert_allclose(
            out.detach().double().cpu().numpy(), expected, rtol=tolerance, atol=tolerance
        )

        factors = rng.normal(size=(size, D))
        (out * torch.tensor(factors, device=device)).sum().backward()
        of_rows = gradient(lambda x: (reference.normalized(x, *reference.old) * factors).sum(), rows64)  # noqa: B023
        np.testing.assert_allclose(
            rows.grad.double().cpu().numpy(), of_rows, rtol=20 * tolerance, atol=max(20 * tolerance, 1e-6)
        )
        with torch.no_grad():
            out = norm.eval()(rows)
        inferred = reference.infer(rows64)
        np.testing.assert_allclose(out.double().cpu().numpy(), inferred, rtol=tolerance, atol=10 * tolerance)


def test_momentum_grows_from_0_to_1_minus_the_share_of_the_ideal_batch() -> None:
    """64 rows of an ideal 128, as in Appendix A."""
    norm = MomentumBatchNorm(D, num_calls=100, ideal_batch_size=128)
    momenta = []
    for t in range(1, 121):
        norm.num_batches_tracked.fill_(t)
        momenta.append(norm._momentum(64).item())
    assert momenta[0] == 0
    assert momenta[99:] == [0.5] * 21
    assert all(a < b for a, b in pairwise(momenta[:100]))
    assert norm._momentum(128).item() == norm._momentum(400).item() == 0


def test_is_batch_norm_from_the_ideal_batch_size_on(device: torch.device) -> None:
    norm = MomentumBatchNorm(D, num_calls=3, ideal_batch_size=16).to(device)
    batch_norm = torch.nn.BatchNorm1d(D).to(device)
    for size in (16, 40, 16, 17):
        rows = torch.randn(size, D, device=device)
        torch.testing.assert_close(norm(rows), batch_norm(rows))


def test_small_batches_are_normalized_by_more_than_themselves(device: torch.device) -> None:
    """The noise that MBN is for: the spread of the mean that batches of two are normalized by."""

    def spread(ideal_batch_size: int) -> float:
        torch.manual_seed(0)
        norm = MomentumBatchNorm(1, num_calls=2, ideal_batch_size=ideal_batch_size).to(device)
        means = []
        for _ in range(500):
            norm(torch.randn(2, 1, device=device))
            means.append(norm.mean.clone())
        return torch.cat(means[50:]).std().item()

    assert spread(32) < 0.3 * spread(2)


def test_eval_changes_nothing(device: torch.device) -> None:
    norm = MomentumBatchNorm(D, num_calls=3).to(device)
    norm(torch.randn(8, D, device=device))
    before = copy.deepcopy(norm.state_dict())
    rows = torch.randn(4, D, device=device)
    norm.eval()
    assert torch.equal(norm(rows)[:1], norm(rows[:1]))
    assert all(torch.equal(before[key], value) for key, value in norm.state_dict().items())


def test_a_resumed_run_continues_bit_for_bit(device: torch.device) -> None:
    batches = [torch.randn(4, D, device=device) for _ in range(6)]
    norm = MomentumBatchNorm(D, num_calls=5).to(device)
    for batch in batches[:3]:
        norm(batch)
    resumed = MomentumBatchNorm(D, num_calls=5).to(device)
    resumed.load_state_dict(norm.state_dict())
    for batch in batches[3:]:
        assert torch.equal(norm(batch), resumed(batch))


def test_two_calls_before_one_backward(device: torch.device) -> None:
    norm = MomentumBatchNorm(D, num_calls=2).to(device)
    first, second = (torch.randn(4, D, device=device).requires_grad_() for _ in range(2))
    (norm(first).square().sum() + norm(second).square().sum()).backward()
    assert first.grad.isfinite().all()
    assert second.grad.isfinite().all()


def test_a_batch_of_equal_rows_stays_finite(dtype: torch.dtype, device: torch.device) -> None:
    norm = MomentumBatchNorm(D, num_calls=2).to(device)
    for size in (4, 1):
        rows = torch.full((size, D), 3.0, device=device, dtype=dtype).requires_grad_()
        out = norm(rows)
        out.sum().backward()
        assert out.isfinite().all()
        assert rows.grad.isfinite().all()


@pytest.mark.parametrize(
    ("kwargs", "message"),
    [
        ({"num_features": 0}, "num_features=0"),
        ({"num_calls": 1}, "num_calls=1: pass an integer, 2 or more"),
        ({"ideal_batch_size": 0}, "ideal_batch_size=0"),
        ({"ideal_momentum": 1.0}, r"ideal_momentum=1.0: pass a number in \[0, 1\)"),
        ({"eps": 0.0}, "eps=0.0"),
    ],
)
def test_a_bad_setting_is_named(kwargs: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        MomentumBatchNorm(**{"num_features": D, "num_calls": 5, **kwargs})


@pytest.mark.parametrize("shape", [(4, D + 1), (4, D, 2, 2), (0, D)])
def test_rows_of_another_shape_are_refused(shape: tuple[int, ...]) -> None:
    norm = MomentumBatchNorm(D, num_calls=5)
    with pytest.raises(ValueError, match=r"rows has shape .*: pass \(b, 3\)"):
        norm(torch.ones(shape))
    assert norm.num_batches_tracked == 0
