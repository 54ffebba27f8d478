"""Moments on the sphere, against rotations and a plain descent in float64."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn.functional import normalize

from benchmarks.hooks.spherical_moments import match_on_sphere

Array = np.ndarray


def log(x: Array, mean: Array) -> Array:
    theta = np.arccos(np.clip(x @ mean, -1, 1))
    across = x - (x @ mean) * mean
    return across * (theta / np.sin(theta) if theta > 1e-9 else 1.0)


def exp(v: Array, mean: Array) -> Array:
    theta = np.linalg.norm(v)
    return mean if theta == 0 else np.cos(theta) * mean + np.sin(theta) * v / theta


def karcher(rows: Array) -> tuple[Array, float]:
    """Pennec's descent at a fixed rate, for very long; and the spread."""
    mean = rows.sum(axis=0) / np.linalg.norm(rows.sum(axis=0))
    for _ in range(500):
        mean = exp(sum(log(x, mean) for x in rows) / len(rows), mean)
        mean = mean / np.linalg.norm(mean)
    squares = sum(np.arccos(np.clip(x @ mean, -1, 1)) ** 2 for x in rows)
    return mean, math.sqrt(squares / (len(rows) - 1))


def turned(x: Array, start: Array, end: Array) -> Array:
    """Rotated in the plane of two unit vectors, as takes one to the other: it transports tangents."""
    both = start + end
    return x - both * (both @ x) / (1 + start @ end) + 2 * end * (start @ x)


def replayed(memory: Array, batch: Array) -> Array:
    (mean, spread), (new_mean, new_spread) = karcher(memory), karcher(batch)
    return np.array(
        [exp(new_spread / spread * log(turned(x, mean, new_mean), new_mean), new_mean) for x in memory]
    )


def cloud(seed: int, n: int, d: int, spread: float) -> Tensor:
    """Unit vectors around a random one, float64."""
    generator = torch.Generator().manual_seed(seed)
    centre = normalize(torch.randn(d, generator=generator, dtype=torch.float64), dim=0)
    return normalize(centre + spread * torch.randn(n, d, generator=generator, dtype=torch.float64))


def adapted(memory: Tensor, batch: Tensor) -> Tensor:
    out = match_on_sphere(memory, torch.zeros(len(memory)), batch, torch.zeros(len(batch)))
    assert out is not None
    return out


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize(("n", "b", "d", "spread"), [(9, 5, 3, 0.3), (30, 8, 6, 0.25), (2, 2, 2, 0.2)])
def test_rows_agree_with_the_equation(seed: int, n: int, b: int, d: int, spread: float) -> None:
    memory, batch = cloud(seed, n, d, spread), cloud(seed + 100, b, d, spread / 2)
    expected = replayed(memory.numpy(), batch.numpy())
    np.testing.assert_allclose(adapted(memory, batch).numpy(), expected, rtol=1e-8, atol=1e-8)
    np.testing.assert_allclose(adapted(memory.float(), batch.float()).numpy(), expected, rtol=1e-5, atol=1e-5)


def test_a_memory_without_spread_is_turned() -> None:
    memory, batch = cloud(0, 1, 4, 0.1).repeat(5, 1), cloud(1, 6, 4, 0.3)
    mean, _ = karcher(batch.numpy())
    np.testing.assert_allclose(adapted(memory, batch).numpy(), np.tile(mean, (5, 1)), atol=1e-8)


@pytest.mark.parametrize("case", ["memory", "batch", "opposite"])
def test_rows_stay_where_there_is_no_mean_or_no_way_to_it(case: str) -> None:
    rows, other = cloud(0, 6, 3, 0.2), cloud(1, 6, 3, 0.2)
    both_ways = torch.cat([rows, -rows])
    memory, batch = {"memory": (both_ways, other), "batch": (other, both_ways), "opposite": (rows, -rows)}[
        case
    ]
    assert torch.equal(adapted(memory, batch), memory)


def test_no_row_is_taken_around_the_sphere() -> None:
    angles = torch.tensor([-1.2, 0.0, 0.1, 1.2], dtype=torch.float64)
    wide = torch.tensor([-1.5, -1.5, 1.5, 1.5], dtype=torch.float64)
    narrow = angles * 0.9
    memory, batch = (torch.stack([x.cos(), x.sin()], dim=1) for x in (narrow, wide))
    out = adapted(memory, batch)
    stretch = wide.std() / (narrow - narrow.mean()).square().sum().div(3).sqrt()
    expected = (narrow - narrow.mean()) * stretch
    assert expected.abs().max() < math.pi
    torch.testing.assert_close(torch.atan2(out[:, 1], out[:, 0]), expected)
    # Ten rows near the mean, and two whose angle would be stretched to more than π.
    angles = torch.cat([torch.linspace(-0.01, 0.01, 10), torch.tensor([-1.0, 1.0])]).double()
    memory = torch.stack([angles.cos(), angles.sin()], dim=1)
    out = adapted(memory, batch)
    torch.testing.assert_close(out[-1], torch.tensor([-1.0, 0.0], dtype=torch.float64))


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize(("n", "d"), [(9, 3), (30, 8)])
def test_the_mean_of_rows_all_over_the_sphere_is_found(seed: int, n: int, d: int) -> None:
    """Which takes up to 100 steps. Nothing warns, which would be an error."""
    memory, batch = cloud(seed, n, d, 2.0), cloud(seed + 1, n, d, 0.1)
    mean, _ = karcher(batch.numpy())
    gradient = np.mean([log(x, mean) for x in adapted(memory, batch).numpy()], axis=0)
    assert np.linalg.norm(gradient) < 1e-8
