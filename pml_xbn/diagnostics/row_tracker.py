"""Remembers which image every row of a memory came from, and when it was stored."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from pytorch_metric_learning.losses import CrossBatchMemory
from torch import Tensor
from torch.nn.functional import normalize as unit_length

from .._checks import check_integer, check_integers, check_mask, check_rows
from .memory_rows import StoredSince, check_memory, num_occupied
from .random_state import random_state_kept
from .staleness import AdaptedStaleness, staleness

_UNKNOWN = -1


class RowTracker:
    """Remembers the image and the step of every row of a cross-batch memory, for its staleness.

    You want it to measure how stale the rows are: see :meth:`staleness`. After every call it asks the memory,
    PML's ``CrossBatchMemory`` or a subclass, where new rows were stored. So it follows wrap-arounds, masks,
    warm-ups, skipped batches, ``sample_ids`` and ``reset_queue()``. Rows that were stored before the tracker
    was made are unknown, and it leaves them out of what it measures.

    Args:
        memory: the memory to follow.

    Attributes:
        images: the index in the dataset of every row's image, ``(memory_size,)`` int64, -1 where unknown.
        stored_at: the step at which every row was stored, ``(memory_size,)`` int64, -1 where unknown.

    Example:
        >>> from pytorch_metric_learning.losses import ContrastiveLoss
        >>> images, labels = torch.randn(12, 5), torch.arange(12) % 3
        >>> model = torch.nn.Linear(5, 2)
        >>> loss_fn = CrossBatchMemory(ContrastiveLoss(), embedding_size=2, memory_size=8)
        >>> tracker = RowTracker(loss_fn)
        >>> for step in range(3):
        ...     batch = torch.arange(4 * step, 4 * step + 4)
        ...     stored = loss_fn.embedding_memory.clone()
        ...     loss = loss_fn(model(images[batch]), labels[batch])
        ...     tracker.update(step, batch)
        >>> tracker.images
        tensor([ 8,  9, 10, 11,  4,  5,  6,  7])
        >>> result = tracker.staleness(stored, lambda indices: model(images[indices]))
        >>> result.after.ages, result.after.rows_by_age, result.after.maximum < 1e-6
        (tensor([1]), tensor([4]), tensor(True))
    """

    def __init__(self, memory: CrossBatchMemory) -> None:
        check_memory(memory)
        self.memory = memory
        self.images = torch.full((memory.memory_size,), _UNKNOWN)
        self.stored_at = torch.full((memory.memory_size,), _UNKNOWN)
        self._is_newest = torch.zeros(memory.memory_size, dtype=torch.bool)
        self._step = 0
        self._look()

    def _look(self) -> None:
        """Remembers the state of the memory, with which the next update compares."""
        self._queue_idx = self.memory.queue_idx
        self._stored = StoredSince(self.memory)

    def update(self, step: int, images: Tensor, enqueue_mask: Tensor | None = None) -> None:
        """Notes which rows a call of the memory has stored. Call it after each, also ``fill_memory``.

        Args:
            step: the number of the step, counted over all epochs.
            images: the index in the dataset of every image of the batch, ``(b,)`` integers. Where the memory
                gathers the rows of many ranks, pass the indices of all ranks in rank order.
            enqueue_mask: the one that the memory was given, ``(b,)`` bool, if any.

        Raises:
            ValueError: the indices do not fit the rows that were stored, or rows were stored without an
                update. Then the tracker is as it was.
        """
        check_integer("step", step, at_least=0)
        check_integers("images", images, len(images))
        if enqueue_mask is not None:
            check_mask("enqueue_mask", enqueue_mask, len(images))
            images = images[enqueue_mask.to(images.device)]
        indices, num_rows = self._stored.indices(), num_occupied(self.memory)
        num_stored = 0 if indices is None else len(indices)
        # After a reset_queue() the memory holds only what this call has stored.
        holds_others = num_rows > (0 if indices is None else len(indices.unique()))
        first = (self.memory.queue_idx - num_stored) % self.memory.memory_size
        if holds_others and first != self._queue_idx and not self._has_stored_samples(indices):
            raise ValueError(
                f"the memory has stored rows {self._queue_idx} to {first} without an update: call update "
                "after every call of the memory, or make a new RowTracker"
            )
        if indices is not None and num_stored != len(images):
            raise ValueError(
                f"{len(images)} images do not fit the {num_stored} rows that the memory stored: pass those "
                "of the stored rows, with the enqueue_mask of the memory if it had one"
            )
        device = self.memory.label_memory.device
        stored_images, stored_at = self.images.to(device), self.stored_at.to(device)
        self._is_newest = torch.zeros_like(stored_images, dtype=torch.bool)
        if not holds_others:
            stored_images.fill_(_UNKNOWN)
            stored_at.fill_(_UNKNOWN)
        if indices is not None:
            stored_images[indices] = images.to(device, torch.int64)
            stored_at[indices] = step
            self._is_newest[indices] = True
        self.images, self.stored_at, self._step = stored_images, stored_at, step
        self._look()

    def _has_stored_samples(self, indices: Tensor | None) -> bool:
        """Returns whether the queue has not moved since samples were stored at their indices."""
        ids = getattr(self.memory, "id_memory", None)
        if indices is None or ids is None or (ids[indices] < 0).all():
            return False
        size = self.memory.memory_size
        passed = (self._queue_idx + torch.arange((self.memory.queue_idx - self._queue_idx) % size)) % size
        return bool(torch.isin(passed.to(indices.device), indices).all())

    def staleness(
        self,
        stored: Tensor,
        embed: Callable[[Tensor], Tensor],
        *,
        num_rows: int | None = None,
        num_steps: int | None = None,
        normalize: bool = False,
    ) -> AdaptedStaleness:
        """Returns the staleness of the rows that the last call found in memory, before and after adaptation.

        Call it after :meth:`update` and before the optimizer's step. Rows that the batch has replaced, and
        rows of the batch itself, are left out. So both figures are of the same rows: before, as the call
        found them (earlier calls may have adapted them), and after, as the loss saw them. PML's class adapts
        nothing, and its figures are equal.

        Args:
            stored: a copy of the memory's ``embedding_memory`` from before the call, ``(memory_size, d)``.
            embed: takes indices of images ``(n,)`` int64, on the memory's device, and returns their
                embeddings ``(n, d)`` by the model as it is. It is called once, without gradients, and with
                each image once. Every difference from how the rows were stored counts as staleness: the mode
                (``train()`` or ``eval()``), the augmentation, and for BatchNorm in ``train()`` mode the other
                images of the batch. It must not change the model: in ``train()`` mode, where BatchNorm
                updates its running statistics, embed with a copy. What it draws of PyTorch's random numbers
                is not missing in training.
            num_rows: measure at most so many rows, evenly spaced over the memory. None (default) for all.
            num_steps: measure the rows that were stored at no more than so many steps. These are evenly
                spaced, with the oldest and the newest. None (default) for all. It keeps batches whole, which
                BatchNorm in ``train()`` mode needs.
            normalize: whether to compare unit vectors (default False), as a loss does that normalises.

        Raises:
            ValueError: ``stored``, or what ``embed`` returned, has the wrong shape, or a number is below 1.
        """
        rows = self.memory.embedding_memory
        check_rows("stored", stored, like=rows)
        images, stored_at = self.images.to(rows.device), self.stored_at.to(rows.device)
        kept = (~self._is_newest.to(rows.device) & (images != _UNKNOWN)).nonzero().flatten()
        if num_steps is not None:
            check_integer("num_steps", num_steps, at_least=1)
            steps = _evenly_spaced(stored_at[kept].unique(), num_steps)
            kept = kept[torch.isin(stored_at[kept], steps)]
        if num_rows is not None:
            check_integer("num_rows", num_rows, at_least=1)
            kept = _evenly_spaced(kept, num_rows)
        fresh = self._embedded(embed, images[kept], like=rows)
        pair = stored.to(rows.device)[kept], rows[kept]
        if normalize:
            fresh, pair = unit_length(fresh), (unit_length(pair[0]), unit_length(pair[1]))
        ages = self._step - stored_at[kept]
        return AdaptedStaleness(*(staleness(of, fresh, ages) for of in pair))

    def _embedded(self, embed: Callable[[Tensor], Tensor], images: Tensor, like: Tensor) -> Tensor:
        if len(images) == 0:
            return like[:0]
        distinct, position = images.unique(return_inverse=True)
        with torch.no_grad(), random_state_kept([like]):
            fresh = embed(distinct)
        check_rows("what embed returned", fresh, like=like[:1].expand(len(distinct), -1))
        return fresh.to(like.device)[position]

    def state_dict(self) -> dict[str, Any]:
        """Returns the tracker's state; save it with the memory's own."""
        return {"images": self.images.clone(), "stored_at": self.stored_at.clone()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Loads a state. Call it after the memory has loaded its own.

        A state of PML's class does not hold the position of its queue. PML then overwrites the rows from the
        first one on, and the tracker forgets the images of this state with the first update.

        Raises:
            ValueError: the state belongs to a memory of another size.
        """
        size = len(state["images"])
        if size != self.memory.memory_size:
            raise ValueError(f"the state is of memory_size={size}: pass one of {self.memory.memory_size}")
        self.images, self.stored_at = state["images"].clone(), state["stored_at"].clone()
        self._is_newest = torch.zeros(size, dtype=torch.bool)
        self._look()


def _evenly_spaced(values: Tensor, at_most: int) -> Tensor:
    """Returns at most so many of the values, evenly spread, with the first and the last among them."""
    chosen = torch.linspace(0, max(len(values) - 1, 0), min(at_most, len(values)), dtype=torch.float64)
    return values[chosen.long().to(values.device)]
