"""Cross batch normalization on the sphere."""

from __future__ import annotations

import math
import warnings
from typing import NamedTuple

import torch
from torch import Tensor
from torch.linalg import vector_norm

_NEAR = 1e-10  # radians: where the gradient is no longer, the mean has been reached
_LEAST_CURVATURE = 0.01


class SphericalMoments(NamedTuple):
    """Of unit vectors: their intrinsic mean, a unit vector ``(d,)``, and spread in radians, ``()``."""

    mean: Tensor
    spread: Tensor


def match_on_sphere(
    memory: Tensor, memory_labels: Tensor, batch: Tensor, batch_labels: Tensor, *, most_steps: int = 300
) -> Tensor | None:
    r"""Gives the rows' directions the mean and the spread that the batch's have on the sphere.

    With x of unit length, the memory R and the batch B,

    .. math::
        \hat x = \exp_{\mu_B}\!\left(\frac{s_B}{s_R} \, \Gamma_{\mu_R \to \mu_B} \log_{\mu_R} x \right), \quad
        \mu_R = \arg\min_\mu \sum_{x \in R} \theta(x, \mu)^2, \quad
        s_R^2 = \frac{1}{|R| - 1} \sum_{x \in R} \theta(x, \mu_R)^2

    where θ is the angle between two vectors, μ the intrinsic (Fréchet or Karcher) mean, s² the variance
    around it (Pennec, Intrinsic Statistics on Riemannian Manifolds, 2006, Definitions 2 and 3), Γ the
    parallel transport along the great circle, and

    .. math::
        \log_\mu x = \frac{\theta}{\sin \theta} (x - \mu \cos \theta), \quad
        \exp_\mu v = \mu \cos |v| + \frac{v}{|v|} \sin |v|, \quad
        \Gamma_{\mu \to \nu} v = v - \frac{\nu \cdot v}{1 + \mu \cdot \nu} (\mu + \nu)

    It is the Riemannian normalization that the thesis A Study of Cross Batch Memory proposes (§6.1.2), in the
    form of Lou et al., Differentiating through the Fréchet Mean, 2020, with the batch's moments in place of
    learnt ones. The spread is one number: there are no dimensions on a sphere, and a rotation of memory and
    batch rotates the result. μ is where a gradient descent from the direction of the sum arrives, by steps of
    the lengths of Barzilai and Borwein (1988); it is unique where all vectors lie less than a right angle
    from one point. A descent that has not arrived after ``most_steps`` warns, and μ is where it is then.

    A row keeps its length, so that unit vectors remain unit vectors; no angle to the mean grows beyond π. A
    memory or batch whose sum has no direction, or two means that are opposite to each other, leave the rows
    as they are; a memory without spread is only turned. With fewer than two rows in memory or batch the
    result is None.
    """
    if min(len(memory), len(batch)) < 2:
        return None
    (units, lengths), (others, _) = _directions(memory.double()), _directions(batch.double())
    memory_moments = _spherical_moments(units, most_steps, "memory")
    batch_moments = _spherical_moments(others, most_steps, "batch")
    mapped = (lengths * _matched(units, memory_moments, batch_moments)).to(memory.dtype)
    # NaN where there is no mean, or no way from one to the other.
    return torch.where(torch.isfinite(mapped).all(), mapped, memory)


def _directions(rows: Tensor) -> tuple[Tensor, Tensor]:
    """Returns unit vectors and lengths ``(n, 1)`` of rows; zeros remain zeros."""
    lengths = vector_norm(rows, dim=1, keepdim=True)
    return rows / torch.where(lengths > 0, lengths, 1.0), lengths


def _spherical_moments(units: Tensor, most_steps: int, name: str) -> SphericalMoments:
    """Returns the moments of unit vectors ``(n, d)``; a mean of NaN where their sum has no direction."""
    total = units.mean(dim=0)
    has_direction = vector_norm(total) > 64 * torch.finfo(units.dtype).eps
    mean = torch.where(has_direction, total / vector_norm(total), torch.nan)
    gradient, rate = _mean_log(units, mean), torch.ones_like(total[0])
    for _ in range(most_steps):
        if not vector_norm(gradient) > _NEAR:
            break
        step, before = rate * gradient, gradient
        mean = _exp(step, mean)
        gradient = _mean_log(units, mean)
        curvature = step @ (before - gradient) / (step @ step)  # at most 1 on a sphere
        rate = torch.where(curvature > 0, 1 / curvature.clamp(_LEAST_CURVATURE, 1), 1.0)
    if vector_norm(gradient) > _NEAR:
        warnings.warn(
            f"the spherical mean of the {name} has not converged in {most_steps} steps: its gradient is "
            f"still {vector_norm(gradient).item():.1e} radians. Rows that are spread over more than half of "
            "the sphere have no one mean: use another hook for them, or pass more most_steps",
            RuntimeWarning,
            stacklevel=3,
        )
    angles = vector_norm(_log(units, mean), dim=1)
    return SphericalMoments(mean, (angles.square().sum() / (len(units) - 1)).sqrt())


def _matched(units: Tensor, memory: SphericalMoments, batch: SphericalMoments) -> Tensor:
    has_spread = memory.spread > 1e-6  # less is what vectors that are equal are rounded apart by, in float32
    scale = torch.where(has_spread, batch.spread / memory.spread, 1.0)
    tangents = scale * _log(units, memory.mean)
    angles = vector_norm(tangents, dim=1, keepdim=True)
    tangents = tangents * (math.pi / angles.clamp(min=math.pi))
    both, gap = memory.mean + batch.mean, 1 + memory.mean @ batch.mean
    along = (tangents @ batch.mean) / torch.where(gap > 1e-12, gap, torch.nan)
    return _exp(tangents - along.unsqueeze(1) * both, batch.mean)


def _log(units: Tensor, mean: Tensor) -> Tensor:
    """Tangents at the mean that lead to the unit vectors ``(n, d)``; zero to the one opposite to it."""
    cosines = (units @ mean).unsqueeze(1)
    across = units - cosines * mean
    sines = vector_norm(across, dim=1, keepdim=True)
    return across * (torch.atan2(sines, cosines) / torch.where(sines > 0, sines, 1.0))


def _mean_log(units: Tensor, mean: Tensor) -> Tensor:
    """Returns the mean of :func:`_log`, in two products with the unit vectors."""
    cosines = (units @ mean).clamp(-1, 1)
    sines = (1 - cosines.square()).sqrt()
    weights = torch.where(sines > 0, cosines.acos() / sines, 1.0)
    return (weights @ units - (weights @ cosines) * mean) / len(units)


def _exp(tangents: Tensor, mean: Tensor) -> Tensor:
    """Returns unit vectors to which tangents ``(..., d)`` at the mean lead."""
    angles = vector_norm(tangents, dim=-1, keepdim=True)
    reached: Tensor = angles.cos() * mean + torch.sinc(angles / math.pi) * tangents
    return reached.div_(vector_norm(reached, dim=-1, keepdim=True))
