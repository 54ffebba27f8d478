"""The distortion that leaves something to learn in clean images of characters."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import affine_grid, grid_sample, interpolate

_CHUNK = 4096  # images at a time


def distort(images: Tensor, generator: torch.Generator, strength: float) -> Tensor:
    """Returns (N, side, side) uint8 images, each distorted in its own way.

    At strength 1 that is a rotation of up to 9 degrees, scaling by 0.92 to 1.12, shear, a shift of a pixel
    of 32, a smooth warp, a hole of 6 x 6 pixels of 32, contrast and brightness, and noise of 5 %. Other
    strengths multiply the ranges.
    """
    with images.device:
        return torch.cat([_distort(chunk, generator, strength) for chunk in images.split(_CHUNK)])


def _distort(images: Tensor, generator: torch.Generator, strength: float) -> Tensor:
    size, side = len(images), images.shape[-1]

    def uniform(low: float, high: float, *shape: int) -> Tensor:
        return torch.empty(size, *shape).uniform_(strength * low, strength * high, generator=generator)

    angle, shear, shift = uniform(-0.15, 0.15), uniform(-0.06, 0.06), uniform(-0.06, 0.06, 2)
    scale = 1 + uniform(-0.08, 0.12)
    cos, sin = scale * angle.cos(), scale * angle.sin()
    affine = torch.stack([cos, shear - sin, shift[:, 0], sin, cos, shift[:, 1]], dim=1).view(size, 2, 3)
    bends = strength * 0.02 * torch.randn(size, 2, 5, 5, generator=generator)
    warp = interpolate(bends, size=(side, side), mode="bicubic").permute(0, 2, 3, 1)
    grid = affine_grid(affine, [size, 1, side, side], align_corners=False) + warp
    ink = images.unsqueeze(1).float() / 255
    ink = grid_sample(ink, grid, align_corners=False).squeeze(1)

    hole, pixels = round(min(strength, 1) * 6 * side / 32), torch.arange(side)
    top, left = torch.randint(side - hole + 1, (2, size, 1), generator=generator)
    in_rows, in_columns = ((pixels >= first) & (pixels < first + hole) for first in (top, left))
    ink = ink.masked_fill(in_rows[:, :, None] & in_columns[:, None, :], 0)

    contrast, brightness = 1 - uniform(0, 0.6, 1, 1), uniform(0, 0.1, 1, 1)
    noise = strength * 0.05 * torch.randn(ink.shape, generator=generator)
    return ((ink * contrast + brightness + noise).clamp(0, 1) * 255).byte()
