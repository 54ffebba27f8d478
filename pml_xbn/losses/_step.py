"""The loss of one step: of a batch against the memory that holds it, and alone."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from torch import Tensor

from ..distributed._collectives import broadcast, same_draws
from ..distributed._exchange import Exchange
from ..distributed._global_batch import Report, batch_of_all_ranks
from ..memory._batch import Batch, zero_loss
from ..memory._queue import Contents
from ..memory._update import Update
from ._early_gradient import EarlyGradient
from ._indices import drop_own_rows, mapped
from ._seam import Comparison, can_be_shared, loss_against, loss_and_row_gradient, share_against
from ._shares import share_of_nothing
from ._validation import check_scalar
from .batch_loss import loss_of_batch


class Step(NamedTuple):
    """What the loss of a step depends on, besides batch and memory.

    Attributes:
        loss, miner: the wrapped ones.
        batch_loss_weight: see ``AdaptiveCrossBatchMemory``.
        update: what becomes of stored rows.
    """

    loss: Any
    miner: Any
    batch_loss_weight: float
    update: Update

    def loss_of(self, batch: Batch, contents: Contents | None) -> tuple[Tensor, Tensor | None]:
        """Returns the loss of the batch against the memory, which holds it, and alone.

        With the gradient with respect to the rows, if these are to take a step.

        Args:
            contents: None while the memory warms up.
        """
        gradient = None
        if contents is None:
            return self._loss_alone(batch), gradient
        compared = self._compared(batch, contents)
        if compared is None:
            loss = zero_loss(batch)
        elif self.update.is_by_gradient:
            loss, gradient = loss_and_row_gradient(compared)
        else:
            loss = loss_against(compared)
        if self.batch_loss_weight:
            alone = self._loss_alone(batch)
            for value in (loss, alone):
                check_scalar(value, self.loss)
            loss = loss + self.batch_loss_weight * alone
        return loss, gradient

    def loss_of_ranks(
        self,
        batch: Batch,
        reports: list[Report],
        store: Callable[[], Contents | None],
        *,
        is_warming_up: bool,
    ) -> tuple[Tensor, Tensor | None]:
        """Returns the loss of the batch of all ranks, with this rank's part of its gradient.

        And its gradient with respect to the rows, if these are to take a step.

        Args:
            store: adapts the memory and stores the batch; what it raises is raised on all ranks.
        """
        is_shared = (
            not is_warming_up and not self.update.is_by_gradient and can_be_shared(self.loss, self.miner)
        )
        # A rank computes its own anchors' terms, or where these depend on other anchors, those of all.
        whole = batch_of_all_ranks(batch, reports) if self.batch_loss_weight or not is_shared else batch
        loss, gradient = batch.anchors.new_zeros(()), None
        share = share_of_nothing(self.loss, batch.anchors)
        exchange, early = Exchange(len(share.numbers())), None
        with exchange.at_end():
            contents = store()
            if contents is not None and is_shared:
                compared = self._compared(batch, contents)
                if compared is not None:
                    early = EarlyGradient(batch.anchors, self.loss)
                    share = share_against(compared._replace(anchors=early.leaf))
                exchange.numbers = share.numbers()
            with same_draws(reports[0].seed, batch.rows.device):
                if not is_shared:
                    loss, gradient = self.loss_of(whole, contents)
                    check_scalar(loss, self.loss)
                elif self.batch_loss_weight:
                    loss = self.batch_loss_weight * self._loss_alone(whole)
        if is_shared:
            against = share.loss_of_ranks(self.loss, exchange.of_ranks)
            loss = loss + (against if early is None else early.attached_to(against))
        # Every rank has computed it, in sums that a GPU may have rounded otherwise than the next one.
        return loss, None if gradient is None else broadcast(gradient)

    def _loss_alone(self, batch: Batch) -> Tensor:
        return loss_of_batch(self.loss, self.miner, batch)

    def _compared(self, batch: Batch, contents: Contents) -> Comparison | None:
        """Returns the batch against the memory that holds it; None if there are no pairs."""
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
