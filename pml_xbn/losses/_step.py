"""One call of a memory: input is checked, rows are adapted and stored, and the loss is computed."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import normalize

from .._number_checks import check_integer, check_non_negative, check_one_of
from ..distributed._collectives import is_distributed, same_draws
from ..distributed._exchange import Exchange
from ..distributed._global_batch import Report, batch_of_all_ranks, gathered
from ..distributed._sharded_loss import part_of_loss
from ..distributed._sharded_rows import ShardedRows
from ..memory._batch import Batch, zero_loss
from ..memory._hooks import MemoryHooks
from ..memory._queue import Contents, Queue
from ..memory._samples import Update, placement_of, with_samples
from ..pairwise import (
    Comparison,
    IndicesTuple,
    Share,
    drop_own_rows,
    loss_against,
    mapped,
    recipe_to_share,
    share_against,
)
from ._input import are_storable, check_num_rows, refused_indices, split
from ._read_only import loss_against_stored
from ._sharding import check_sharded
from .batch_loss import loss_of_batch


class Step(NamedTuple):
    """What a call depends on, besides its input.

    Attributes:
        loss, miner: the wrapped ones.
        queue, hooks: those of the memory.
        update: what becomes of stored rows.
        warmup, delay, batch_loss_weight, normalize_memory, gather_distributed, shard_distributed, nonfinite:
            see ``AdaptiveCrossBatchMemory``.
    """

    loss: Any
    miner: Any
    queue: Queue
    hooks: MemoryHooks
    update: Update
    warmup: int
    delay: int
    batch_loss_weight: float
    normalize_memory: bool
    gather_distributed: bool
    shard_distributed: bool
    nonfinite: str

    def check(self) -> None:
        """Raises a ValueError if an option is out of range."""
        self.update.check()
        check_integer("warmup", self.warmup, at_least=0)
        check_integer("delay", self.delay, at_least=0)
        check_non_negative("batch_loss_weight", self.batch_loss_weight)
        check_one_of("nonfinite", self.nonfinite, ("raise", "skip", "ignore"))
        if self.shard_distributed:
            check_sharded(
                self.loss,
                self.miner,
                gather_distributed=self.gather_distributed,
                normalize_memory=self.normalize_memory,
                update=self.update.kind,
            )

    @property
    def is_sharded(self) -> bool:
        """Whether other ranks hold some of the rows."""
        return isinstance(self.queue.contents.rows, ShardedRows)

    def split(
        self,
        embeddings: Tensor,
        labels: Tensor,
        given: IndicesTuple | None,
        mask: Tensor | None,
        ids: Tensor | None,
    ) -> Batch:
        """Returns the batch; its embeddings take the rows' dtype if that is more precise."""
        rows = self.queue.contents.rows
        return split(embeddings, labels, given, mask, rows.stored.shape[1], rows.dtype, ids)

    def validated(
        self,
        embeddings: Tensor,
        labels: Tensor,
        given: IndicesTuple | None = None,
        mask: Tensor | None = None,
        ids: Tensor | None = None,
        *,
        is_read_only: bool = False,
    ) -> tuple[Batch, list[Report] | None, bool]:
        """Returns the batch, the reports of all ranks if there are many, and whether it may be stored.

        Nothing has changed if this raises; on many ranks it raises on all of them.

        Args:
            is_read_only: the batch may not be stored, and its values are not checked.
        """
        if is_read_only and not self.is_sharded:
            return self.split(embeddings, labels, given, mask, ids), None, False
        if self.hooks.are_running:
            raise RuntimeError(
                "the memory was called from one of its own hooks: return the new rows from the hook, and "
                "store others after the step"
            )
        contents = self.queue.contents
        memory_size = contents.rows.num_places

        def checked() -> tuple[Batch, bool]:
            if given is not None and self.is_sharded:
                raise ValueError(
                    "indices_tuple with shard_distributed=True: pass a miner, or use gather_distributed"
                )
            if is_read_only:
                return self.split(embeddings, labels, given, mask, ids), False
            self.update.check_ids(ids)
            batch = self.split(embeddings, labels, given, mask, ids)
            check_num_rows(len(batch.refs), memory_size)
            is_storable, is_due = True, False
            if self.nonfinite != "ignore":
                rows, device = self.queue.settled().rows, embeddings.device
                refusals, skip = self.hooks.refusals(batch.ref_labels), self.nonfinite == "skip"
                if given is not None:
                    refusals.append(refused_indices(given, len(embeddings), device))
                is_out = rows.is_out_of_range() if rows.stored.device == device else None
                is_storable, is_due = are_storable(embeddings, rows.dtype, refusals, is_out, skip=skip)
            self.queue.on(batch.rows.device)  # which may be out of memory
            if is_due:
                self.queue.store_anew_after_step()
            return batch, is_storable

        if not (self.is_sharded or (self.gather_distributed and is_distributed())):
            batch, is_storable = checked()
            return batch, None, is_storable
        state = {
            "memory_size": memory_size,
            "num_rows": len(contents.rows),
            "queue_idx": contents.position,
            "num_calls": contents.num_calls,
            "training": not is_read_only,
        }
        batch, reports = gathered(checked, state)
        check_num_rows(len(batch.rows), memory_size)
        return batch, reports, all(report.is_storable for report in reports)

    def run(self, batch: Batch, reports: list[Report] | None) -> Tensor:
        """Adapts the rows, stores the batch and returns the loss.

        Args:
            reports: those of all ranks; None on a single process.
        """
        if reports is None:
            loss = self._loss(batch, self._stored(batch))
        elif self.is_sharded:
            loss = self._loss_on_shards(batch, reports)
        else:
            loss = self._loss_on_ranks(batch, reports)
        _check_scalar(loss, self.loss)
        contents = self.queue.contents
        self.queue.contents = contents._replace(num_calls=contents.num_calls + 1)
        return loss

    # -- rows ------------------------------------------------------------------------------------------------

    def fill(self, batch: Batch, reports: list[Report] | None) -> None:
        """Stores the batch, and adapts nothing."""
        exchange = Exchange(has_reductions=self.is_sharded)
        with nullcontext() if reports is None else exchange.at_end():
            self.store(batch, is_adapted=False)

    def store(self, batch: Batch, *, is_adapted: bool) -> Contents:
        """Stores the batch in the place of the oldest rows or its samples' rows; adapts all rows before."""
        contents, labels = self.queue.contents, batch.row_labels
        rows = batch.rows.to(contents.rows.dtype)
        placement = None if batch.ids is None else placement_of(contents, batch.ids, labels)
        if is_adapted:
            self.hooks.placement = placement
            contents = self._adapted(contents, rows, labels)
        is_whitened = self._adapts and self.hooks.have_adapters()
        if batch.ids is None or placement is None:
            contents = contents.put(rows, labels, is_whitened=is_whitened)
        else:
            if self.update.kind != "queue":
                stored = contents.rows.at(placement.stored_at, rows.dtype)
                rows = self.update.averaged(rows, placement.returning, stored)
            contents = with_samples(contents, placement, rows, labels, batch.ids, is_whitened=is_whitened)
        self.queue.contents = contents
        return contents

    @torch.no_grad()
    def _adapted(self, contents: Contents, batch: Tensor, batch_labels: Tensor) -> Contents:
        arguments = contents.rows, contents.row_labels, batch, batch_labels
        rows = self.hooks.adapted(*arguments, allow_nonfinite=self.nonfinite == "ignore")
        if self.normalize_memory:
            rows = rows.given(normalize(rows.read(batch.dtype)))
        return contents._replace(rows=rows)

    @property
    def _adapts(self) -> bool:
        return self.queue.contents.num_calls >= self.warmup + self.delay

    def _stored(self, batch: Batch) -> Contents | None:
        """Returns the memory that holds the batch, or None while it warms up."""
        is_warming_up = self.queue.contents.num_calls < self.warmup
        return None if is_warming_up else self.store(batch, is_adapted=self._adapts)

    # -- loss ------------------------------------------------------------------------------------------------

    def _loss(self, batch: Batch, contents: Contents | None) -> Tensor:
        """Returns the loss of the batch against the memory, which holds it, and alone.

        Args:
            contents: None while the memory warms up.
        """
        if contents is None:
            return self._loss_alone(batch)
        compared = self._compared(batch, contents)
        loss = zero_loss(batch) if compared is None else loss_against(compared)
        if self.batch_loss_weight:
            alone = self._loss_alone(batch)
            for value in (loss, alone):
                _check_scalar(value, self.loss)
            loss = loss + self.batch_loss_weight * alone
        return loss

    def _loss_on_shards(self, batch: Batch, reports: list[Report]) -> Tensor:
        """Returns the loss of the batch of all ranks against rows that are spread over them."""
        whole, loss, part = batch_of_all_ranks(batch, reports), batch.anchors.new_zeros(()), None
        with Exchange(has_reductions=True).at_end():
            contents = self._stored(batch)
            if contents is None:
                loss = self._loss_alone(whole)
            else:
                part = part_of_loss(self.loss, self.miner, whole, contents)
                if self.batch_loss_weight:
                    loss = self.batch_loss_weight * self._loss_alone(whole)
        return loss if part is None else loss + part.of_all_ranks(batch, reports)

    def read_only(self, batch: Batch, reports: list[Report] | None) -> Tensor:
        """Returns the loss of a batch that is not stored."""
        contents = self.queue.contents
        if reports is not None and self.is_sharded:
            whole, contents = batch_of_all_ranks(batch, reports), contents._replace(newest=None)
            with Exchange(has_reductions=True).at_end():
                part = part_of_loss(self.loss, self.miner, whole, contents)
            return part.of_all_ranks(batch, reports)
        return loss_against_stored(self.loss, self.miner, batch, contents.rows, contents.row_labels)

    def _loss_on_ranks(self, batch: Batch, reports: list[Report]) -> Tensor:
        """Returns the loss of the batch of all ranks, with this rank's part of its gradient."""
        is_warming_up = self.queue.contents.num_calls < self.warmup
        recipe = None if is_warming_up else recipe_to_share(self.loss, self.miner)
        # A rank computes its own anchors' terms, or where these depend on other anchors, those of all.
        whole = batch_of_all_ranks(batch, reports) if self.batch_loss_weight or recipe is None else batch
        loss = batch.anchors.new_zeros(())
        share = None if recipe is None else Share(self.loss, recipe, batch.anchors)
        exchange = Exchange(0 if share is None else len(share.numbers()))
        with exchange.at_end():
            contents = self._stored(batch)
            compared = None if contents is None else self._compared(batch, contents)
            if recipe is not None and compared is not None:
                share = share_against(compared, recipe)
                exchange.numbers = share.numbers()
            with same_draws(reports[0].seed, batch.rows.device):
                if recipe is None:
                    loss = self._loss(whole, contents)
                    _check_scalar(loss, self.loss)
                elif self.batch_loss_weight:
                    loss = self.batch_loss_weight * self._loss_alone(whole)
        if share is not None:
            loss = loss + share.value(exchange.of_ranks)
        return loss

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
        return Comparison(self.loss, self.miner, *anchors, rows, contents.row_labels, own, given)


def _check_scalar(value: Any, loss: Any) -> None:
    if not (isinstance(value, Tensor) and value.numel() == 1):
        found = f"shape {tuple(value.shape)}" if isinstance(value, Tensor) else f"a {type(value).__name__}"
        raise TypeError(
            f"{type(loss).__name__} returned {found}: give it a reducer that returns a scalar, such as "
            "MeanReducer"
        )
