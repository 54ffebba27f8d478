"""PML's ``CrossBatchMemory`` with a queue that is an object."""

from __future__ import annotations

from typing import Any

import torch
from pytorch_metric_learning.losses import CrossBatchMemory
from torch import Tensor

from ..adapters._rows import Rows
from ._checkpoint import check_same_size, check_state, to_present_form
from ._cosines import Distances
from ._indices import IndicesTuple, appended, mapped
from ._pairs import chosen_pairs
from ._queue import Queue


class QueueMemory(CrossBatchMemory):
    """The names of PML's class for what the queue holds, and the state of both.

    Attributes:
        memory_dtype: dtype in which rows are stored.
        queue: the rows, their labels, and where the next ones go.
    """

    memory_dtype: torch.dtype
    queue: Queue
    _takes_parts = False  # while a state is loaded that may lack entries or have others

    def __init_subclass__(cls, **kwargs: Any) -> None:
        """Refuses methods of PML's that are not called here, so that nobody overrides them in vain."""
        super().__init_subclass__(**kwargs)
        for name in ("add_to_memory", "create_indices_tuple"):
            module = getattr(cls, name).__module__
            if not module.startswith((__package__, CrossBatchMemory.__module__)):
                raise TypeError(
                    f"{cls.__name__} overrides {name}, which is not called: pass a miner, or register a "
                    "memory hook"
                )

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
        rows = Rows.of(E_mem, len(E_mem), 0, E_mem.dtype)
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
                QueueMemory.reset_queue(self)
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
        return self.queue.contents.position

    @queue_idx.setter
    def queue_idx(self, position: int) -> None:
        self.queue.resume_at(position, self.num_rows if self.has_been_filled else position)

    @property
    def curr_batch_idx(self) -> Tensor | None:
        """Places of the rows stored last, ``(b,)``; None before the first."""
        return self.queue.contents.newest

    def load_state_dict(self, state_dict: Any, strict: bool = True, **kwargs: Any) -> Any:
        self._takes_parts = not strict
        try:
            return super().load_state_dict(state_dict, strict, **kwargs)
        finally:
            self._takes_parts = False

    def _load_from_state_dict(
        self, state_dict: dict[str, Any], prefix: str, metadata: Any, strict: bool, *args: Any
    ) -> None:
        to_present_form(state_dict, prefix, self, self.queue)
        stored = state_dict.get(prefix + "queue.rows")
        if stored is not None:
            check_same_size(stored, self.queue.contents.rows.stored)
        # Torch says strict to every module, whatever it has been told. Of a state without any entry of the
        # memory's, such as a backbone's weights, it says itself what is missing.
        is_strict = not self._takes_parts and any(key.startswith(prefix) for key in state_dict)
        check_state(state_dict, prefix, self.state_dict(prefix=prefix, keep_vars=True), strict=is_strict)
        super()._load_from_state_dict(state_dict, prefix, metadata, strict, *args)
