"""The state of a loss in the checkpoints of the Hugging Face Trainer."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import torch
from pytorch_metric_learning.losses import CrossBatchMemory
from pytorch_metric_learning.utils.distributed import DistributedLossWrapper
from torch import nn

from ..losses.adaptive_cross_batch_memory import AdaptiveCrossBatchMemory


def keep_loss(loss_fn: nn.Module, name: str = "loss_fn.pt") -> Any:
    """Returns a callback for the Hugging Face Trainer and sentence-transformers, which do not save the loss.

    It writes the state of the loss into every checkpoint, and loads it when training is resumed from one in
    ``output_dir``, or in ``TrainingArguments.resume_from_checkpoint``: a path that is given to
    ``Trainer.train`` alone is not told to callbacks. All ranks hold the same memory with
    ``gather_distributed=True``, so the first rank writes. It tells :class:`ClassBatches` the epoch, too,
    which accelerate does not where ranks resume within one.

    Args:
        loss_fn: the memory, or a module that holds it; of several losses an ``nn.ModuleList``.
        name: of the file in a checkpoint's folder.

    Returns:
        A ``transformers.TrainerCallback``: pass it in ``callbacks=[...]`` of the trainer (docs/frameworks.md
        has whole trainers).

    Raises:
        ImportError: transformers is not installed.
        ValueError: a memory with ``shard_distributed=True``, which takes ``torch.distributed.checkpoint``. As
            training begins on many ranks, a memory without ``gather_distributed=True``, as each rank then has
            rows of its own.

    Warns:
        UserWarning: the checkpoint that is resumed from has no such file, so the memory begins empty.
    """
    try:
        from transformers import TrainerCallback
    except ImportError as error:
        raise ImportError("keep_loss needs transformers: pip install transformers") from error

    if any(getattr(part, "shard_distributed", False) for part in loss_fn.modules()):
        raise ValueError(
            "loss_fn has shard_distributed=True, and the first rank holds a part of its rows: save it with "
            "torch.distributed.checkpoint, or pass gather_distributed=True instead"
        )

    def file_at(arguments: Any, state: Any) -> Path:
        return Path(arguments.output_dir) / f"checkpoint-{state.global_step}" / name

    class KeepLoss(TrainerCallback):
        def on_save(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            if args.should_save:
                torch.save(loss_fn.state_dict(), file_at(args, state))

        def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            if getattr(args, "world_size", 1) > 1:
                _check_rows_are_those_of_all(loss_fn, args.world_size)
            if state.global_step == 0:
                return
            file = file_at(args, state)
            resumed = getattr(args, "resume_from_checkpoint", None)
            if isinstance(resumed, str) and Path(resumed).is_dir():
                file = Path(resumed) / name
            if file.exists():
                loss_fn.load_state_dict(torch.load(file, map_location="cpu", weights_only=True))
            else:
                warnings.warn(
                    f"{file} is missing: training goes on from step {state.global_step} with the memory as "
                    "it is, which is empty unless you have loaded it; a checkpoint elsewhere has to be named "
                    "in TrainingArguments(resume_from_checkpoint=...)",
                    stacklevel=2,
                )

        def on_epoch_begin(self, args: Any, state: Any, control: Any, **parts: Any) -> None:
            sampler: Any = parts.get("train_dataloader")
            while hasattr(sampler, "batch_sampler"):
                sampler = sampler.batch_sampler
            if hasattr(sampler, "set_epoch"):
                sampler.set_epoch(int(state.epoch))

    return KeepLoss()


def _check_rows_are_those_of_all(loss_fn: nn.Module, num_ranks: int) -> None:
    """Refuses a memory of which not all ranks hold the same rows, as the first rank's are saved."""
    gathering = [part for part in loss_fn.modules() if isinstance(part, DistributedLossWrapper)]
    are_gathered = {id(part) for wrapper in gathering for part in wrapper.modules()}
    for memory in loss_fn.modules():
        if not isinstance(memory, CrossBatchMemory) or id(memory) in are_gathered:
            continue
        name = type(memory).__name__
        if not isinstance(memory, AdaptiveCrossBatchMemory):
            raise ValueError(
                f"a {name} on every rank has rows of its own, and the first rank's alone would be saved: "
                "wrap it in DistributedLossWrapper, or take XBNWrapper with gather_distributed=True"
            )
        if not memory.gather_distributed or memory._group.size != num_ranks:
            raise ValueError(
                f"not all ranks hold the rows of this {name}, and the first rank's alone would be saved: "
                "pass gather_distributed=True, without a process_group"
            )
