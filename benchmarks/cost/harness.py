"""How every table is measured: steps that take turns, peaks of memory, launches, processes of their own."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from statistics import median
from typing import Any, TypeVar

import torch
from torch.profiler import ProfilerActivity, profile

from benchmarks.engine.measuring import peak_rss

T = TypeVar("T")
Step = Callable[[], float]  # takes one step, and returns its milliseconds
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
WARM_UP = 3  # steps
_LAUNCHES = ("cudaLaunchKernel", "cuLaunchKernel")  # also of the newer cudaLaunchKernelExC


def take_turns(first: Step, second: Step, pairs: int, warm_up: int = WARM_UP) -> list[tuple[float, float]]:
    """Returns the milliseconds of so many pairs of steps, which two take in turn.

    A machine that slows down slows both.
    """
    for _ in range(warm_up):
        first()
        second()
    return [(first(), second()) for _ in range(pairs)]


def compare(times: Sequence[tuple[float, float]]) -> dict[str, float]:
    """Returns the medians of theirs and of ours, and that of the ratio pair by pair."""
    return {
        "pml_ms": median(theirs for theirs, _ in times),
        "ours_ms": median(ours for _, ours in times),
        "ratio": median(ours / theirs for theirs, ours in times),
    }


class Peak:
    """Megabytes that are taken at most, from when it is made.

    On a CPU they are those of the process, so one process measures one peak. Let it load what the libraries
    need at the first step before.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        if device.type == "cuda":
            torch.cuda.synchronize(device)
            torch.cuda.reset_peak_memory_stats(device)
        self._before = self._now()

    def megabytes(self) -> float:
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)
        return self._now() - self._before

    def _now(self) -> float:
        is_cuda = self._device.type == "cuda"
        return torch.cuda.max_memory_allocated(self._device) / 1e6 if is_cuda else peak_rss()


def count_launches(step: Callable[[], object], device: torch.device) -> int:
    """Returns how many kernels a step launches on a GPU."""
    return sum(event.count for event in _events(step, device) if event.key.startswith(_LAUNCHES))


def kernel_milliseconds(step: Callable[[], object], device: torch.device) -> float:
    """Returns how long the kernels of a step take on a GPU, without the time between them."""
    kernels = [event for event in _events(step, device) if str(event.device_type).endswith("CUDA")]
    attribute = "self_device_time_total"  # in microseconds
    if kernels and not hasattr(kernels[0], attribute):
        attribute = "self_cuda_time_total"  # before torch 2.4
    return sum(float(getattr(event, attribute)) for event in kernels) / 1000


def _events(step: Callable[[], object], device: torch.device) -> Iterable[Any]:
    """Returns what the profiler saw of a step on a GPU, and of the kernels that it left it to do."""
    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as found:
        step()
        torch.cuda.synchronize(device)
    events: Iterable[Any] = found.key_averages()
    return events


def in_fresh_process(call: Callable[..., T], *arguments: Any) -> T:
    """Returns the result of a call in a process whose peak of memory is its own."""
    with ProcessPoolExecutor(1, get_context("spawn")) as pool:
        return pool.submit(call, *arguments).result()
