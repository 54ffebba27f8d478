"""Pictures as ink on paper: 255 minus the colour on a white ground, which leaves 0 for the ground."""

from __future__ import annotations

from pathlib import Path
from typing import IO, TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

if TYPE_CHECKING:
    from PIL.Image import Image


def on_white(file: Path | IO[bytes]) -> Image:
    """Returns the RGB picture of a file, whose ground is transparent, on a white one."""
    from PIL import Image  # here, since training from prepared data does without

    with Image.open(file) as image:
        drawn = image.convert("RGBA")
    ground = Image.new("RGBA", drawn.size, "white")
    ground.alpha_composite(drawn)
    return ground.convert("RGB")


def read_ink(file: Path | IO[bytes], side: int) -> Tensor:
    """Returns the picture of a file as ink, (3, side, side) uint8."""
    from PIL.Image import Resampling

    pixels = np.array(on_white(file).resize((side, side), Resampling.BOX))
    return 255 - torch.from_numpy(pixels).permute(2, 0, 1).contiguous()
