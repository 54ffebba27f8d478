"""Time, launches and peak memory of a step."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch.profiler import ProfilerActivity, profile

_LAUNCHES = ("cudaLaunchKernel", "cuLaunchKernel")  # also of the newer cudaLaunchKernelExC


def count_launches(step: Callable[[], None], device: torch.device) -> int | None:
    """Returns how many kernels a step launches, or None on a CPU, which launches none."""
    activities = [ProfilerActivity.CPU]
    if device.type == "cuda":
        activities.append(ProfilerActivity.CUDA)
    with profile(activities=activities) as found:
        step()
        if device.type == "cuda":
            torch.cuda.synchronize(device)
    if device.type != "cuda":
        return None
    return sum(event.count for event in found.key_averages() if event.key.startswith(_LAUNCHES))


def peak_megabytes(step: Callable[[], None], device: torch.device) -> float | None:
    """Returns the megabytes that a step allocates on top of what was there, or None on a CPU."""
    if device.type != "cuda":
        step()
        return None
    torch.cuda.synchronize(device)
    before = torch.cuda.memory_allocated(device)
    torch.cuda.reset_peak_memory_stats(device)
    step()
    torch.cuda.synchronize(device)
    return (torch.cuda.max_memory_allocated(device) - before) / 1e6
