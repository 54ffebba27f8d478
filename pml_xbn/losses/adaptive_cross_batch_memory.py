"""A cross-batch memory whose rows can be adapted, and whose steps are undone if they fail.

``forward`` checks a call and makes the step of it; README.md in the package's folder explains the step.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from functools import partial
from inspect import signature
from typing import TYPE_CHECKING, Any

import torch
from pytorch_metric_learning.losses import CrossBatchMemory
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from .._arithmetic import without_autocast
from .._tracing import eager, eager_step, is_compiling, is_part_of_graph
from ..adapters.base_adapter import BaseAdapter
from ..distributed._group import Group
from ..distributed._shards import ShardedQueue
from ..memory._hooks import MemoryHook, MemoryHooks
from ..memory._loading import all_or_nothing, check_states_of_adapters, prepare_state
from ..memory._queue import Queue
from ..memory._transaction import transaction
from ..pairwise._miners import Miner
from ..pairwise._pairs import IndicesTuple
from ._compiled_step import register_memory, step_compiled, why_not_compiled
from ._input import OneThread, check_sharded, make_batch, settle_earlier_steps
from ._options import suggest_keywords
from ._settings import check_setting
from ._step import compare, fill, read_contents, step
from ._step_on_ranks import fill_on_ranks, loss_on_ranks
from ._traced_step import step_traced, why_not_now, why_not_traced

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup
    from torch.distributed.device_mesh import DeviceMesh


@suggest_keywords
class AdaptiveCrossBatchMemory(CrossBatchMemory):
    r"""PML's ``CrossBatchMemory`` with hooks that adapt the stored rows before every loss.

    Without hooks it is Cross-Batch Memory (https://arxiv.org/abs/1912.06798). Input is validated before
    anything changes, and nothing changes when a hook, the miner or the loss raises.

    In ``eval()`` mode and where gradients are disabled nothing is stored. The loss is then that of the batch
    against the stored rows. With an ``indices_tuple`` the batch counts as stored, as the pairs are of it.
    While the memory warms up the loss is the batch's own, as in training. With an empty memory it is 0, with
    a warning.

    Args:
        loss: any loss of ``CrossBatchMemory.supported_losses()``, or a subclass of one. The memory has no
            distance and no reducer of its own: it uses those of the loss, which are PML's defaults for it
            unless you pass others.
        embedding_size: number of dimensions d of the embeddings.
        memory_size: number of rows M that the memory holds, 1,024 by default. It has to be at least as large
            as a batch. docs/memory_size.md says how to choose it.
        miner: chooses among the pairs of batch and memory. By default the loss sees all pairs.
        delay: number of calls after ``warmup`` in which rows are stored and compared but not adapted; 0 by
            default (thesis A Study of Cross Batch Memory, §4.3.3). A GPU is waited for until they are over.
        warmup: number of calls that store nothing and return the loss of the batch alone; 0 by default.
            Memories that adapt their rows did without it in our study. A memory that does not adapt them
            needs it: Cross-Batch Memory, §3.3, has 1,000 calls, and then fills the memory.
        batch_loss_weight: w, 0 by default. With another w the loss of the batch alone is added, w times
            (1 in XBM* of the AXBN paper, Table 2).
        normalize_memory: whether stored rows are scaled to unit L2 norm after adaptation; not by default
            (thesis, §4.3.5).
        gather_distributed: whether every rank stores the rows of all ranks, so that the loss is the one that
            one process would have of the whole batch, and its gradient the mean over ranks. Not by default:
            each rank has a memory of its own. See docs/distributed.md.
        shard_distributed: whether the rows of that common memory are spread over the ranks, each of which
            holds a part. Not by default. Some losses and miners cannot be computed so, and are refused.
        process_group: the ranks that share a batch and a memory, as a ``ProcessGroup`` or a mesh of one
            dimension such as ``mesh["dp"]``. By default they are all ranks.
        nonfinite: what happens to a batch with NaN or inf. ``"raise"``, the default, does not store it and
            raises a ValueError: on a CPU in the call itself; on a GPU, which need not wait so, in the next
            call that knows of it, or when the memory is read or saved. ``"raise_at_once"`` raises in the call
            itself everywhere. ``"skip"`` does not store the batch, and returns a loss of NaN with a gradient
            of NaN. ``"ignore"`` does not look, and stores it too: docs/mixed_precision.md says what each does
            to a step.
        memory_dtype: dtype of the stored rows, float32 by default. ``torch.bfloat16`` and ``torch.float16``
            take half of the bytes. Losses are computed in the most precise of this dtype, float32 and the
            batch's.
        update: what happens to the row of a sample that returns, as ``sample_ids`` tells. With ``"queue"``,
            the default, the new row takes its place. With ``"average"`` a weighted mean of both does, at
            unit length (Cross-Batch Memory, supplement §2).
        update_momentum: the weight of the old row in that mean, in [0, 1); 0 by default, and 0.9 in the
            paper's best runs on CUB and Cars.
        collect_stats: whether the hooks' numbers are recorded for PML's logging. By default PML's global
            ``COLLECT_STATS`` decides.

    Raises:
        ValueError: an unsupported loss or reducer, a parameter out of range, or one without effect.
        TypeError: an unknown keyword.

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

    queue: Queue
    _has_warned_of_empty = _has_warned_of_graph = False
    # Called with the arguments of its loss, which it may compute without a call: those of `WatchedLoss`.
    _watchers: tuple[Callable[..., object], ...] = ()

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
        shard_distributed: bool = False,
        process_group: ProcessGroup | DeviceMesh | None = None,
        nonfinite: str = "raise",
        memory_dtype: torch.dtype = torch.float32,
        update: str = "queue",
        update_momentum: float = 0.0,
        collect_stats: bool | None = None,
    ) -> None:
        # Every setting is checked as it is set, here and later. These come first because reset_queue needs
        # them, which runs inside super().__init__.
        self.memory_dtype, self._name = memory_dtype, register_memory(self)
        self._hooks, self._one_thread = MemoryHooks(), OneThread(type(self).__name__)
        if process_group is not None and not (gather_distributed or shard_distributed):
            raise ValueError(
                "process_group has no effect without gather_distributed=True or shard_distributed=True: pass "
                "one of them"
            )
        self._group = Group(process_group)
        self._is_sharded = shard_distributed and self._group.has_others
        super().__init__(loss, embedding_size, memory_size, miner, collect_stats=collect_stats)
        self.delay, self.warmup, self.batch_loss_weight = delay, warmup, batch_loss_weight
        self.normalize_memory, self.nonfinite = normalize_memory, nonfinite
        self.gather_distributed, self.shard_distributed = gather_distributed, shard_distributed
        self.update, self.update_momentum = update, update_momentum
        if shard_distributed:
            check_sharded(self)
        names = ["delay", "warmup", "batch_loss_weight", "num_rows", "num_calls"]
        self.add_to_recordable_attributes(list_of_names=names, is_stat=False)

    def __setattr__(self, name: str, value: Any) -> None:
        """Sets an attribute, and refuses a setting that the constructor would refuse."""
        check_setting(self, name, value)
        super().__setattr__(name, value)

    def extra_repr(self) -> str:
        hidden = ("loss", "miner", "collect_stats")  # or shown as modules
        names = [name for name in signature(AdaptiveCrossBatchMemory).parameters if name not in hidden]
        values = {name: getattr(self, name) for name in names} | {"process_group": self._group}
        return ", ".join(f"{name}={value}" for name, value in values.items())

    @classmethod
    def check_loss_support(cls, loss_name: str) -> None:
        """Passes every name: the loss itself is checked as it is set."""

    def forward(
        self,
        embeddings: Tensor,
        labels: Tensor,
        indices_tuple: IndicesTuple | None = None,
        enqueue_mask: Tensor | None = None,
        ref_labels: None = None,
        *,
        sample_ids: Tensor | None = None,
    ) -> Tensor:
        """Returns the wrapped loss between the batch and the memory, which then holds the batch too.

        Args:
            embeddings: ``(b, d)``, of any floating dtype.
            labels: ``(b,)``, integers.
            indices_tuple: pairs or triplets within the batch, which are added to those with the memory. By
                default there are none.
            enqueue_mask: ``(b,)``, bool. Rows where it is True are stored, and the others are the anchors, as
                MoCo needs it. By default every row is stored and is an anchor.
            ref_labels: None, which PML's ``DistributedLossWrapper`` passes where there is no process group.
            sample_ids: ``(b,)``, integers: the number of every image in the data set, or -1 for a row that is
                always new. A sample has one row in memory, its last, with which its own anchors are not
                compared unless there is an ``enqueue_mask``. By default all rows are new. In ``eval()`` and
                without gradients they are not looked at.

        Returns:
            The loss, 0-d, in the dtype of the embeddings or float32. With PML's ``DoNothingReducer`` a
            dictionary of terms, as that reducer returns it.

        Raises:
            ValueError: input that does not fit, or that holds NaN or inf; nothing has changed. On a GPU NaN
                or inf is not stored either, and a later call raises, unless ``nonfinite="raise_at_once"``.
            RuntimeError: a call in a replica of ``DataParallel``, in the backward pass of a checkpointed
                function, in a function that ``torch.func`` transforms, in forward-mode differentiation, or
                while another thread is in one; nothing has changed.
        """
        if ref_labels is not None:
            raise ValueError(
                "ref_emb and ref_labels with a memory, which is the reference itself: pass embeddings and "
                "labels alone"
            )
        if not is_part_of_graph():
            return self._call(embeddings, labels, indices_tuple, enqueue_mask, sample_ids)
        is_training = self.training and torch.is_grad_enabled()
        has_more = not (indices_tuple is None and enqueue_mask is None and sample_ids is None)
        not_now = why_not_now(self, embeddings, is_training=is_training)
        why_not = why_not_compiled if is_compiling() else why_not_traced
        reason = not_now or why_not(self, has_more_input=has_more)
        if reason is None:
            return (step_compiled if is_compiling() else step_traced)(self, embeddings, labels)
        message = (
            f"a {type(self).__name__} {reason} cannot be part of a graph: capture or compile the model "
            "alone, and compute the loss outside of the graph"
        )
        if not is_compiling():
            raise RuntimeError(message)
        torch._dynamo.graph_break(msg=message)
        warning = message if not_now is None else None
        return self._call_eagerly(warning, embeddings, labels, indices_tuple, enqueue_mask, sample_ids)

    @eager
    def _call_eagerly(
        self,
        warning: str | None,
        embeddings: Tensor,
        labels: Tensor,
        indices_tuple: IndicesTuple | None,
        enqueue_mask: Tensor | None,
        sample_ids: Tensor | None,
    ) -> Tensor:
        """Does what ``_call`` does, outside of what ``torch.compile`` compiles, and says so once."""
        if warning is not None and not self._has_warned_of_graph:
            self._has_warned_of_graph = True
            warnings.warn(f"{warning}. So torch.compile leaves this call out of the graph", stacklevel=2)
        return self._call(embeddings, labels, indices_tuple, enqueue_mask, sample_ids)

    def _call(
        self,
        embeddings: Tensor,
        labels: Tensor,
        indices_tuple: IndicesTuple | None,
        enqueue_mask: Tensor | None,
        sample_ids: Tensor | None,
    ) -> Tensor:
        """Returns the loss of a call that is not traced."""
        is_training = self.training and torch.is_grad_enabled()
        with self._one_thread, eager_step():
            # Ranks that share rows store them anew together, so that none may be told later than another.
            settle_earlier_steps(self, waits=self._is_sharded)
            if self.collect_stats:
                self.reset_stats()
            batch, reports = make_batch(
                self,
                "forward",
                embeddings,
                labels,
                user_pairs=indices_tuple,
                mask=enqueue_mask,
                ids=sample_ids,
                stores=is_training,
            )
            with without_autocast(embeddings.device.type):  # which would have distances in half precision
                if not (batch.is_stored or reports):
                    return compare(self, batch, read_contents(self, batch))
                with transaction(self.queue, self._hooks):  # which undoes the step if anything in it raises
                    if reports:
                        return loss_on_ranks(self, batch, reports)
                    return step(self, batch)

    def fill_memory(self, embeddings: Tensor, labels: Tensor, sample_ids: Tensor | None = None) -> None:
        """Stores rows without computing a loss or adapting what is there.

        For instance random training images, embedded with the warmed-up model (Cross-Batch Memory, §3.3).

        Args:
            embeddings: ``(n, d)``, at most ``memory_size`` rows.
            labels: ``(n,)``, integers.
            sample_ids: ``(n,)``, integers, as in :meth:`forward`.

        Raises:
            ValueError, RuntimeError: as in :meth:`forward`. On a GPU rows with NaN or inf are left out, and
                the next call of :meth:`forward` raises.
        """
        self._fill(embeddings, labels, sample_ids)

    def _fill(self, embeddings: Tensor, labels: Tensor, sample_ids: Tensor | None = None) -> bool | Tensor:
        """Does what ``fill_memory`` does, and returns whether the rows were stored, on a GPU as a tensor."""
        with self._one_thread:
            batch, reports = make_batch(self, "fill_memory", embeddings, labels, ids=sample_ids, stores=True)
            if batch.is_stored:
                with transaction(self.queue, self._hooks), torch.no_grad():
                    if reports:
                        fill_on_ranks(self, batch)
                    else:
                        fill(self, batch)
            return batch.is_stored if batch.is_accepted is None else batch.is_accepted

    def add_to_memory(self, embeddings: Tensor, labels: Tensor, batch_size: int) -> None:
        """PML's name for :meth:`fill_memory`."""
        self.fill_memory(embeddings[:batch_size], labels[:batch_size])

    def register_memory_hook(self, hook: MemoryHook) -> RemovableHandle:
        """Registers a hook that adapts the stored rows; the handle's ``remove()`` takes it out again.

        It is called as ``hook(memory, memory_labels, batch, batch_labels)`` with the occupied rows
        ``(n, d)``, their labels ``(n,)``, and the detached rows about to be stored, ``(b, d)`` and ``(b,)``;
        n and b may be 0. It returns as many rows in the same order, or None; see docs/adapters.md.

        Raises:
            TypeError: the hook cannot be called.
            ValueError: it is no adapter, and the memory has ``shard_distributed=True``.
        """
        if self.shard_distributed and not isinstance(hook, BaseAdapter):
            raise ValueError(
                f"hook is a {type(hook).__name__}, which needs all rows, and shard_distributed=True spreads "
                "them: register an adapter such as MomentMatching, or pass gather_distributed=True instead"
            )
        return self._hooks.register(hook, self, self.embedding_size)

    @property
    def returning_samples(self) -> tuple[Tensor, Tensor]:
        """Indices in memory and in the batch, ``(r,)`` each, of samples that return; for hooks.

        Raises:
            RuntimeError: no hook is running.
        """
        if not self._hooks.are_running:
            raise RuntimeError(
                "returning_samples is of the batch that hooks see: ask for it in a memory hook"
            )
        none = self.queue.labels.new_zeros(0)
        return self._hooks.returning or (none, none)

    def reset_queue(self) -> None:
        """Empties the memory. Calls stay counted and adapters keep their estimates."""
        before = self.queue if hasattr(self, "queue") else None
        if before is not None and before.is_in_transaction:
            raise RuntimeError("reset_queue within a step: call it when the step is over")
        make_queue = partial(ShardedQueue, group=self._group) if self._is_sharded else Queue
        self.queue = make_queue(self.memory_size, self.embedding_size, self.memory_dtype, before)

    @property
    def process_group(self) -> ProcessGroup | None:
        """The process group of the ranks that share the memory; None for the default group, of all ranks.

        It is no part of the state. It can be set, and has to be where a memory has been unpickled. If rows
        are spread over the ranks, the new group has to have as many ranks, each with its old number.

        Raises:
            ValueError: rows that are spread over the ranks of another group, or a group of other ranks.
        """
        return self._group.process_group

    @process_group.setter
    def process_group(self, process_group: ProcessGroup | DeviceMesh | None) -> None:
        group = Group(process_group)
        if isinstance(self.queue, ShardedQueue):
            self.queue.check_indices(group)
        self._group.assign(process_group)
        self.queue.is_alike = False

    @property
    def embedding_memory(self) -> Tensor:
        """The rows as they are now, ``(memory_size, d)``, zeros behind them; what is written in it counts."""
        settle_earlier_steps(self, waits=True)
        return self.queue.read()

    @embedding_memory.setter
    def embedding_memory(self, rows: Tensor) -> None:
        self.queue.assign(rows)

    @property
    def label_memory(self) -> Tensor:
        """Labels of the rows, ``(memory_size,)`` int64."""
        return self.queue.read_labels()

    @label_memory.setter
    def label_memory(self, labels: Tensor) -> None:
        self.queue.assign_labels(labels)

    @property
    def id_memory(self) -> Tensor:
        """Samples of the rows, ``(memory_size,)`` int64; -1 where a row is of none. A copy."""
        return self.queue.ids.clone()

    @property
    def num_rows(self) -> int:
        """Number of occupied rows."""
        return self.queue.num_rows

    @property
    def num_calls(self) -> int:
        """Number of calls in training that were stored or warmed up."""
        return self.queue.num_calls

    @property
    def has_been_filled(self) -> bool:
        """Whether all rows are occupied. It is read-only: a memory is filled by steps and ``fill_memory``."""
        return bool(self.num_rows == self.memory_size)

    @property
    def queue_idx(self) -> int:
        """Index of the next row."""
        return self.queue.position

    @property
    def curr_batch_idx(self) -> Tensor | None:
        """Indices of the rows stored last, ``(b,)``; None before the first.

        After a batch that a GPU has refused they are those that it would have had.
        """
        return self.queue.newest

    def load_state_dict(self, state_dict: Mapping[str, Any], *args: Any, **kwargs: Any) -> Any:
        """Loads a state as ``torch.nn.Module.load_state_dict`` does; a refused one leaves all as it was."""
        with all_or_nothing(self, (self.queue, self._hooks)):
            return super().load_state_dict(state_dict, *args, **kwargs)

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        self._name = register_memory(self)  # as a copy is another memory

    def _save_to_state_dict(self, *args: Any, **kwargs: Any) -> None:
        settle_earlier_steps(self, waits=True)
        self._hooks.name_modules(self)
        super()._save_to_state_dict(*args, **kwargs)

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *args: Any) -> None:
        self.queue.check_no_step("a state that is loaded")
        self._hooks.name_modules(self)
        prepare_state(state_dict, prefix, self, self.queue)
        check_states_of_adapters(self, state_dict, prefix)
        super()._load_from_state_dict(state_dict, prefix, *args)
