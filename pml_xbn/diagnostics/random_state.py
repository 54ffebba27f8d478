"""Random numbers that a measurement draws, and training does not miss."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import AbstractContextManager

import torch
from torch import Tensor


def random_state_kept(tensors: Iterable[Tensor] = ()) -> AbstractContextManager[None]:
    """Returns a context after which random numbers go on as before it.

    Args:
        tensors: on the devices that draw, besides the CPU and the GPU that is in use.
    """
    devices = {tensor.device for tensor in tensors}
    if torch.cuda.is_available() and torch.cuda.is_initialized():
        devices.add(torch.device("cuda", torch.cuda.current_device()))
    devices = {device for device in devices if device.type not in ("cpu", "mps", "meta")}  # MPS has no index
    device_type = next((device.type for device in devices), "cuda")
    kept: AbstractContextManager[None] = torch.random.fork_rng(
        [device.index for device in devices], device_type=device_type
    )
    return kept
