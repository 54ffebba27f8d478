"""A cross-batch memory whose rows can be adapted, and which can be trusted."""

from __future__ import annotations

import warnings
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from .._number_checks import check_integer, check_non_negative, check_one_of
from . import _ranks as ranks
from ._batch import Batch, split
from ._eager import eager
from ._global_batch import Report, shared
from ._indices import IndicesTuple
from ._pairs import Miner
from ._read_only import loss_against_stored
from ._shares import check_reducers
from ._stepping_memory import SteppingMemory
from ._storable import are_storable
from ._supported import check_supported
from ._update import Update
from ._validation import check_num_rows, check_scalar, refused_indices

_DTYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64)


class AdaptiveCrossBatchMemory(SteppingMemory):
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
    """

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
        """Passes every name: :func:`check_supported` has seen the loss itself, subclasses included."""

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
        """The wrapped loss between the batch and the memory, which then holds the batch too.

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

        Returns:
            The loss, a scalar.

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
                rows, row_labels = stored.rows.as_they_were(), stored.labels[: self.num_rows]
                return loss_against_stored(self.loss, self.miner, batch, rows, row_labels)
            with self._undone_on_error():
                contents, loss = self._step(batch, reports)
                check_scalar(loss, self.loss)
                self.queue.contents = contents._replace(num_calls=contents.num_calls + 1)
        return loss

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
            self.queue.on(batch.rows.device)
            with self._undone_on_error():
                self.queue.contents = self._next_contents(batch, is_adapted=False)

    def add_to_memory(self, embeddings: Tensor, labels: Tensor, batch_size: int) -> None:
        """PML's name for :meth:`fill_memory`."""
        self.fill_memory(embeddings[:batch_size], labels[:batch_size])

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
        size, dtype = self.embedding_size, self._dtype_of_rows()
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
            if self.nonfinite == "ignore":
                return batch, True
            refusals, skip = self._hooks.refusals(batch.ref_labels), self.nonfinite == "skip"
            if given is not None:
                refusals.append(refused_indices(given, len(embeddings), embeddings.device))
            return batch, are_storable(embeddings, dtype, refusals, skip=skip)

        if not (self.gather_distributed and ranks.are_many()):
            batch, is_storable = checked()
            return batch, None, is_storable
        batch, reports = shared(checked)
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
