"""Time, launches and peak memory of a step."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch.profiler import ProfilerActivity, profile

_LAUNCHES = ("cudaLaunchKernel", "cuLaunchKernel")  # also of the newer cudaLaunchKernelExC


def count_launches(step: Callable[[], None], device: torch.device) -> int | None:
    """Returns how many kernels a step launches, or None on a CPU, which launches none."""
    if device.type != "cuda":
        return None
    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as found:
        step()
        torch.cuda.synchronize(device)
    return sum(event.count for event in found.key_averages() if event.key.startswith(_LAUNCHES))


def peak_megabytes(step: Callable[[], None], device: torch.device) -> float | None:
    """Returns the megabytes that a step allocates on top of what was there, or None on a CPU."""
    if device.type != "cuda":
        return None
    torch.cuda.synchronize(device)
    before = torch.cuda.memory_allocated(device)
    torch.cuda.reset_peak_memory_stats(device)
    step()
    torch.cuda.synchronize(device)
    return (torch.cuda.max_memory_allocated(device) - before) / 1e6
