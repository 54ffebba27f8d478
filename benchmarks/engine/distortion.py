"""Random affine maps, contrast and noise on a batch of images."""

import torch
from torch import Tensor
from torch.nn.functional import affine_grid, grid_sample

MAX_ROTATION = 0.25  # radians
MAX_SHEAR = 0.2
MAX_SHIFT = 0.15  # 1 is half the image
MAX_SCALING = 0.2  # up and down
MAX_FADING = 0.5  # of the contrast
MAX_NOISE = 0.2  # standard deviation; ink is 1


def distort(images: Tensor, generator: torch.Generator, strength: float = 1.0) -> Tensor:
    """Distorts every image (B, C, H, W), uint8, 0 where there is nothing, on its own.

    Returns float32 roughly between 0 and 1, which depends on images, CPU generator and strength alone.
    """
    size, device = len(images), images.device

    def uniform(low: float, high: float, *shape: int) -> Tensor:
        return torch.empty(size, *shape).uniform_(low, high, generator=generator)

    def around(middle: float, half_width: float, *shape: int) -> Tensor:
        return uniform(middle - strength * half_width, middle + strength * half_width, *shape)

    angle, shear = around(0, MAX_ROTATION), around(0, MAX_SHEAR)
    scale, shift = around(1, MAX_SCALING), around(0, MAX_SHIFT, 2)
    cos, sin = scale * angle.cos(), scale * angle.sin()
    affine = torch.stack(
        [cos, shear * cos - sin, shift[:, 0], sin, shear * sin + cos, shift[:, 1]], dim=1
    ).view(size, 2, 3)
    contrast = uniform(1 - strength * MAX_FADING, 1.0, 1, 1, 1)
    noise_level = uniform(0.0, strength * MAX_NOISE, 1, 1, 1)
    noise = noise_level * torch.randn(images.shape, generator=generator)

    grid = affine_grid(affine.to(device), list(images.shape), align_corners=False)
    moved = grid_sample(images.float() / 255, grid, align_corners=False)
    return moved * contrast.to(device) + noise.to(device)
