"""Time of a call, and memory of a process."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable
from pathlib import Path

import torch

_STATUS = Path("/proc/self/status")


def now(device: torch.device) -> float:
    """Returns seconds, once the device has done what it was told."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter()


def milliseconds(call: Callable[[], object], device: torch.device) -> float:
    """Returns the time of the call, and of what it leaves a GPU to do: there by the device's own events."""
    if device.type == "cuda":
        began_there, ended_there = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        now(device)
        began_there.record()
        call()
        ended_there.record()
        now(device)
        return float(began_there.elapsed_time(ended_there))
    began = now(device)
    call()
    return 1000 * (now(device) - began)


def peak_rss() -> float:
    """Returns megabytes. Of Linux's own record: getrusage starts a process with its parent's."""
    if not _STATUS.exists():
        from resource import RUSAGE_SELF, getrusage

        return getrusage(RUSAGE_SELF).ru_maxrss * 1024 / 1e6
    return _kilobytes("VmHWM") * 1024 / 1e6


def limit_memory(gigabytes: float, device: torch.device) -> None:
    """Lets allocations fail that would take so much more than the process has now; on a CPU, Linux alone."""
    if device.type == "cuda":
        number = torch.cuda.current_device() if device.index is None else device.index
        total = torch.cuda.get_device_properties(number).total_memory
        torch.cuda.set_per_process_memory_fraction(min(1.0, gigabytes * 1e9 / total), number)
    elif _STATUS.exists():
        from resource import RLIMIT_DATA, setrlimit

        # Of the address space, RLIMIT_AS, libraries take tens of gigabytes that they never touch.
        most = _kilobytes("VmData") * 1024 + int(gigabytes * 1e9)
        setrlimit(RLIMIT_DATA, (most, most))


def release_memory(device: torch.device) -> None:
    """Gives a GPU back what nobody holds any more."""
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()


def _kilobytes(name: str) -> int:
    line = next(line for line in _STATUS.read_text().splitlines() if line.startswith(name))
    return int(line.split()[1])
