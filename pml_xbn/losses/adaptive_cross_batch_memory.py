"""A cross-batch memory whose rows can be adapted, and which can be trusted."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from pytorch_metric_learning.losses import CrossBatchMemory
from torch import Tensor, nn
from torch.nn.functional import normalize
from torch.utils.hooks import RemovableHandle

from .._number_checks import check_integer, check_non_negative, check_one_of
from ..distributed._collectives import is_distributed
from ..distributed._global_batch import Report, gathered
from ..memory._batch import Batch
from ..memory._checkpoint import check_same_size, check_state, from_pml
from ..memory._hooks import MemoryHook, MemoryHooks, made_buffers
from ..memory._queue import Contents, Queue
from ..memory._rows import Rows
from ..memory._samples import Placement, placement_of, with_samples
from ..memory._storable import are_storable
from ..memory._update import Update
from ._batch import split
from ._cosines import Distances
from ._eager import eager
from ._indices import IndicesTuple, appended, mapped
from ._pairs import Miner, chosen_pairs
from ._read_only import loss_against_stored
from ._shares import check_reducers
from ._step import Step
from ._supported import check_supported
from ._validation import check_num_rows, check_scalar, refused_indices

_DTYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64)


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
        memory_dtype: dtype in which rows are stored: ``torch.float16``, ``bfloat16``, ``float32`` or
            ``float64``. Losses are computed in float32, this dtype or the batch's, whichever is the most
            precise.
        update: what becomes of stored rows ṽ (Cross-Batch Memory, supplement §2). ``"queue"``: the new
            row v of a sample that is stored already, by ``sample_ids``, takes the place of its old one.
            ``"average"``: that place takes m ṽ + (1 − m) v at unit length. ``"gradient"``: as ``"queue"``,
            or with m > 0 as ``"average"``, and after every loss L all rows take a step against its
            gradient, ṽ − α ∂L/∂ṽ, at unit length, which costs a second backward pass of the loss.
        update_momentum: m, in [0, 1); 0.9 in the paper's best runs on CUB and Cars.
        update_learning_rate: α.
        collect_stats: record the hooks' numbers for PML's logging.

    Raises:
        ValueError: an unsupported loss, or a parameter out of range; ``gather_distributed`` with a reducer
            that is not one of PML's; a number of the update that has no effect.

    Example:
        >>> from pytorch_metric_learning.losses import ContrastiveLoss
        >>> loss_fn = AdaptiveCrossBatchMemory(ContrastiveLoss(), embedding_size=2, memory_size=8)
        >>> handle = loss_fn.register_memory_hook(lambda memory, labels, batch, batch_labels: memory + 1)
        >>> for _ in range(2):
        ...     loss = loss_fn(torch.zeros(1, 2), torch.tensor([5]))
        >>> loss_fn.embedding_memory[: loss_fn.num_rows]
        tensor([[1., 1.],
                [0., 0.]])

    Attributes:
        queue: the rows, their labels, and where the next ones go.
    """

    queue: Queue
    _placement: Placement | None = None  # of the step that is under way
    _is_in_transaction = False
    _takes_parts = False  # while a state is loaded that may lack entries or have others

    def __init_subclass__(cls, **kwargs: Any) -> None:
        """Refuses methods of PML's that are not called here, so that nobody overrides them in vain."""
        super().__init_subclass__(**kwargs)
        for name in ("add_to_memory", "create_indices_tuple"):
            if not getattr(cls, name).__module__.startswith((__package__, CrossBatchMemory.__module__)):
                raise TypeError(
                    f"{cls.__name__} overrides {name}, which is not called: pass a miner, or register a "
                    "memory hook"
                )

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
        update: str = "queue",
        update_momentum: float = 0.0,
        update_learning_rate: float = 0.0,
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
        check_one_of("nonfinite", nonfinite, ("raise", "skip", "ignore"))
        check_one_of("memory_dtype", memory_dtype, _DTYPES)
        Update(update, update_momentum, update_learning_rate).check()
        # What reset_queue needs, which runs inside super().__init__.
        self.memory_dtype = memory_dtype
        self._has_warned_of_eval = False
        self._hooks = MemoryHooks()
        self._names_of_hooks: list[str] = []  # those of modules
        super().__init__(
            loss=loss, embedding_size=embedding_size, memory_size=memory_size, miner=miner, **kwargs
        )
        self.delay = delay
        self.warmup = warmup
        self.batch_loss_weight = batch_loss_weight
        self.normalize_memory = normalize_memory
        self.gather_distributed = gather_distributed
        self.nonfinite = nonfinite
        self.update = update
        self.update_momentum = update_momentum
        self.update_learning_rate = update_learning_rate
        self.add_to_recordable_attributes(
            list_of_names=["delay", "warmup", "batch_loss_weight", "num_rows", "num_calls"],
            is_stat=False,
        )

    @classmethod
    def check_loss_support(cls, loss_name: str) -> None:
        """Passes every name: ``check_supported`` has seen the loss itself, subclasses included."""

    @eager
    def forward(
        self,
        embeddings: Tensor,
        labels: Tensor,
        indices_tuple: IndicesTuple | None = None,
        enqueue_mask: Tensor | None = None,
        *,
        sample_ids: Tensor | None = None,
    ) -> Tensor:
        """Returns the wrapped loss between the batch and the memory, which then holds the batch too.

        Args:
            embeddings: ``(b, d)``, any floating dtype.
            labels: ``(b,)``, integers.
            indices_tuple: pairs or triplets within the batch, added to those with the memory.
            enqueue_mask: ``(b,)`` bool; rows where it is True are stored, the others are the anchors
                (as MoCo needs). Default: every row is stored and an anchor.
            sample_ids: ``(b,)``, integers; of every image its number in the data set, say, or -1. The row of
                a sample that is stored already replaces the sample's old row, which is compared with
                nothing; a row with -1 is always a new one. Of many rows of one sample the last is stored,
                and no anchor is compared with its own sample's row, unless there is an ``enqueue_mask``: a
                query is compared with its own key.

        Raises:
            ValueError: input that does not fit, or that holds NaN or inf; nothing has changed.
        """
        self.reset_stats()
        is_read_only = not (self.training and torch.is_grad_enabled())
        batch, reports, is_storable = self._validated(
            embeddings, labels, indices_tuple, enqueue_mask, sample_ids, is_read_only=is_read_only
        )
        if is_read_only:
            self._warn_of_eval(batch)
        stored = self.queue.on(batch.rows.device)
        # Autocast would have distances in half precision.
        with torch.autocast(batch.rows.device.type, enabled=False):
            if is_read_only or not is_storable:
                row_labels = stored.labels[: self.num_rows]
                return loss_against_stored(self.loss, self.miner, batch, stored.rows, row_labels)
            with self._transaction():
                return self._step(batch, reports)

    def fill_memory(self, embeddings: Tensor, labels: Tensor, sample_ids: Tensor | None = None) -> None:
        """Stores rows without computing a loss or adapting what is there.

        For instance those of randomly sampled training images, embedded with the warmed-up model
        (Cross-Batch Memory, §3.3). Call it as often as it takes to fill the memory. With
        ``gather_distributed`` every rank brings rows, and all ranks store all of them.

        Args:
            embeddings: ``(b, d)``, at most ``memory_size`` rows.
            labels: ``(b,)``, integers.
            sample_ids: ``(b,)``, integers, as in :meth:`forward`.

        Raises:
            ValueError: as in :meth:`forward`.
        """
        batch, _, is_storable = self._validated(
            embeddings, labels, None, None, sample_ids, is_read_only=False
        )
        if is_storable:
            with self._transaction():
                self._store(batch, is_adapted=False)

    def add_to_memory(self, embeddings: Tensor, labels: Tensor, batch_size: int) -> None:
        """PML's name for :meth:`fill_memory`."""
        self.fill_memory(embeddings[:batch_size], labels[:batch_size])

    # -- a step ----------------------------------------------------------------------------------------------

    def _step(self, batch: Batch, reports: list[Report] | None) -> Tensor:
        """Adapts the rows, stores the batch and returns the loss.

        Args:
            reports: those of all ranks; None on a single process.
        """
        is_warming_up = self.num_calls < self.warmup
        step = Step(self.loss, self.miner, self.batch_loss_weight, self._update)

        def store() -> Contents | None:
            return None if is_warming_up else self._store(batch, is_adapted=self._adapts())

        if reports is None:
            loss, gradient = step.loss_of(batch, store())
        else:
            loss, gradient = step.loss_of_ranks(batch, reports, store, is_warming_up=is_warming_up)
        check_scalar(loss, self.loss)
        contents = self.queue.contents
        if gradient is not None:
            rows = self._update.descended(contents.rows, gradient, self.nonfinite)
            contents = contents._replace(rows=rows)
        self.queue.contents = contents._replace(num_calls=contents.num_calls + 1)
        return loss

    @property
    def _update(self) -> Update:
        return Update(self.update, self.update_momentum, self.update_learning_rate)

    def _adapts(self) -> bool:
        return self.num_calls >= self.warmup + self.delay

    def _store(self, batch: Batch, *, is_adapted: bool) -> Contents:
        """Stores the batch in the place of the oldest rows or its samples' rows; adapts all rows before."""
        contents, labels = self.queue.contents, batch.row_labels
        rows = batch.rows.to(torch.promote_types(self.memory_dtype, torch.float32))
        placement = None if batch.ids is None else placement_of(contents, batch.ids, labels)
        if is_adapted:
            self._placement = placement
            contents = contents._replace(rows=self._adapted(contents, rows, labels))
        is_whitened = self._adapts() and self._hooks.have_adapters()
        if batch.ids is None or placement is None:
            contents = contents.put(rows, labels, is_whitened=is_whitened)
        else:
            stored = contents.rows.at(placement.stored_at, rows.dtype)
            rows = self._update.averaged(rows, placement.returning, stored)
            contents = with_samples(contents, placement, rows, labels, batch.ids, is_whitened=is_whitened)
        self.queue.contents = contents
        return contents

    @torch.no_grad()
    def _adapted(self, contents: Contents, batch: Tensor, batch_labels: Tensor) -> Rows:
        arguments = contents.rows, contents.labels, batch, batch_labels
        rows = self._hooks.adapted(*arguments, allow_nonfinite=self.nonfinite == "ignore")
        return rows.given(normalize(rows.read(batch.dtype))) if self.normalize_memory else rows

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        """A block after which a step is finished, or undone if the block raises. The outermost one counts."""
        if self._is_in_transaction:
            yield
            return
        before, give_back = self.queue.contents, self._hooks.state()
        self._is_in_transaction = True
        try:
            yield
            self.queue.settle()
        except BaseException:
            self.queue.undo(before)
            give_back()
            raise
        finally:
            self._is_in_transaction = self._hooks.are_running = False

    # -- hooks -----------------------------------------------------------------------------------------------

    def register_memory_hook(self, hook: MemoryHook) -> RemovableHandle:
        """Registers a hook that adapts the stored rows.

        It is called as ``hook(memory, memory_labels, batch, batch_labels)`` with the occupied rows
        ``(n, d)``, their labels ``(n,)``, and the detached rows about to be enqueued, ``(b, d)`` and
        ``(b,)``, of which an ``enqueue_mask`` may leave none. It returns the new rows, in the same number
        and order, or None to leave them; it does not write to what it is given. Hooks run in order of
        registration. A hook that is a module becomes a submodule, so its state is part of the checkpoint,
        and is restored when a step fails.

        Returns:
            A handle whose ``remove()`` takes the hook out again.

        Raises:
            TypeError: the hook cannot be called.
        """
        self._drop_removed_hooks()
        handle = self._hooks.register(hook, self.embedding_size)
        if isinstance(hook, nn.Module) and all(hook is not module for module in self.modules()):
            numbers = [int(name.removeprefix("memory_hook_")) for name in self._names_of_hooks]
            name = f"memory_hook_{max(numbers, default=-1) + 1}"
            self._names_of_hooks.append(name)
            self.add_module(name, hook)
        return handle

    def _drop_removed_hooks(self) -> None:
        """Drops modules that were registered for a hook which has been removed."""
        for name in self._names_of_hooks.copy():
            if getattr(self, name) not in self._hooks:
                delattr(self, name)
                self._names_of_hooks.remove(name)

    @property
    def returning_samples(self) -> tuple[Tensor, Tensor]:
        """Where in memory and where in the batch the samples are that the batch holds again.

        For hooks, while they run: with ``in_memory, in_batch = loss_fn.returning_samples`` the rows
        ``memory[in_memory]`` and ``batch[in_batch]``, ``(r, d)`` each, are the old and the new embeddings of
        the same samples. Of a sample that the batch holds more than once, it is the last one.

        Raises:
            RuntimeError: no hook is running.

        Example:
            >>> from pytorch_metric_learning.losses import ContrastiveLoss
            >>> from pml_xbn.losses import AdaptiveCrossBatchMemory
            >>> loss_fn = AdaptiveCrossBatchMemory(ContrastiveLoss(), embedding_size=2, memory_size=8)
            >>> def follow(memory, memory_labels, batch, batch_labels):
            ...     in_memory, in_batch = loss_fn.returning_samples
            ...     if len(in_memory):
            ...         return memory + (batch[in_batch] - memory[in_memory]).mean(dim=0)
            >>> handle = loss_fn.register_memory_hook(follow)
            >>> labels = torch.arange(2)
            >>> loss = loss_fn(torch.zeros(2, 2), labels, sample_ids=torch.tensor([3, 4]))
            >>> loss = loss_fn(torch.ones(2, 2), labels, sample_ids=torch.tensor([4, 5]))
            >>> loss_fn.embedding_memory[:3], loss_fn.id_memory[:3]
            (tensor([[1., 1.],
                    [1., 1.],
                    [1., 1.]]), tensor([3, 4, 5]))
        """
        if not self._hooks.are_running:
            raise RuntimeError(
                "returning_samples is of the batch that hooks see: ask for it in a memory hook"
            )
        if self._placement is None:
            nowhere = torch.zeros(0, dtype=torch.int64, device=self.label_memory.device)
            return nowhere, nowhere
        return self._placement.stored_at, self._placement.returning

    # -- validation ------------------------------------------------------------------------------------------

    def _validated(
        self,
        embeddings: Tensor,
        labels: Tensor,
        given: IndicesTuple | None,
        mask: Tensor | None,
        ids: Tensor | None,
        *,
        is_read_only: bool,
    ) -> tuple[Batch, list[Report] | None, bool]:
        """The batch, what all ranks report of theirs if there are many, and whether it may be stored.

        Nothing has changed if this raises; on many ranks it raises on all of them.
        """
        size, dtype = self.embedding_size, torch.promote_types(self.memory_dtype, torch.float32)
        split_up = partial(split, embeddings, labels, given, mask, size, dtype, ids)
        if is_read_only:
            return split_up(), None, False
        if self._hooks.are_running:
            raise RuntimeError(
                "the memory was called from one of its own hooks: return the new rows from the hook, and "
                "store others after the step"
            )

        def checked() -> tuple[Batch, bool]:
            self._update.check_ids(ids)
            batch = split_up()
            check_num_rows(len(batch.refs), self.memory_size)
            self.queue.on(batch.rows.device)  # which may be out of memory
            if self.nonfinite == "ignore":
                return batch, True
            refusals, skip = self._hooks.refusals(batch.ref_labels), self.nonfinite == "skip"
            if given is not None:
                refusals.append(refused_indices(given, len(embeddings), embeddings.device))
            return batch, are_storable(embeddings, dtype, refusals, skip=skip)

        if not (self.gather_distributed and is_distributed()):
            batch, is_storable = checked()
            return batch, None, is_storable
        names = ("memory_size", "num_rows", "queue_idx", "num_calls")
        batch, reports = gathered(checked, {name: getattr(self, name) for name in names})
        check_num_rows(len(batch.rows), self.memory_size)
        return batch, reports, all(report.is_storable for report in reports)

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

    # -- PML's names -----------------------------------------------------------------------------------------

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
        assert own_rows is not None, "nothing has been stored"
        excluded = own_rows if do_remove_self_comparisons else None
        rows = Rows.of(E_mem, len(E_mem), E_mem.dtype)
        indices = chosen_pairs(self.miner, Distances(embeddings, rows), labels, L_mem, excluded)
        if input_indices_tuple is None:
            return indices
        return appended(indices, mapped(input_indices_tuple, own_rows), labels)

    def reset_queue(self) -> None:
        """Empties the memory. Calls stay counted and adapters keep their estimates."""
        sizes = self.memory_size, self.embedding_size, self.memory_dtype
        if hasattr(self, "queue"):
            self.queue.reset(*sizes)
        else:
            self.queue = Queue(*sizes)

    def register_buffer(self, name: str, tensor: Tensor | None, persistent: bool = True) -> None:
        """A ``reset_queue`` of PML's kind registers rows and labels, which here are the queue's."""
        if name in ("embedding_memory", "label_memory"):
            if not hasattr(self, "queue"):
                AdaptiveCrossBatchMemory.reset_queue(self)
            setattr(self, name, tensor)
        else:
            super().register_buffer(name, tensor, persistent)

    @property
    def embedding_memory(self) -> Tensor:
        """The rows as they are now, ``(memory_size, d)``, with zeros behind the occupied ones.

        A value that is made when it is asked for. What is assigned to it, or written into it before the next
        call, is stored.
        """
        return self.queue.read()

    @embedding_memory.setter
    def embedding_memory(self, rows: Tensor) -> None:
        self.queue.assign(rows)

    @property
    def label_memory(self) -> Tensor:
        """Labels of the rows, ``(memory_size,)`` int64."""
        return self.queue.contents.labels

    @label_memory.setter
    def label_memory(self, labels: Tensor) -> None:
        contents = self.queue.settled()
        if labels.shape != contents.labels.shape:
            raise ValueError(
                f"label_memory of shape {tuple(labels.shape)}: assign {tuple(contents.labels.shape)}"
            )
        self.queue.contents = contents._replace(labels=labels.to(contents.labels))

    @property
    def id_memory(self) -> Tensor:
        """Samples of the rows, ``(memory_size,)`` int64; -1 where a row is of none. A copy."""
        contents = self.queue.contents
        return torch.full_like(contents.labels, -1) if contents.ids is None else contents.ids.clone()

    @property
    def num_rows(self) -> int:
        """Number of occupied rows."""
        return len(self.queue.contents.rows)

    @property
    def num_calls(self) -> int:
        """Number of calls that counted: those in training that were stored or warmed up."""
        return self.queue.contents.num_calls

    @property
    def has_been_filled(self) -> bool:
        """Whether all rows are occupied."""
        return bool(self.num_rows == self.memory_size)

    @has_been_filled.setter
    def has_been_filled(self, is_full: bool) -> None:
        self.queue.resume_at(self.queue_idx, self.memory_size if is_full else self.queue_idx)

    @property
    def queue_idx(self) -> int:
        """Place of the next row."""
        return int(self.queue.contents.position)

    @queue_idx.setter
    def queue_idx(self, position: int) -> None:
        self.queue.resume_at(position, self.num_rows if self.has_been_filled else position)

    @property
    def curr_batch_idx(self) -> Tensor | None:
        """Places of the rows stored last, ``(b,)``; None before the first."""
        return self.queue.contents.newest

    # -- state -----------------------------------------------------------------------------------------------

    def load_state_dict(self, state_dict: Any, strict: bool = True, **kwargs: Any) -> Any:
        self._takes_parts = not strict
        try:
            return super().load_state_dict(state_dict, strict, **kwargs)
        finally:
            self._takes_parts = False

    def _save_to_state_dict(self, *args: Any, **kwargs: Any) -> None:
        self._drop_removed_hooks()
        super()._save_to_state_dict(*args, **kwargs)

    def _load_from_state_dict(
        self, state_dict: dict[str, Any], prefix: str, metadata: Any, strict: bool, *args: Any
    ) -> None:
        self._drop_removed_hooks()
        from_pml(state_dict, prefix, self, self.queue)
        stored = state_dict.get(prefix + "queue.rows")
        if stored is not None:
            check_same_size(stored, self.queue.contents.rows.stored)
        hooks = [(prefix + name, getattr(self, name)) for name in self._names_of_hooks]
        with made_buffers(hooks, state_dict):
            # Torch says strict to every module, whatever it has been told. Of a state without any entry of
            # the memory's, such as a backbone's weights, it says itself what is missing.
            is_strict = not self._takes_parts and any(key.startswith(prefix) for key in state_dict)
            own = self.state_dict(prefix=prefix, keep_vars=True)
            check_state(state_dict, prefix, own, strict=is_strict)
            super()._load_from_state_dict(state_dict, prefix, metadata, strict, *args)
