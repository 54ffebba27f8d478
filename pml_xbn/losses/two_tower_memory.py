"""Memories for models with two towers."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack, nullcontext
from typing import Any

import torch
from pytorch_metric_learning.reducers import DoNothingReducer
from torch import Tensor, nn

from .._checks import check_integers, check_not_meta, check_rows
from .._tracing import eager
from ..distributed._ranks import Exchange
from ..memory._loading import all_or_nothing
from ..memory._transaction import transaction
from ._options import suggest_keywords
from .adaptive_cross_batch_memory import AdaptiveCrossBatchMemory


@suggest_keywords
class TwoTowerMemory(nn.Module):
    """A memory per tower, for models that embed queries and documents, or images and texts, apart.

    The queries of a batch are compared with the memory of documents, which holds those of the batch, and the
    documents with the memory of queries. Each memory is adapted to the batch of its own tower. The loss is
    the mean of both directions, as in CLIP (https://arxiv.org/abs/2103.00020, Fig. 3), or, without a
    ``query_memory``, one-sided: that of the queries alone.

    Pairs of equal labels are positive. A memory's ``batch_loss_weight`` adds the loss between the queries and
    the documents of the batch, the only one that trains documents where the other is one-sided.

    Where ranks share the batch, they are those of the memories' ``process_group``.

    Args:
        document_memory: stores documents, and has the loss and the miner that queries meet them with.
        query_memory: stores queries; None: the loss is one-sided.

    Raises:
        TypeError: a memory is not an :class:`AdaptiveCrossBatchMemory`.
        ValueError: one memory for both, or two that differ in size, or in how ranks share them, or whose
            losses have a reducer that returns no number; a one-sided loss returns what the reducer does.

    Example:
        >>> from pytorch_metric_learning.losses import SupConLoss
        >>> from pml_xbn import XBNWrapper
        >>> memories = [XBNWrapper(SupConLoss(), embedding_size=16, memory_size=64) for _ in range(2)]
        >>> loss_fn = TwoTowerMemory(document_memory=memories[0], query_memory=memories[1])
        >>> images, texts = torch.randn(2, 8, 16, requires_grad=True)
        >>> loss_fn(images, texts, torch.arange(8)).backward()
        >>> loss_fn.query_memory.num_rows, loss_fn.document_memory.num_rows
        (8, 8)
    """

    def __init__(
        self,
        *,
        document_memory: AdaptiveCrossBatchMemory,
        query_memory: AdaptiveCrossBatchMemory | None = None,
    ) -> None:
        super().__init__()
        self.document_memory, self.query_memory = document_memory, query_memory
        other = document_memory if query_memory is None else query_memory
        for name, memory in (("document_memory", document_memory), ("query_memory", other)):
            if not isinstance(memory, AdaptiveCrossBatchMemory):
                raise TypeError(f"{name} is a {type(memory).__name__}: pass a memory such as XBNWrapper")
        if query_memory is document_memory:
            raise ValueError("query_memory is the document_memory: build one for each tower")
        if query_memory is not None:
            for memory in (document_memory, query_memory):
                if isinstance(memory.loss.reducer, DoNothingReducer):
                    raise _no_mean(document_memory, query_memory)
        for name in ("embedding_size", "gather_distributed", "shard_distributed", "process_group"):
            values = getattr(document_memory, name), getattr(other, name)
            if values[0] != values[1]:
                raise ValueError(
                    f"document_memory has {name}={values[0]} and query_memory {values[1]}: pass one for both"
                )

    def load_state_dict(self, state_dict: Mapping[str, Any], *args: Any, **kwargs: Any) -> Any:
        """Loads a state as ``torch.nn.Module.load_state_dict`` does; a refused one leaves all as it was."""
        memories = [x for x in (self.document_memory, self.query_memory) if x is not None]
        with all_or_nothing(self, *((memory.queue, memory._hooks) for memory in memories)):
            return super().load_state_dict(state_dict, *args, **kwargs)

    @eager
    def forward(
        self, queries: Tensor, documents: Tensor, labels: Tensor, sample_ids: Tensor | None = None
    ) -> Tensor:
        """Returns the loss between each tower's batch and the other's memory, which then hold the batch.

        Args:
            queries: ``(b, d)``, any floating dtype.
            documents: ``(b, d)``, of which the i-th belongs to the i-th query.
            labels: ``(b,)``, integers: ids of the pairs, or classes.
            sample_ids: ``(b,)``, numbers of the pairs in the data set; see :class:`AdaptiveCrossBatchMemory`.

        Raises:
            ValueError: input that does not fit, or that holds NaN or inf; documents that require a gradient
                which a one-sided loss does not give them; one tower without a gradient where two memories
                are to train both. No memory changes where this or a loss raises.
        """
        is_training = self.training and torch.is_grad_enabled()
        memories = [x for x in (self.document_memory, self.query_memory) if x is not None]
        # Copies are read by every rank on its own, shards by all ranks together.
        is_gathered = self.document_memory.gather_distributed and is_training
        group = self.document_memory._group
        is_joint = (self.document_memory.shard_distributed or is_gathered) and group.has_others
        with Exchange(group) if is_joint else nullcontext():
            self._check(queries, documents, labels, sample_ids, is_training)
            forth, back = torch.cat([queries, documents]), torch.cat([documents, queries])
            labels = labels.repeat(2)
            if sample_ids is not None:
                sample_ids = sample_ids.repeat(2)
            are_stored = torch.arange(len(labels), device="cpu") >= len(queries)
        with ExitStack() as transactions:
            for memory in memories:
                transactions.enter_context(memory._one_thread)
                transactions.enter_context(transaction(memory.queue, memory._hooks))
            losses: list[Tensor] = [
                memory(embeddings, labels, enqueue_mask=are_stored, sample_ids=sample_ids)
                for memory, embeddings in zip(memories, (forth, back), strict=False)
            ]
            for memory in memories:  # while a step of either can still be taken back
                memory.queue.check_writes()
            if len(losses) == 1:
                return losses[0]
            if not all(isinstance(loss, Tensor) for loss in losses):
                raise _no_mean(*memories)
            return torch.stack(losses).mean()

    def _check(
        self, queries: Tensor, documents: Tensor, labels: Tensor, ids: Tensor | None, is_training: bool
    ) -> None:
        for name, embeddings in (("queries", queries), ("documents", documents)):
            check_rows(name, embeddings, width=self.document_memory.embedding_size)
            check_not_meta(name, embeddings)
        if len(queries) != len(documents):
            sizes = f"{len(queries)} queries and {len(documents)} documents"
            raise ValueError(f"there are {sizes}: pass a document for every query")
        check_integers("labels", labels, len(queries), "one label per pair")
        if ids is not None:
            check_integers("sample_ids", ids, len(queries), "one number per pair, -1 where there is none")
        if is_training:
            self._check_gradients(queries, documents)

    def _check_gradients(self, queries: Tensor, documents: Tensor) -> None:
        """Refuses embeddings that the memories cannot train, or were built to train and cannot."""
        if self.query_memory is None:
            if documents.requires_grad and not self.document_memory.batch_loss_weight:
                raise ValueError(
                    "documents require a gradient, which a one-sided loss against stored documents does not "
                    "give them: pass documents.detach() if their tower is not to be trained, or build the "
                    "document_memory with batch_loss_weight=1.0, or pass a query_memory"
                )
            return
        # Stored rows have no gradient. So where anchors have none either, their direction trains nothing, but
        # for the other tower by the batch's own loss. Where neither tower has a gradient, backward() says so.
        if queries.requires_grad == documents.requires_grad:
            return
        if queries.requires_grad:
            frozen, trained, memory = "documents", "queries", self.query_memory
        else:
            frozen, trained, memory = "queries", "documents", self.document_memory
        has_batch_loss = memory.batch_loss_weight or memory.num_calls < memory.warmup
        if not has_batch_loss:
            raise ValueError(
                f"{frozen} require no gradient, so comparing them with stored {trained} trains neither "
                f"tower: pass {frozen} with their gradient if their tower is to be trained. If it is frozen, "
                "or they are keys of a momentum encoder, build TwoTowerMemory(document_memory=...) without a "
                f"query_memory and call it as ({trained}, {frozen}, labels): docs/two_towers.md has code"
            )


def _no_mean(*memories: AdaptiveCrossBatchMemory) -> ValueError:
    names = " and a ".join(type(memory.loss.reducer).__name__ for memory in memories)
    return ValueError(
        f"two towers with a {names}, which do not both return a number to take the mean of: pass reducers "
        "that do, such as MeanReducer, or build a TwoTowerMemory without a query_memory for each direction"
    )
