"""Generalized mean pooling against float64 NumPy."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from differences import gradient

from pml_xbn.heads import GeMPooling


def gem(maps: np.ndarray, p: float) -> np.ndarray:
    out = np.zeros(maps.shape[:2])
    for b, c in np.ndindex(out.shape):
        numbers = [max(x, 1e-6) for x in maps[b, c].ravel()]
        out[b, c] = (sum(x**p for x in numbers) / len(numbers)) ** (1 / p)
    return out


@pytest.mark.parametrize("p", [1.0, 3.0, 5.5])
def test_value_and_gradients(p: float, dtype: torch.dtype, device: torch.device) -> None:
    maps = (torch.rand(2, 3, 4, 5, device=device) + 0.1).to(dtype).requires_grad_()
    maps64 = maps.detach().double().cpu().numpy()
    factors = np.random.default_rng(0).normal(size=(2, 3))
    pool = GeMPooling(p).to(device)
    pooled = pool(maps)
    assert pooled.dtype == dtype
    (pooled * torch.tensor(factors, device=device)).sum().backward()

    rtol = {torch.float16: 2e-3, torch.float32: 1e-5, torch.float64: 1e-6}[dtype]
    np.testing.assert_allclose(pooled.detach().double().cpu().numpy(), gem(maps64, p), rtol=rtol)
    of_maps = gradient(lambda x: float((gem(x, p) * factors).sum()), maps64)
    np.testing.assert_allclose(maps.grad.double().cpu().numpy(), of_maps, rtol=rtol, atol=rtol * 0.1)
    of_p = gradient(lambda x: float((gem(maps64, x[0]) * factors).sum()), np.array([p]))
    assert pool.p.grad.item() == pytest.approx(of_p[0], rel=rtol, abs=rtol)


def test_exponent_1_is_average_pooling_and_a_large_one_max_pooling(device: torch.device) -> None:
    maps = torch.rand(2, 3, 4, 4, device=device) + 0.5
    torch.testing.assert_close(GeMPooling(1.0).to(device)(maps), maps.mean(dim=(2, 3)))
    torch.testing.assert_close(GeMPooling(60.0).to(device)(maps), maps.amax(dim=(2, 3)), rtol=0.05, atol=0)


@pytest.mark.parametrize("value", [0.0, -2.0])
def test_a_map_without_positive_numbers_stays_finite(
    value: float, dtype: torch.dtype, device: torch.device
) -> None:
    maps = torch.full((1, 2, 3, 3), value, device=device, dtype=dtype).requires_grad_()
    pool = GeMPooling().to(device)
    pooled = pool(maps)
    pooled.sum().backward()
    assert pooled.isfinite().all()
    assert maps.grad.isfinite().all()
    assert pool.p.grad.isfinite()


def test_large_exponents_and_features_neither_vanish_nor_overflow() -> None:
    maps = torch.stack([torch.zeros(3, 4, 4), torch.full((3, 4, 4), 1e5)])
    pool = GeMPooling(10.0)
    pooled = pool(maps)
    pooled.sum().backward()
    torch.testing.assert_close(pooled.detach(), torch.tensor([[1e-6] * 3, [1e5] * 3]))
    assert torch.isfinite(pool.p.grad)


def test_the_exponent_is_learned_and_saved() -> None:
    pool = GeMPooling(4.0)
    assert dict(pool.named_parameters())["p"].item() == 4
    assert "p=4" in repr(pool)


def test_pooled_features_are_refused() -> None:
    with pytest.raises(ValueError, match=r"features has shape \(2, 8\): pass a map \(b, c, h, w\)"):
        GeMPooling()(torch.ones(2, 8))


@pytest.mark.parametrize(
    ("kwargs", "message"),
    [({"p": 0.0}, "p=0.0: pass a finite number above 0"), ({"eps": -1e-6}, "eps=-1e-06")],
)
def test_a_bad_setting_is_named(kwargs: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        GeMPooling(**kwargs)
