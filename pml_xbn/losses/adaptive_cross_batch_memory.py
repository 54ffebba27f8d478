"""A cross-batch memory whose rows can be adapted, and which can be trusted."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any, TypeVar

import torch
from pytorch_metric_learning.losses import CrossBatchMemory
from torch import Tensor, nn
from torch.nn.functional import normalize
from torch.utils.hooks import RemovableHandle

from ..number_checks import check_integer, check_non_negative
from . import ranks
from ._cosines import Distances
from ._pairs import IndicesTuple, Miner, chosen_pairs, joined, mapped
from ._seam import loss_against
from ._shares import can_be_shared, check_reducers, share_against, share_of_nothing
from ._tensor_rows import TensorRows
from .batch import Batch, Memory, split, zero_loss
from .batch_loss import loss_of_batch
from .checkpoint import check_same_size, inferred_queue
from .global_batch import Report, gathered, of_all_ranks, report_of, reports_of
from .memory_hooks import MemoryHook, MemoryHooks, make_buffers
from .row_buffers import Reader, RowBuffers, traced
from .supported import check_supported
from .validation import check_fits

Result = TypeVar("Result")


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
            (thesis A Study of Cross Batch Memory, §4.3.3). For e epochs: e · batches per epoch.
        warmup: forward calls during which nothing is stored and the wrapped loss sees the batch alone
            (Cross-Batch Memory, §3.3: 1,000).
        batch_loss_weight: adds that multiple of the wrapped loss on the batch alone (XBM* in Table 2 of
            Adaptive Cross Batch Normalization).
        normalize_memory: give the stored rows unit L2 norm after adaptation (thesis, §4.3.5).
        gather_distributed: in a run of many ranks, store the rows of all of them, in rank order, so that
            every rank holds the same memory and adapts it to the moments of the global batch. The loss is
            that of a single process with the batch of all ranks, and so is the mean over ranks of its
            gradients, which ``DistributedDataParallel`` takes. A rank computes the terms of its own
            anchors where none depends on the others' (all but a few losses and miners: docs/distributed.md
            names them). Not to be combined with PML's ``DistributedLossWrapper``, which gathers too.
        nonfinite: what to do with a batch that holds NaN or inf: ``"raise"`` a ValueError, ``"skip"``
            storing it, or ``"ignore"`` it. The last spares a GPU one wait for the host per call.
        memory_dtype: dtype of the rows, ``torch.float32`` or ``torch.float64``. Losses are computed in
            this dtype or the batch's, whichever is more precise.
        collect_stats: record the hooks' numbers for PML's logging.

    Raises:
        ValueError: an unsupported loss, or a parameter out of range; ``gather_distributed`` with a reducer
            that is not one of PML's.

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
        gather_distributed: bool = False,
        nonfinite: str = "raise",
        memory_dtype: torch.dtype = torch.float32,
        **kwargs: Any,
    ) -> None:
        check_supported(loss)
        if gather_distributed:
            check_reducers(loss)
        check_integer("embedding_size", embedding_size, at_least=1)
        check_integer("memory_size", memory_size, at_least=1)
        check_integer("delay", delay, at_least=0)
        check_integer("warmup", warmup, at_least=0)
        check_non_negative("batch_loss_weight", batch_loss_weight)
        if nonfinite not in ("raise", "skip", "ignore"):
            raise ValueError(f"nonfinite={nonfinite!r}: pass 'raise', 'skip' or 'ignore'")
        if memory_dtype not in (torch.float32, torch.float64):
            raise ValueError(
                f"memory_dtype={memory_dtype!r}: pass torch.float32 or torch.float64; rows in less than "
                "float32 lose what adaptation adds"
            )
        # What reset_queue needs, which runs inside super().__init__.
        self.memory_dtype = memory_dtype
        self._hooks = MemoryHooks()
        self._names_of_hooks: dict[int, str] = {}
        self._row_buffers = RowBuffers()
        self._rows_known_to_adapters: tuple[int, int] | None = None
        self._has_warned_of_eval = False
        super().__init__(
            loss=loss, embedding_size=embedding_size, memory_size=memory_size, miner=miner, **kwargs
        )
        self.delay = delay
        self.warmup = warmup
        self.batch_loss_weight = batch_loss_weight
        self.normalize_memory = normalize_memory
        self.gather_distributed = gather_distributed
        self.nonfinite = nonfinite
        self.num_calls = 0
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
            self._drop_removed_hooks()
            numbers = [int(name.removeprefix("memory_hook_")) for name in self._names_of_hooks.values()]
            name = f"memory_hook_{max(numbers, default=-1) + 1}"
            self._names_of_hooks[handle.id] = name
            self.add_module(name, hook)
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
        is_read_only = not (self.training and torch.is_grad_enabled())
        batch, reports, is_storable = self._validated(
            embeddings, labels, indices_tuple, enqueue_mask, is_read_only=is_read_only
        )
        if is_read_only:
            self._warn_of_eval(batch)
        if is_read_only or not is_storable:
            loss, reader = traced(self._loss_against_stored(batch))
            self._row_buffers.read_by(reader)
            return loss
        with self._hooks.restored_on_error():
            if reports is None:
                memory = self._memory_of_step(batch)
                loss = self._loss_of_step(memory, batch)
            else:
                memory, loss = self._step_of_ranks(batch, reports)
            _check_scalar(loss, self.loss)
        if memory is not None:
            loss, reader = traced(loss)
            self._commit(memory, reader)
        self.num_calls += 1
        return loss

    def fill_memory(self, embeddings: Tensor, labels: Tensor) -> None:
        """Stores rows without computing a loss or adapting what is there.

        For instance those of randomly sampled training images, embedded with the warmed-up model
        (Cross-Batch Memory, §3.3). Call it as often as it takes to fill the memory. With
        ``gather_distributed`` every rank brings rows, and all ranks store all of them.

        Args:
            embeddings: ``(b, d)``, at most ``memory_size`` rows.
            labels: ``(b,)``, integers.

        Raises:
            ValueError: as in :meth:`forward`.
        """
        batch, _, is_storable = self._validated(embeddings, labels, None, None, is_read_only=False)
        if is_storable:
            with self._hooks.restored_on_error():
                memory = self._next_memory(batch, is_adapted=False)
            self._commit(memory, None)

    def add_to_memory(self, embeddings: Tensor, labels: Tensor, batch_size: int) -> None:
        """PML's name for :meth:`fill_memory`."""
        self.fill_memory(embeddings[:batch_size], labels[:batch_size])

    def create_indices_tuple(
        self,
        embeddings: Tensor,
        labels: Tensor,
        E_mem: Tensor,  # noqa: N803
        L_mem: Tensor,  # noqa: N803
        input_indices_tuple: IndicesTuple | None,
        do_remove_self_comparisons: bool,
    ) -> IndicesTuple:
        """PML's method for subclasses: pairs of the batch stored last with the given rows."""
        own_rows = self.curr_batch_idx
        indices = self._indices(
            embeddings, labels, E_mem, L_mem, own_rows if do_remove_self_comparisons else None
        )
        if input_indices_tuple is None:
            return indices
        return joined(indices, input_indices_tuple, labels, own_rows)

    def reset_queue(self) -> None:
        """Empties the memory. Calls stay counted and adapters keep their estimates."""
        device = self.embedding_memory.device if hasattr(self, "embedding_memory") else None
        with torch.inference_mode(False):
            rows = torch.zeros(self.memory_size, self.embedding_size, dtype=self.memory_dtype, device=device)
            labels = torch.zeros(self.memory_size, dtype=torch.int64, device=device)
        self.register_buffer("embedding_memory", rows)
        self.register_buffer("label_memory", labels)
        self.has_been_filled = False
        self.queue_idx = 0
        self._row_buffers.drop()
        self._hooks.forget()
        self._rows_known_to_adapters = self._identity_of_rows()

    # -- one step: validate, adapt, compute the loss, commit ------------------------------------------------

    def _validated(
        self,
        embeddings: Tensor,
        labels: Tensor,
        given: IndicesTuple | None,
        mask: Tensor | None,
        *,
        is_read_only: bool,
    ) -> tuple[Batch, list[Report] | None, bool]:
        """The batch, what all ranks report of theirs if there are many, and whether it may be stored.

        Nothing has changed if this raises; on many ranks it raises on all of them.
        """
        if is_read_only:
            return self._split(embeddings, labels, given, mask), None, False
        if self._hooks.are_running:
            raise RuntimeError(
                "the memory was called from one of its own hooks: return the new rows from the hook, and "
                "store others after the step"
            )
        if not self._shares_rows():
            batch = self._split(embeddings, labels, given, mask)
            check_fits(len(batch.refs), self.memory_size)
            return batch, None, self._has_storable_values(embeddings, batch)
        exchange = ranks.Exchange(torch.zeros(len(Report())))
        with exchange.at_end():
            batch = self._split(embeddings, labels, given, mask)
            exchange.mine = report_of(batch, self._has_storable_values(embeddings, batch))
        reports = reports_of(exchange)
        check_fits(sum(report.num_refs for report in reports), self.memory_size)
        return gathered(batch, reports), reports, all(report.is_storable for report in reports)

    def _split(
        self, embeddings: Tensor, labels: Tensor, given: IndicesTuple | None, mask: Tensor | None
    ) -> Batch:
        return split(embeddings, labels, given, mask, self.embedding_size, self.memory_dtype)

    def _follow(self, device: torch.device) -> None:
        """The memory goes where the batch is, as PML's does."""
        is_there = (self.embedding_memory.device, self.embedding_memory.dtype) == (device, self.memory_dtype)
        if not is_there or self.embedding_memory.is_inference():
            self._renew_rows(device)

    def _renew_rows(self, device: torch.device) -> None:
        """Copies the memory, outside of ``inference_mode``, whose tensors could not be trained with."""
        with torch.inference_mode(False):
            self.embedding_memory = self.embedding_memory.to(device, self.memory_dtype, copy=True)
            self.label_memory = self.label_memory.to(device, copy=True)

    def _has_storable_values(self, embeddings: Tensor, batch: Batch) -> bool:
        """Checks the values, in one wait for the GPU; False if the batch is to be used but not stored."""
        if self.nonfinite == "ignore":
            return True
        refusals = self._hooks.refusals(batch.ref_labels)
        is_finite = torch.isfinite(embeddings).all()
        has_room = torch.isfinite(batch.rows.to(self.memory_dtype)).all()
        flags = [is_finite, has_room, *(flag for flag, _ in refusals)]
        all_finite, all_fit, *refused = torch.stack(flags).tolist()
        for is_refused, (_, message) in zip(refused, refusals, strict=True):
            if is_refused:
                raise ValueError(message())
        if not all_finite and self.nonfinite == "raise":
            bad_rows = (~torch.isfinite(embeddings)).any(dim=1).nonzero().flatten().tolist()
            raise ValueError(
                f"embeddings has NaN or inf in rows {bad_rows}: lower the learning rate or mend the data, "
                "or pass nonfinite='skip' to leave such batches out of the memory"
            )
        if all_finite and not all_fit and self.nonfinite == "raise":
            raise ValueError(
                f"embeddings holds {embeddings.abs().max().item():.3g}, beyond the range of "
                f"{self.memory_dtype}: pass smaller ones, or build the memory with memory_dtype=torch.float64"
            )
        return bool(all_finite and all_fit)

    def _warn_of_eval(self, batch: Batch) -> None:
        """Of a loss that is wanted for training, and that nothing will ever be compared with."""
        is_wanted = torch.is_grad_enabled() and batch.anchors.requires_grad
        if is_wanted and not self.training and self.num_rows == 0 and not self._has_warned_of_eval:
            self._has_warned_of_eval = True
            warnings.warn(
                "the memory is empty and in eval() mode, in which it stores nothing, so that the loss stays "
                "0; to train, call train() on the loss after eval() on a module that holds it",
                stacklevel=3,
            )

    def _memory_of_step(self, batch: Batch) -> Memory | None:
        """What the loss is computed against; None while warming up."""
        if self.num_calls < self.warmup:
            return None
        return self._next_memory(batch, is_adapted=self.num_calls >= self.warmup + self.delay)

    def _next_memory(self, batch: Batch, is_adapted: bool) -> Memory:
        """The stored rows, adapted or as they are, with the batch in the place of the oldest ones."""
        self._follow(batch.rows.device)
        if self._rows_known_to_adapters != self._identity_of_rows():
            self._hooks.forget()
        num_rows, size = self.num_rows, len(batch.rows)
        rows = self._row_buffers.take(like=self.embedding_memory)
        new_rows = batch.rows.to(self.memory_dtype)
        if not (is_adapted and self._adapt_into(rows[:num_rows], new_rows, batch.row_labels)):
            rows[:num_rows] = self.embedding_memory[:num_rows]
        batch_rows = torch.arange(self.queue_idx, self.queue_idx + size, device=rows.device)
        batch_rows %= self.memory_size
        overwritten = batch_rows[self.memory_size - num_rows :]
        self._hooks.replaced(rows[overwritten], new_rows)
        rows[batch_rows] = new_rows
        labels = self.label_memory.clone()
        labels[batch_rows] = batch.row_labels
        return Memory(rows, labels, min(num_rows + size, self.memory_size), batch_rows)

    def _adapt_into(self, out: Tensor, batch: Tensor, batch_labels: Tensor) -> bool:
        """Writes the occupied rows to ``out``, where the current model would put them; False if not."""
        rows, labels = self.embedding_memory[: len(out)], self.label_memory[: len(out)]
        adapter = self._hooks.sole_adapter()
        with torch.no_grad():
            if adapter is not None:
                is_written = adapter.adapt_into(out, rows, labels, batch, batch_labels)
                if not (is_written or self.normalize_memory):
                    return False
                if not is_written:
                    out.copy_(rows)
            else:
                is_free = self.nonfinite == "ignore"
                out.copy_(self._hooks.run(rows, labels, batch, batch_labels, allow_nonfinite=is_free))
            if self.normalize_memory:
                normalize(out, out=out)
                self._hooks.forget()
        return True

    def _loss_of_step(self, memory: Memory | None, batch: Batch) -> Tensor:
        """The loss of the batch against the memory, which holds it, and alone."""
        if memory is None:
            return self._loss_of_batch(batch)
        loss = self._against(memory, batch, loss_against, zero_loss(batch))
        if self.batch_loss_weight:
            loss = loss + self.batch_loss_weight * self._loss_of_batch(batch)
        return loss

    def _against(
        self,
        memory: Memory,
        batch: Batch,
        evaluate: Callable[..., Result],
        of_nothing: Result,
    ) -> Result:
        """What comes of the pairs of the batch with the memory that holds it."""
        rows, labels = memory.embeddings[: memory.num_rows], memory.labels[: memory.num_rows]
        if len(batch.anchors) == 0 or len(rows) == 0:
            return of_nothing
        own_rows = batch.own(memory.batch_rows)
        return evaluate(
            self.loss,
            self.miner,
            batch.anchors,
            batch.anchor_labels,
            TensorRows(rows),
            labels,
            own_rows if batch.is_own else None,
            None if batch.given is None else mapped(batch.given, own_rows),
        )

    def _loss_against_stored(self, batch: Batch) -> Tensor:
        """The loss against the memory as it is."""
        self._follow(batch.rows.device)
        rows, labels = self.embedding_memory[: self.num_rows], self.label_memory[: self.num_rows]
        if len(batch.anchors) == 0 or len(rows) == 0:
            return zero_loss(batch) if batch.given is None else self._loss_of_batch(batch)
        anchors, anchor_labels = batch.anchors, batch.anchor_labels
        if batch.given is None:
            return loss_against(self.loss, self.miner, anchors, anchor_labels, TensorRows(rows), labels)
        # Not stored, so the given pairs find their rows of the batch behind those of the memory.
        batch_rows = torch.arange(len(rows), len(rows) + len(batch.refs), device=rows.device)
        rows = rows.to(anchors.dtype)
        indices = self._indices(anchors, anchor_labels, rows, labels, None)
        indices = joined(indices, batch.given, anchor_labels, batch_rows)
        rows, labels = torch.cat([rows, batch.refs.detach()]), torch.cat([labels, batch.ref_labels])
        loss: Tensor = self.loss(anchors, anchor_labels, indices, rows, labels)
        return loss

    def _loss_of_batch(self, batch: Batch) -> Tensor:
        return loss_of_batch(self.loss, self.miner, batch)

    def _indices(
        self, anchors: Tensor, anchor_labels: Tensor, rows: Tensor, labels: Tensor, own_rows: Tensor | None
    ) -> IndicesTuple:
        distances = Distances(anchors, TensorRows(rows))
        return chosen_pairs(self.miner, distances, anchor_labels, labels, own_rows)

    def _commit(self, memory: Memory, reader: Reader | None) -> None:
        """Makes the memory that the loss was computed with the one that is stored."""
        self._row_buffers.swap(self.embedding_memory, reader)
        self.embedding_memory = memory.embeddings
        self.label_memory = memory.labels
        self.curr_batch_idx = memory.batch_rows
        self.queue_idx = (self.queue_idx + len(memory.batch_rows)) % self.memory_size
        self.has_been_filled = memory.num_rows == self.memory_size
        self._rows_known_to_adapters = self._identity_of_rows()

    def _identity_of_rows(self) -> tuple[int, int]:
        """Differs from that of the last commit once somebody else has replaced or written to the rows."""
        rows = self.embedding_memory
        return id(rows), -1 if rows.is_inference() else rows._version

    # -- many ranks -----------------------------------------------------------------------------------------

    def _shares_rows(self) -> bool:
        return self.gather_distributed and ranks.are_many()

    def _step_of_ranks(self, batch: Batch, reports: list[Report]) -> tuple[Memory | None, Tensor]:
        """The memory, and the loss of the batch of all ranks, with this rank's part of its gradient."""
        is_shared = self.num_calls >= self.warmup and can_be_shared(self.loss, self.miner)
        # A rank computes its own anchors' terms, or where these depend on other anchors, those of all.
        everyone = batch
        if self.batch_loss_weight or not is_shared:
            everyone = of_all_ranks(batch, reports)
        loss = batch.anchors.new_zeros(())
        share = share_of_nothing(self.loss, batch.anchors)
        exchange = ranks.Exchange(share.numbers())
        with exchange.at_end():
            memory = self._memory_of_step(batch)
            if memory is not None and is_shared:
                share = self._against(memory, batch, share_against, of_nothing=share)
                exchange.mine = share.numbers()
            with ranks.same_draws(reports[0].seed, batch.rows.device):
                if not is_shared:
                    loss = self._loss_of_step(memory, everyone)
                elif self.batch_loss_weight:
                    loss = self.batch_loss_weight * self._loss_of_batch(everyone)
        if is_shared:
            loss = loss + share.loss(self.loss, exchange.of_ranks)
        return memory, loss

    # -- checkpoints ----------------------------------------------------------------------------------------

    def _drop_removed_hooks(self) -> None:
        """A module that was registered for a hook goes with it."""
        for number in [number for number in self._names_of_hooks if number not in self._hooks]:
            delattr(self, self._names_of_hooks.pop(number))

    def _save_to_state_dict(self, *args: Any, **kwargs: Any) -> None:
        self._drop_removed_hooks()
        self._row_buffers.lend()  # who asks for the state is to find it unchanged when the run has gone on
        super()._save_to_state_dict(*args, **kwargs)

    def get_extra_state(self) -> dict[str, Any]:
        return {
            "queue_idx": self.queue_idx,
            "has_been_filled": self.has_been_filled,
            "num_calls": self.num_calls,
        }

    def set_extra_state(self, state: dict[str, Any]) -> None:
        self.queue_idx = state["queue_idx"]
        self.has_been_filled = state["has_been_filled"]
        self.num_calls = state["num_calls"]

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *args: Any) -> None:
        self._drop_removed_hooks()
        for name in self._names_of_hooks.values():
            make_buffers(getattr(self, name), state_dict, prefix + name)
        self._renew_rows(self.embedding_memory.device)  # a graph may still need those that were there
        rows = state_dict.get(prefix + "embedding_memory")
        if rows is not None:
            check_same_size(rows, self.embedding_memory)
            if prefix + "_extra_state" not in state_dict:
                state_dict[prefix + "_extra_state"] = inferred_queue(rows)
                self._hooks.forget()
                # What PML's class has no counterpart for starts afresh.
                for key, value in self.state_dict(prefix=prefix).items():
                    if not key.startswith((prefix + "loss.", prefix + "miner.")):
                        state_dict.setdefault(key, value)
        super()._load_from_state_dict(state_dict, prefix, *args)
        self._row_buffers.drop()
        self._rows_known_to_adapters = self._identity_of_rows()

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        self._rows_known_to_adapters = self._identity_of_rows()


def _check_scalar(value: Any, loss: nn.Module) -> None:
    if not (isinstance(value, Tensor) and value.numel() == 1):
        found = f"shape {tuple(value.shape)}" if isinstance(value, Tensor) else f"a {type(value).__name__}"
        raise TypeError(
            f"{type(loss).__name__} returned {found}: give it a reducer that returns a scalar, such as "
            "MeanReducer"
        )
