"""The step while a graph is made of it: by ``torch.compile``, ``make_fx`` or a CUDA graph.

It is the step of :mod:`._step`, whose numbers stay on the device: where the next row goes, how many there
are, and whether a batch can be stored. What cannot be computed so is refused in words.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from pytorch_metric_learning.losses import MarginLoss, NCALoss, TripletMarginLoss
from pytorch_metric_learning.miners import TripletMarginMiner
from torch import Tensor

from .._checks import check_integers, check_rows
from .._tracing import is_compiling, looks_again
from ..memory._batch import Batch
from ..memory._module_state import settle_
from ..memory._rows import read_dtype
from ..pairwise._distances import is_symmetric
from ..pairwise._ranges import sort_alike
from ..pairwise._supported import fused_loss_of, is_fused_miner
from ._input import check_on_device, check_queue, check_size
from ._step import step

if TYPE_CHECKING:
    from .adaptive_cross_batch_memory import AdaptiveCrossBatchMemory as Memory


def step_traced(memory: Memory, embeddings: Tensor, labels: Tensor) -> Tensor:
    """Returns the loss of a batch against the memory, which then holds the batch.

    Args:
        memory: as :func:`why_not_traced` lets it be.
        embeddings: ``(b, d)``, on the memory's device.
        labels: ``(b,)``.
    """
    check_traced_input(memory, embeddings, labels)
    queue, held = memory.queue, memory._hooks.held_tensors()
    # Autocast would have distances in half precision.
    with looks_again(), torch.autocast(embeddings.device.type, enabled=False):
        if embeddings.dtype != torch.float64:
            embeddings = embeddings.to(read_dtype(queue.dtype))
        labels = labels.to(embeddings.device, torch.int64)
        batch = Batch(embeddings, labels, embeddings, labels, slice(0, labels.shape[0]))
        loss = step(memory, check_on_device(memory, batch))
        queue.commit_()
        settle_(held)
    queue.was_traced = True
    return loss


def check_traced_input(memory: Memory, embeddings: Tensor, labels: Tensor) -> None:
    """Refuses shapes and dtypes that do not fit."""
    check_queue(memory, memory.queue)
    check_rows("embeddings", embeddings, width=memory.queue.rows.shape[1])
    check_integers("labels", labels, embeddings.shape[0], "one label per embedding")
    check_size(embeddings.shape[0], memory.queue.memory_size)


def why_not_now(memory: Memory, embeddings: Tensor, *, is_training: bool) -> str | None:
    """Returns what keeps this call from being traced, and perhaps not a later one; None if nothing does.

    Args:
        memory: whose call it is.
        embeddings: of the call.
        is_training: whether the call stores its batch.
    """
    if not is_training:
        return "in eval() or without gradients"
    if isinstance(embeddings, Tensor) and embeddings.device != memory.queue.rows.device:
        return "on another device than its batch (make a call outside of the graph first)"
    if memory._watchers:
        return "that is watched"
    if memory.warmup and memory.warmup > memory.queue.calls_over:
        return f"whose warm-up is not over (make {memory.warmup + 1} calls outside of the graph first)"
    if is_compiling():
        if memory.queue.was_read:  # torch.compile cannot tell whether it was written to
            return (
                "whose embedding_memory was read since the last step (make a call outside of the graph first)"
            )
        return None
    if memory.queue.was_written:
        return "whose embedding_memory was written to (make a call outside of the graph first)"
    if not memory.queue.is_measured and measures_rows(memory):
        return "that has adapted no rows yet: make two steps first"
    return None


def measures_rows(memory: Memory) -> bool:
    """Returns whether a memory measures its rows: for adapters, and to store them in half precision."""
    return bool(memory._hooks.adapters) or memory.queue.dtype.itemsize < 4


def will_measure(memory: Memory, num_rows: int) -> bool:
    """Returns whether a step with a batch of so many rows measures the memory's, if nothing has before.

    Adapters measure rows that they find, in a graph also where none are; with a batch of one they do nothing.
    Rows of half precision are measured as the first are stored.
    """
    adapts = bool(memory._hooks.adapters) and num_rows > 1 and memory.queue.memory_size > 1
    return adapts or (memory.queue.dtype.itemsize < 4 and num_rows > 0)


def why_not_traced(memory: Memory, *, has_more_input: bool) -> str | None:
    """Returns what keeps such calls of a memory from being traced; None if nothing does.

    Args:
        memory: whose call it is.
        has_more_input: whether it has pairs, a mask or samples beside embeddings and labels.
    """
    if has_more_input:
        return "with an indices_tuple, an enqueue_mask or sample_ids"
    if memory._is_sharded or (memory.gather_distributed and memory._group.has_others):
        return "whose rows are shared by ranks"
    if memory.nonfinite == "raise_at_once":
        return "with nonfinite='raise_at_once', which looks at every batch as it comes"
    if memory.normalize_memory or memory.update != "queue":
        return "with normalize_memory or update"
    if not memory._hooks.has_only_adapters:
        return "with a hook that is no adapter"
    if memory.collect_stats or memory._hooks.collect_stats:
        return "that collects statistics"
    name, fused = type(memory.loss).__name__, fused_loss_of(memory.loss)
    if fused is None or not fused.has_terms:
        return f"with {name}, which runs PML's own code"
    if getattr(memory.loss, "smooth_loss", False):
        return f"with {name} and smooth_loss, which lists triplets"
    if memory.batch_loss_weight and not is_symmetric(memory.loss.distance):
        return f"with batch_loss_weight and {type(memory.loss.distance).__name__}"
    draws = memory.miner is None and getattr(memory.loss, "triplets_per_anchor", "all") != "all"
    if memory.batch_loss_weight and draws:
        return f"with batch_loss_weight and a {name} that draws triplets of the batch (triplets_per_anchor)"
    if memory.batch_loss_weight and isinstance(memory.loss, NCALoss):
        return f"with batch_loss_weight and {name}, which counts an anchor's own copy in memory alone"
    if isinstance(memory.batch_loss_weight, Tensor):
        return "with a batch_loss_weight that is a tensor"
    if not is_fused_miner(memory.miner):
        return f"with {type(memory.miner).__name__}, which runs PML's own code"
    has_triplets = isinstance(memory.loss, (MarginLoss, TripletMarginLoss))
    mines_triplets = has_triplets and isinstance(memory.miner, TripletMarginMiner)
    if mines_triplets and not sort_alike(memory.miner.distance, memory.loss.distance):
        return f"with {name} and a TripletMarginMiner whose distances may sort rows otherwise"
    return None
