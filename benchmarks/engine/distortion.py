"""Random affine maps, contrast and noise on a batch of images."""

import torch
from torch import Tensor
from torch.nn.functional import affine_grid, grid_sample

MAX_ROTATION = 0.25  # radians
MAX_SHEAR = 0.2
MAX_SHIFT = 0.15  # 1 is half the image
MIN_SCALE, MAX_SCALE = 0.8, 1.2
MIN_CONTRAST = 0.5
MAX_NOISE = 0.2  # standard deviation; ink is 1


def distort(images: Tensor, generator: torch.Generator) -> Tensor:
    """Distorts every image on its own.

    Args:
        images: (B, 1, H, W) uint8.
        generator: a CPU generator; the result depends on nothing else.

    Returns:
        (B, 1, H, W) float32 on the device of ``images``, roughly between 0 and 1.
    """
    size, device = len(images), images.device

    def uniform(low: float, high: float, *shape: int) -> Tensor:
        return torch.empty(size, *shape).uniform_(low, high, generator=generator)

    angle, shear = uniform(-MAX_ROTATION, MAX_ROTATION), uniform(-MAX_SHEAR, MAX_SHEAR)
    scale = uniform(MIN_SCALE, MAX_SCALE)
    shift = uniform(-MAX_SHIFT, MAX_SHIFT, 2)
    cos, sin = scale * angle.cos(), scale * angle.sin()
    affine = torch.stack(
        [cos, shear * cos - sin, shift[:, 0], sin, shear * sin + cos, shift[:, 1]], dim=1
    ).view(size, 2, 3)
    contrast = uniform(MIN_CONTRAST, 1.0, 1, 1, 1)
    noise_level = uniform(0.0, MAX_NOISE, 1, 1, 1)
    noise = noise_level * torch.randn(images.shape, generator=generator)

    grid = affine_grid(affine.to(device), list(images.shape), align_corners=False)
    moved = grid_sample(images.float() / 255, grid, align_corners=False)
    return moved * contrast.to(device) + noise.to(device)
