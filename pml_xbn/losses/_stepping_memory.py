"""A memory that takes steps."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import normalize

from ..adapters._rows import Rows
from . import _ranks as ranks
from ._batch import Batch, zero_loss
from ._global_batch import Report, of_all_ranks
from ._hooked_memory import HookedMemory
from ._indices import drop_own_rows, mapped
from ._queue import Contents
from ._samples import Placement, placement_of, with_samples
from ._seam import Comparison, can_be_shared, loss_against, loss_and_row_gradient, share_against
from ._shares import share_of_nothing
from ._update import Update
from ._validation import check_scalar
from .batch_loss import loss_of_batch


class SteppingMemory(HookedMemory):
    """Adapts the rows, stores a batch whose input is known to fit, and computes the loss.

    The attributes are parameters of :class:`AdaptiveCrossBatchMemory`.
    """

    update: str
    update_momentum: float
    update_learning_rate: float
    delay: int
    warmup: int
    batch_loss_weight: float
    normalize_memory: bool
    nonfinite: str
    _placement: Placement | None = None  # of the step that is under way

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

    @property
    def _update(self) -> Update:
        return Update(self.update, self.update_momentum, self.update_learning_rate)

    def _dtype_of_rows(self) -> torch.dtype:
        """That in which rows are read."""
        return torch.promote_types(self.memory_dtype, torch.float32)

    def _step(self, batch: Batch, reports: list[Report] | None) -> tuple[Contents, Tensor]:
        """The memory after a step, and the loss; reports are those of all ranks, None on a single process."""
        if reports is None:
            contents = self._contents_of_step(batch)
            loss, gradient = self._loss_of_step(contents, batch)
        else:
            contents, loss, gradient = self._step_of_ranks(batch, reports)
        if contents is None:
            return self.queue.contents, loss
        if gradient is not None:
            rows = self._update.descended(contents.rows, gradient, self.nonfinite)
            contents = contents._replace(rows=rows)
        return contents, loss

    def _contents_of_step(self, batch: Batch) -> Contents | None:
        """What the loss is computed against; None while warming up."""
        return None if self.num_calls < self.warmup else self._next_contents(batch, self._adapts())

    def _adapts(self) -> bool:
        return self.num_calls >= self.warmup + self.delay

    def _next_contents(self, batch: Batch, is_adapted: bool) -> Contents:
        """The stored rows, adapted or as they are, with the batch in the place of the oldest ones.

        Where its samples are stored, it is in the place of theirs.
        """
        contents, rows, labels = self.queue.contents, batch.rows.to(self._dtype_of_rows()), batch.row_labels
        placement = None if batch.ids is None else placement_of(contents, batch.ids, labels)
        if is_adapted:
            self._placement = placement
            contents = contents._replace(rows=self._adapted(contents, rows, labels))
        is_whitened = self._adapts() and self._hooks.have_adapters()
        if batch.ids is None or placement is None:
            return contents.put(rows, labels, is_whitened=is_whitened)
        stored = contents.rows.at(placement.stored_at, rows.dtype)
        rows = self._update.averaged(rows, placement.returning, stored)
        return with_samples(contents, placement, rows, labels, batch.ids, is_whitened=is_whitened)

    @torch.no_grad()
    def _adapted(self, contents: Contents, batch: Tensor, batch_labels: Tensor) -> Rows:
        arguments = contents.rows, contents.labels, batch, batch_labels
        rows = self._hooks.adapted(*arguments, allow_nonfinite=self.nonfinite == "ignore")
        return rows.given(normalize(rows.read(batch.dtype))) if self.normalize_memory else rows

    def _loss_of_step(self, contents: Contents | None, batch: Batch) -> tuple[Tensor, Tensor | None]:
        """The loss of the batch against the memory, which holds it, and alone.

        With the gradient with respect to the rows, if these are to take a step.
        """
        gradient = None
        if contents is None:
            return loss_of_batch(self.loss, self.miner, batch), gradient
        compared = self._compared(contents, batch)
        if compared is None:
            loss = zero_loss(batch)
        elif self._update.is_by_gradient:
            loss, gradient = loss_and_row_gradient(compared)
        else:
            loss = loss_against(compared)
        if self.batch_loss_weight:
            alone = loss_of_batch(self.loss, self.miner, batch)
            for value in (loss, alone):
                check_scalar(value, self.loss)
            loss = loss + self.batch_loss_weight * alone
        return loss, gradient

    def _compared(self, contents: Contents, batch: Batch) -> Comparison | None:
        """The batch against the memory that holds it; None if there are no pairs."""
        rows = contents.rows
        if len(batch.anchors) == 0 or len(rows) == 0 or contents.newest is None:
            return None
        own_rows = batch.own(contents.newest)
        given = None if batch.given is None else mapped(batch.given, own_rows)
        if given is not None and batch.ids is not None:  # rows of one sample share a place
            given = drop_own_rows(given, own_rows)
        anchors = batch.anchors, batch.anchor_labels
        own = own_rows if batch.is_own else None
        return Comparison(self.loss, self.miner, *anchors, rows, contents.labels[: len(rows)], own, given)

    def _step_of_ranks(
        self, batch: Batch, reports: list[Report]
    ) -> tuple[Contents | None, Tensor, Tensor | None]:
        """The memory, and the loss of the batch of all ranks, with this rank's part of its gradient.

        And its gradient with respect to the rows, if these are to take a step.
        """
        is_shared = (
            self.num_calls >= self.warmup
            and not self._update.is_by_gradient
            and can_be_shared(self.loss, self.miner)
        )
        # A rank computes its own anchors' terms, or where these depend on other anchors, those of all.
        everyone = batch
        if self.batch_loss_weight or not is_shared:
            everyone = of_all_ranks(batch, reports)
        loss, gradient = batch.anchors.new_zeros(()), None
        share = share_of_nothing(self.loss, batch.anchors)
        exchange = ranks.Exchange(share.numbers())
        with exchange.at_end():
            contents = self._contents_of_step(batch)
            if contents is not None and is_shared:
                compared = self._compared(contents, batch)
                share = share if compared is None else share_against(compared)
                exchange.mine = share.numbers()
            with ranks.same_draws(reports[0].seed, batch.rows.device):
                if not is_shared:
                    loss, gradient = self._loss_of_step(contents, everyone)
                elif self.batch_loss_weight:
                    loss = self.batch_loss_weight * loss_of_batch(self.loss, self.miner, everyone)
        if is_shared:
            loss = loss + share.loss_of_ranks(self.loss, exchange.of_ranks)
        # Every rank has computed it, in sums that a GPU may have rounded otherwise than the next one.
        return contents, loss, None if gradient is None else ranks.of_first_rank(gradient)
