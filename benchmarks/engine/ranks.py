"""One process or many, on CPUs or GPUs."""

from __future__ import annotations

import gc
import os
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from datetime import timedelta
from typing import Any, TypeVar

import torch
from torch import Tensor, distributed, nn
from torch.nn.parallel import DistributedDataParallel

T = TypeVar("T")
_TIMEOUT = timedelta(minutes=30)  # rank 0 evaluates alone


class Ranks:
    """The processes that ``torchrun`` started, or this one alone; ``cpu`` leaves GPUs alone."""

    def __init__(self, cpu: bool) -> None:
        self.rank = int(os.environ.get("RANK", "0"))
        self.world_size = int(os.environ.get("WORLD_SIZE", "1"))
        self.device = torch.device("cpu")
        if torch.cuda.is_available() and not cpu:
            self.device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")))
            torch.cuda.set_device(self.device)
        if self.world_size > 1 and not distributed.is_initialized():
            backend = "nccl" if self.device.type == "cuda" else "gloo"
            distributed.init_process_group(backend, timeout=_TIMEOUT)

    @property
    def is_first(self) -> bool:
        return self.rank == 0

    def wrap(self, module: nn.Module) -> nn.Module:
        """Returns the module, wrapped so that its gradients are averaged over the ranks."""
        if self.world_size == 1 or not any(parameter.requires_grad for parameter in module.parameters()):
            return module
        return DistributedDataParallel(module)

    def autocast(self, mixed_precision: str) -> AbstractContextManager[Any]:
        """Returns the context of mixed precision, on GPUs alone."""
        if self.device.type != "cuda" or mixed_precision == "no":
            return nullcontext()
        dtype = torch.float16 if mixed_precision == "fp16" else torch.bfloat16
        return torch.autocast("cuda", dtype)

    def share_buffers(self, module: nn.Module) -> None:
        """Gives all ranks the first one's buffers, such as the running moments of BN."""
        if self.world_size > 1:
            for buffer in module.buffers():
                distributed.broadcast(buffer, src=0)

    def gather(self, rows: Tensor) -> Tensor:
        """Returns the rows of all ranks, equally many of each, in rank order."""
        if self.world_size == 1:
            return rows
        parts = [torch.empty_like(rows) for _ in range(self.world_size)]
        distributed.all_gather(parts, rows.contiguous())
        return torch.cat(parts)

    def from_first_rank(self, make: Callable[[], T]) -> T:
        """Returns what the first rank makes, such as annotations that it alone downloads and reads."""
        made: list[Any] = [make() if self.is_first else None]
        if self.world_size > 1:
            distributed.broadcast_object_list(made)
        return made[0]

    def any(self, flag: bool) -> bool:
        """Returns whether the flag is up on any rank."""
        if self.world_size == 1:
            return flag
        flags = torch.tensor([flag], dtype=torch.uint8, device=self.device)
        distributed.all_reduce(flags, op=distributed.ReduceOp.MAX)
        return bool(flags.item())

    def wait(self) -> None:
        """Waits until all ranks are here."""
        if self.world_size > 1:
            distributed.barrier(device_ids=[self.device.index] if self.device.type == "cuda" else None)

    def leave(self) -> None:
        """Leaves the group, once the caller has let go of all modules that were wrapped for it."""
        if self.world_size > 1:
            gc.collect()  # they hold the group in cycles, and its threads would outlive the interpreter
            distributed.destroy_process_group()
