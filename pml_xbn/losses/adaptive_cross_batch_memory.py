"""A cross-batch memory whose rows can be adapted, and which can be trusted."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch
from pytorch_metric_learning.losses import CrossBatchMemory
from torch import Tensor, nn
from torch.nn.functional import normalize
from torch.utils.hooks import RemovableHandle

from .memory_hooks import MemoryHook, MemoryHooks
from .pairs import IndicesTuple, Miner, all_pairs, joined, mined
from .supported import check_supported

_INTEGERS = (torch.int8, torch.int16, torch.int32, torch.int64, torch.uint8)


class _Batch(NamedTuple):
    """A forward call's input, split into what the loss is computed for and what is stored."""

    anchors: Tensor  # (a, d), with gradient
    anchor_labels: Tensor  # (a,)
    refs: Tensor  # (b, d), the embeddings to store, with gradient
    ref_labels: Tensor  # (b,)
    is_own: bool  # the anchors are the stored rows

    @property
    def rows(self) -> Tensor:
        return self.refs.detach()


class _Memory(NamedTuple):
    """Contents that may become the memory's, once the loss has been computed with them."""

    embeddings: Tensor  # (memory_size, d)
    labels: Tensor  # (memory_size,)
    num_rows: int
    batch_rows: Tensor  # (b,), where the batch stands


class AdaptiveCrossBatchMemory(CrossBatchMemory):
    r"""PML's ``CrossBatchMemory`` with hooks that adapt the stored rows before every loss.

    Without hooks it is Cross-Batch Memory (https://arxiv.org/abs/1912.06798). The hooks run after
    validation and before the batch is enqueued; see :meth:`register_memory_hook`. Input is validated before
    anything changes, and nothing changes when a hook, the miner or the loss raises.

    In ``eval()`` mode and where gradients are disabled the memory is read only: the loss is computed
    against the stored rows, and nothing is stored, adapted or counted. Pairs given there as
    ``indices_tuple`` are compared with the batch itself.

    Args:
        loss: any loss of ``CrossBatchMemory.supported_losses()``, or a subclass of one.
        embedding_size: number of dimensions d.
        memory_size: number of rows M.
        miner: chooses among the pairs of batch and memory; default all pairs.
        delay: forward calls, after ``warmup``, during which rows are stored and used but not adapted
            (thesis A Study of Cross-Batch Memory, §4.3.3). For e epochs: e · batches per epoch.
        warmup: forward calls during which nothing is stored and the wrapped loss sees the batch alone
            (Cross-Batch Memory, §3.3: 1,000).
        batch_loss_weight: adds that multiple of the wrapped loss on the batch alone (XBM* in Table 2 of
            Adaptive Cross Batch Normalization).
        normalize_memory: give the stored rows unit L2 norm after adaptation (thesis, §4.3.5).
        nonfinite: what to do with a batch that holds NaN or inf: ``"raise"`` a ValueError, ``"skip"``
            storing it, or ``"ignore"`` it. The last spares a GPU one wait for the host per call.
        memory_dtype: dtype of the rows, ``torch.float32`` or ``torch.float64``. Losses are computed in
            this dtype or the batch's, whichever is more precise.
        collect_stats: record the hooks' numbers for PML's logging.

    Raises:
        ValueError: an unsupported loss, or a parameter out of range.

    Example:
        >>> from pytorch_metric_learning.losses import ContrastiveLoss
        >>> loss_fn = AdaptiveCrossBatchMemory(ContrastiveLoss(), embedding_size=2, memory_size=8)
        >>> handle = loss_fn.register_memory_hook(lambda memory, labels, batch, batch_labels: memory + 1)
        >>> for _ in range(2):
        ...     loss = loss_fn(torch.zeros(1, 2), torch.tensor([5]))
        >>> loss_fn.embedding_memory[: loss_fn.num_rows]
        tensor([[1., 1.],
                [0., 0.]])
    """

    embedding_memory: Tensor
    label_memory: Tensor

    def __init__(
        self,
        loss: nn.Module,
        embedding_size: int,
        memory_size: int = 1024,
        miner: Miner | None = None,
        *,
        delay: int = 0,
        warmup: int = 0,
        batch_loss_weight: float = 0.0,
        normalize_memory: bool = False,
        nonfinite: str = "raise",
        memory_dtype: torch.dtype = torch.float32,
        **kwargs: Any,
    ) -> None:
        check_supported(loss)
        _check_integer("embedding_size", embedding_size, at_least=1)
        _check_integer("memory_size", memory_size, at_least=1)
        _check_integer("delay", delay, at_least=0)
        _check_integer("warmup", warmup, at_least=0)
        if not (math.isfinite(batch_loss_weight) and batch_loss_weight >= 0):
            raise ValueError(f"batch_loss_weight={batch_loss_weight!r}: pass a finite number, 0 or more")
        if nonfinite not in ("raise", "skip", "ignore"):
            raise ValueError(f"nonfinite={nonfinite!r}: pass 'raise', 'skip' or 'ignore'")
        if memory_dtype not in (torch.float32, torch.float64):
            raise ValueError(
                f"memory_dtype={memory_dtype!r}: pass torch.float32 or torch.float64; rows in less than "
                "float32 lose what adaptation adds"
            )
        self.memory_dtype = memory_dtype  # reset_queue, which runs inside super().__init__, needs it
        super().__init__(
            loss=loss, embedding_size=embedding_size, memory_size=memory_size, miner=miner, **kwargs
        )
        self.delay = delay
        self.warmup = warmup
        self.batch_loss_weight = batch_loss_weight
        self.normalize_memory = normalize_memory
        self.nonfinite = nonfinite
        self.num_calls = 0
        self._hooks = MemoryHooks()
        self.add_to_recordable_attributes(
            list_of_names=["delay", "warmup", "batch_loss_weight", "num_rows", "num_calls"],
            is_stat=False,
        )

    @classmethod
    def check_loss_support(cls, loss_name: str) -> None:
        """Passes every name: :func:`check_supported` has seen the loss itself, subclasses included."""

    @property
    def num_rows(self) -> int:
        """Number of occupied rows."""
        return self.memory_size if self.has_been_filled else self.queue_idx

    def register_memory_hook(self, hook: MemoryHook) -> RemovableHandle:
        """Registers a hook that adapts the stored rows.

        It is called as ``hook(memory, memory_labels, batch, batch_labels)`` with the occupied rows
        ``(n, d)``, their labels ``(n,)``, and the detached rows about to be enqueued, ``(b, d)`` and
        ``(b,)``. It returns the new rows, in the same number and order, or None to leave them; it does
        not write to what it is given. Hooks run in order of registration. A hook that is a module becomes
        a submodule, so its state is part of the checkpoint, and is restored when a step fails.

        Returns:
            A handle whose ``remove()`` takes the hook out again.

        Raises:
            TypeError: the hook cannot be called.
        """
        handle = self._hooks.register(hook)
        if isinstance(hook, nn.Module) and all(hook is not module for module in self.modules()):
            self.add_module(f"memory_hook_{len(self._hooks) - 1}", hook)
        return handle

    def forward(
        self,
        embeddings: Tensor,
        labels: Tensor,
        indices_tuple: IndicesTuple | None = None,
        enqueue_mask: Tensor | None = None,
    ) -> Tensor:
        """The wrapped loss between the batch and the memory, which then holds the batch too.

        Args:
            embeddings: ``(b, d)``, any floating dtype.
            labels: ``(b,)``, integers.
            indices_tuple: pairs or triplets within the batch, added to those with the memory.
            enqueue_mask: ``(b,)`` bool; rows where it is True are stored, the others are the anchors
                (as MoCo needs). Default: every row is stored and an anchor.

        Returns:
            The loss, a scalar.

        Raises:
            ValueError: input that does not fit, or that holds NaN or inf; nothing has changed.
        """
        self.reset_stats()
        batch = self._validate(embeddings, labels, indices_tuple, enqueue_mask)
        is_read_only = not (self.training and torch.is_grad_enabled())
        if is_read_only or not self._has_storable_values(embeddings, batch.ref_labels):
            return self._loss_against_stored(batch, indices_tuple)
        if self.num_calls < self.warmup:
            loss = self._loss_of_batch(batch, indices_tuple)
            self.num_calls += 1
            return loss
        with self._hooks.restored_on_error():
            memory = self._enqueued(self._adapted(batch), batch)
            loss = self._loss_against(memory, batch, indices_tuple)
            if self.batch_loss_weight:
                loss = loss + self.batch_loss_weight * self._loss_of_batch(batch, indices_tuple)
        self._commit(memory)
        self.num_calls += 1
        return loss

    def fill_memory(self, embeddings: Tensor, labels: Tensor) -> None:
        """Stores rows without computing a loss or adapting what is there.

        For instance those of randomly sampled training images, embedded with the warmed-up model
        (Cross-Batch Memory, §3.3). Call it as often as it takes to fill the memory.

        Args:
            embeddings: ``(b, d)``, at most ``memory_size`` rows.
            labels: ``(b,)``, integers.

        Raises:
            ValueError: as in :meth:`forward`.
        """
        batch = self._validate(embeddings, labels, None, None)
        if self._has_storable_values(batch.rows, batch.ref_labels):
            self._commit(self._enqueued(self.embedding_memory[: self.num_rows], batch))

    def reset_queue(self) -> None:
        """Empties the memory. Calls stay counted and adapters keep their estimates."""
        rows = torch.zeros(self.memory_size, self.embedding_size, dtype=self.memory_dtype)
        labels = torch.zeros(self.memory_size, dtype=torch.int64)
        device = self.embedding_memory.device if hasattr(self, "embedding_memory") else None
        self.register_buffer("embedding_memory", rows.to(device))
        self.register_buffer("label_memory", labels.to(device))
        self.has_been_filled = False
        self.queue_idx = 0

    # -- one step: validate, adapt, compute the loss, commit --------------------------------------------

    def _validate(
        self,
        embeddings: Tensor,
        labels: Tensor,
        indices_tuple: IndicesTuple | None,
        enqueue_mask: Tensor | None,
    ) -> _Batch:
        """Checks shapes and dtypes, moves the memory to the batch's device, and splits the batch."""
        _check_embeddings(embeddings, self.embedding_size)
        _check_labels(labels, len(embeddings))
        if indices_tuple is not None and enqueue_mask is not None:
            raise ValueError("indices_tuple and enqueue_mask are mutually exclusive: pass one of them")
        if indices_tuple is not None and len(indices_tuple) not in (3, 4):
            raise ValueError(
                f"indices_tuple has {len(indices_tuple)} tensors: pass 3 (anchors, positives, negatives) "
                "or 4 (anchors, positives, anchors, negatives)"
            )
        device = embeddings.device
        embeddings = embeddings.to(torch.promote_types(embeddings.dtype, self.memory_dtype))
        labels = labels.to(device, torch.int64).contiguous()
        if enqueue_mask is None:
            batch = _Batch(embeddings, labels, embeddings, labels, is_own=True)
        else:
            _check_mask(enqueue_mask, len(embeddings))
            mask = enqueue_mask.to(device)
            batch = _Batch(embeddings[~mask], labels[~mask], embeddings[mask], labels[mask], is_own=False)
        if len(batch.refs) > self.memory_size:
            raise ValueError(
                f"{len(batch.refs)} rows to enqueue do not fit memory_size={self.memory_size}: pass "
                "smaller batches or build a larger memory"
            )
        self.embedding_memory = self.embedding_memory.to(device, self.memory_dtype)
        self.label_memory = self.label_memory.to(device)
        return batch

    def _has_storable_values(self, embeddings: Tensor, labels: Tensor) -> bool:
        """Checks the values, in one wait for the GPU; False if the batch is to be used but not stored."""
        if self.nonfinite == "ignore":
            return True
        refusals = self._hooks.refusals(labels)
        is_finite = torch.isfinite(embeddings).all()
        all_finite, *refused = torch.stack([is_finite, *(flag for flag, _ in refusals)]).tolist()
        for is_refused, (_, message) in zip(refused, refusals, strict=True):
            if is_refused:
                raise ValueError(message())
        if not all_finite and self.nonfinite == "raise":
            bad_rows = (~torch.isfinite(embeddings)).any(dim=1).nonzero().flatten().tolist()
            raise ValueError(
                f"embeddings has NaN or inf in rows {bad_rows}: lower the learning rate or mend the data, "
                "or pass nonfinite='skip' to leave such batches out of the memory"
            )
        return bool(all_finite)

    def _adapted(self, batch: _Batch) -> Tensor:
        """The occupied rows, moved to where the current model would put them."""
        rows = self.embedding_memory[: self.num_rows]
        if self.num_calls < self.warmup + self.delay:
            return rows
        stored_labels = self.label_memory[: self.num_rows]
        with torch.no_grad():
            new_rows = batch.rows.to(self.memory_dtype)
            # A copy, so that a hook that writes to its input and then fails cannot harm the memory.
            rows = self._hooks.run(rows.clone(), stored_labels, new_rows, batch.ref_labels)
            return normalize(rows) if self.normalize_memory else rows

    def _enqueued(self, rows: Tensor, batch: _Batch) -> _Memory:
        """A new memory of ``rows``, with the batch in the place of the oldest ones."""
        size = len(batch.refs)
        batch_rows = torch.arange(self.queue_idx, self.queue_idx + size, device=rows.device)
        batch_rows %= self.memory_size
        # New tensors: the graph of an earlier forward may still need the old ones.
        embeddings = torch.cat([rows, self.embedding_memory[len(rows) :]])
        embeddings[batch_rows] = batch.rows.to(self.memory_dtype)
        labels = self.label_memory.clone()
        labels[batch_rows] = batch.ref_labels
        return _Memory(embeddings, labels, min(len(rows) + size, self.memory_size), batch_rows)

    def _loss_against(self, memory: _Memory, batch: _Batch, given: IndicesTuple | None) -> Tensor:
        rows, labels = memory.embeddings[: memory.num_rows], memory.labels[: memory.num_rows]
        rows = rows.to(batch.anchors.dtype)
        if len(batch.anchors) == 0 or len(rows) == 0:
            return _zero_loss(batch)
        indices = self._indices(batch, rows, labels, memory.batch_rows if batch.is_own else None)
        if given is not None:
            indices = joined(indices, given, batch.anchor_labels, memory.batch_rows)
        return self._loss(batch, indices, rows, labels)

    def _loss_against_stored(self, batch: _Batch, given: IndicesTuple | None) -> Tensor:
        """The loss against the memory as it is."""
        rows, labels = self.embedding_memory[: self.num_rows], self.label_memory[: self.num_rows]
        rows = rows.to(batch.anchors.dtype)
        if len(batch.anchors) == 0 or len(rows) == 0:
            return _zero_loss(batch) if given is None else self._loss_of_batch(batch, given)
        indices = self._indices(batch, rows, labels, None)
        if given is not None:
            # Not stored, so the given pairs find their rows of the batch behind those of the memory.
            batch_rows = torch.arange(len(rows), len(rows) + len(batch.refs), device=rows.device)
            rows = torch.cat([rows, batch.rows])
            indices = joined(indices, given, batch.anchor_labels, batch_rows)
            labels = torch.cat([labels, batch.ref_labels])
        return self._loss(batch, indices, rows, labels)

    def _loss_of_batch(self, batch: _Batch, given: IndicesTuple | None) -> Tensor:
        """The wrapped loss on the batch alone, as if there were no memory."""
        if len(batch.anchors) == 0 or len(batch.refs) == 0:
            return _zero_loss(batch)
        refs = (None, None) if batch.is_own else (batch.refs, batch.ref_labels)
        indices = given
        if self.miner is not None:
            indices = self.miner(batch.anchors, batch.anchor_labels, *refs)
            if given is not None:
                batch_rows = torch.arange(len(batch.refs), device=batch.refs.device)
                indices = joined(indices, given, batch.anchor_labels, batch_rows)
        return self._loss(batch, indices, *refs)

    def _loss(
        self,
        batch: _Batch,
        indices: IndicesTuple | None,
        rows: Tensor | None,
        labels: Tensor | None,
    ) -> Tensor:
        loss: Tensor = self.loss(batch.anchors, batch.anchor_labels, indices, rows, labels)
        return loss

    def _indices(self, batch: _Batch, rows: Tensor, labels: Tensor, own_rows: Tensor | None) -> IndicesTuple:
        if self.miner is None:
            return all_pairs(batch.anchor_labels, labels, own_rows)
        return mined(self.miner, batch.anchors, batch.anchor_labels, rows, labels, own_rows)

    def _commit(self, memory: _Memory) -> None:
        """Makes the memory that the loss was computed with the one that is stored."""
        self.embedding_memory = memory.embeddings
        self.label_memory = memory.labels
        self.curr_batch_idx = memory.batch_rows
        self.queue_idx = (self.queue_idx + len(memory.batch_rows)) % self.memory_size
        self.has_been_filled = memory.num_rows == self.memory_size


def _zero_loss(batch: _Batch) -> Tensor:
    """What PML's losses return without pairs: zero, with a zero gradient."""
    return (batch.anchors * 0).sum()


def _check_integer(name: str, value: int, at_least: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < at_least:
        raise ValueError(f"{name}={value!r}: pass an integer, {at_least} or more")


def _check_embeddings(embeddings: Tensor, embedding_size: int) -> None:
    if not isinstance(embeddings, torch.Tensor):
        raise TypeError(f"embeddings is a {type(embeddings).__name__}: pass a tensor")
    if embeddings.ndim != 2 or embeddings.shape[1] != embedding_size:
        raise ValueError(
            f"embeddings has shape {tuple(embeddings.shape)}: pass (batch_size, {embedding_size}), or "
            "build the memory with another embedding_size"
        )
    if not embeddings.is_floating_point():
        raise ValueError(f"embeddings has dtype {embeddings.dtype}: pass a floating dtype")


def _check_labels(labels: Tensor, batch_size: int) -> None:
    if not isinstance(labels, torch.Tensor):
        raise TypeError(f"labels is a {type(labels).__name__}: pass a tensor")
    if labels.ndim != 1 or len(labels) != batch_size:
        raise ValueError(
            f"labels has shape {tuple(labels.shape)}: pass one label per embedding, shape ({batch_size},)"
        )
    if labels.dtype not in _INTEGERS:
        raise ValueError(f"labels has dtype {labels.dtype}: pass integers, such as torch.int64")


def _check_mask(mask: Tensor, batch_size: int) -> None:
    if not isinstance(mask, torch.Tensor):
        raise TypeError(f"enqueue_mask is a {type(mask).__name__}: pass a bool tensor")
    if mask.dtype != torch.bool:
        raise ValueError(f"enqueue_mask has dtype {mask.dtype}: pass torch.bool, as from mask.bool()")
    if mask.shape != (batch_size,):
        raise ValueError(
            f"enqueue_mask has shape {tuple(mask.shape)}: pass one value per embedding, ({batch_size},)"
        )
