"""Records what the loss inside a memory was given in one call, and its gradients."""

from __future__ import annotations

from types import TracebackType
from typing import Any

import torch
from pytorch_metric_learning.losses import CrossBatchMemory, LiftedStructureLoss
from pytorch_metric_learning.reducers import DoNothingReducer
from torch import Tensor
from torch.nn.functional import normalize as unit_length
from torch.utils.hooks import RemovableHandle

from .._arithmetic import at_least_float32
from ..losses.adaptive_cross_batch_memory import AdaptiveCrossBatchMemory
from ..pairwise._supported import fused_loss_of
from .common_mode_push import CommonModePush, common_mode_push
from .memory_rows import StoredSince, check_memory, num_occupied
from .valid_pairs import ValidPairs, valid_pairs


class WatchedLoss:
    """Watches one call of a cross-batch memory, PML's ``CrossBatchMemory`` or a subclass.

    It is a context manager: call the memory once within the context, and read the attributes afterwards. The
    training step is the same as without it: the miner and the hooks of your embeddings are called once. A
    memory of this package computes its loss as always, and once more by PML's code, of the same pairs, whose
    matrices can be seen. Besides a copy of the rows this costs one more backward
    pass of the loss, but not of the model.

    Args:
        memory: the memory that will be called.

    Attributes:
        anchors: the embeddings that the wrapped loss was given, ``(a, d)``.
        anchor_labels: their labels, ``(a,)``.
        rows: the rows that the wrapped loss compared the anchors with, adapted and new ones, ``(n, d)``.
        row_labels: their labels, ``(n,)``.
        is_from_batch: whether a row is of the batch itself, ``(n,)`` bool. The others are older.
        gradient: the gradient of the loss with respect to the anchors, ``(a, d)``.
        memory_gradient: the part of ``gradient`` that comes from pairs with older rows, ``(a, d)``. It is
            None where ``pair_gradient`` is None.
        pair_gradient: the gradient of the loss with respect to the distance (or similarity) of every anchor
            to every row, ``(a, n)``. It is None for a loss that computes no such matrix (``AngularLoss``),
            and for ``LiftedStructureLoss`` in a memory of this package, whose value differs from PML's.

    Raises:
        TypeError: ``memory`` is no ``CrossBatchMemory``.
        ValueError: its rows are spread over ranks; or it is called twice or not at all, without gradients, or
            with a reducer that returns no number.

    Example:
        >>> from pytorch_metric_learning.losses import ContrastiveLoss
        >>> loss_fn = CrossBatchMemory(ContrastiveLoss(), embedding_size=2, memory_size=8)
        >>> embeddings = torch.tensor([[1.0, 0.0], [0.0, 1.0]], requires_grad=True)
        >>> loss = loss_fn(embeddings, torch.tensor([0, 1]))
        >>> with WatchedLoss(loss_fn) as seen:
        ...     loss = loss_fn(embeddings, torch.tensor([2, 3]))
        >>> seen.valid_pairs().negatives_from_memory
        tensor(2)
        >>> seen.common_mode_push().push
        tensor(0.)
        >>> loss.backward()
    """

    anchors: Tensor
    anchor_labels: Tensor
    rows: Tensor
    row_labels: Tensor
    is_from_batch: Tensor
    gradient: Tensor
    memory_gradient: Tensor | None
    pair_gradient: Tensor | None

    def __init__(self, memory: CrossBatchMemory) -> None:
        check_memory(memory)
        if isinstance(getattr(memory.loss, "reducer", None), DoNothingReducer):
            raise ValueError(
                f"memory has a {type(memory.loss).__name__} with DoNothingReducer, which returns no number "
                "that has a gradient: pass a reducer that does, such as MeanReducer"
            )
        self._memory = memory
        self._handles: list[RemovableHandle] = []

    # -- the context ----------------------------------------------------------------------------------------

    def __enter__(self) -> WatchedLoss:
        self._arguments: tuple[Any, ...] | None = None
        self._distances: Tensor | None = None
        self._memory_loss: Tensor | None = None
        self._is_in_call = self._is_in_loss = False
        vars(self).pop("gradient", None)
        memory = self._memory
        # A hook would make a memory of this package call the loss that it computes without a call.
        self._is_shown = (
            isinstance(memory, AdaptiveCrossBatchMemory) and fused_loss_of(memory.loss) is not None
        )
        self._handles = [
            memory.register_forward_pre_hook(self._before_call, with_kwargs=True),
            memory.register_forward_hook(self._after_call),
        ]
        if self._is_shown:
            memory._watchers = (*memory._watchers, self._compute_loss)
        else:
            self._handles += self._hook_loss()
        return self

    def _hook_loss(self) -> list[RemovableHandle]:
        loss = self._memory.loss
        handles = [
            loss.register_forward_pre_hook(self._before_loss, with_kwargs=True),
            loss.register_forward_hook(self._after_loss),
        ]
        if isinstance(getattr(loss, "distance", None), torch.nn.Module):
            handles.append(loss.distance.register_forward_hook(self._after_distance))
        return handles

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for handle in self._handles:
            handle.remove()
        if self._is_shown:
            watchers = self._memory._watchers
            self._memory._watchers = tuple(x for x in watchers if x != self._compute_loss)
        if kind is None and not hasattr(self, "gradient"):
            raise ValueError("the memory was not called while it was watched: call it within the context")

    def _before_call(
        self, memory: CrossBatchMemory, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        if hasattr(self, "gradient"):
            raise ValueError("the memory was called twice while it was watched: watch one call at a time")
        self._stored, self._num_calls = StoredSince(memory), getattr(memory, "num_calls", 0)
        self._is_in_call = True
        # Gradients are taken of another tensor than the caller's, whose hooks would be called.
        if args:
            return (_alias(args[0]), *args[1:]), kwargs
        if "embeddings" in kwargs:
            kwargs = kwargs | {"embeddings": _alias(kwargs["embeddings"])}
        return args, kwargs

    def _compute_loss(self, *arguments: Any) -> None:
        """Computes the loss by PML's code, too."""
        if self._arguments is not None or not self._is_in_call:
            return
        device, handles = arguments[0].device, self._hook_loss()
        try:
            with torch.random.fork_rng([device] if device.type == "cuda" else []):
                self._memory.loss(*arguments)
        finally:
            for handle in handles:
                handle.remove()

    def _before_loss(self, _: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if self._arguments is not None or not self._is_in_call:
            return  # the memory computes the loss of the batch alone, too; and others may share the loss
        names = ("embeddings", "labels", "indices_tuple", "ref_emb", "ref_labels")
        given = dict.fromkeys(names) | dict(zip(names, args, strict=False)) | kwargs
        self._arguments = tuple(given[name] for name in ("embeddings", "labels", "ref_emb", "ref_labels"))
        self._is_in_loss = True

    def _after_distance(self, _: Any, __: Any, distances: Tensor) -> None:
        if self._is_in_loss and self._distances is None and distances.requires_grad:
            self._distances = distances

    def _after_loss(self, _: Any, __: Any, loss: Tensor) -> None:
        if self._is_in_loss:
            self._memory_loss, self._is_in_loss = loss, False

    def _after_call(self, memory: CrossBatchMemory, _: Any, loss: Any) -> None:
        self._is_in_call = False
        if not isinstance(loss, Tensor):
            raise ValueError(
                f"the loss is a {type(loss).__name__}, whose gradient nobody can take: watch a loss whose "
                "reducer returns a number, such as MeanReducer"
            )
        if not loss.requires_grad:
            raise ValueError("the loss has no gradient: enable gradients, and pass embeddings that have some")
        arguments, distances, memory_loss = self._arguments, self._distances, self._memory_loss
        if self._is_shown and isinstance(memory.loss, LiftedStructureLoss):
            distances = None
        self._arguments = self._distances = self._memory_loss = None  # lets go of the graph
        if arguments is None:
            # Without anchors or rows the memory computes no loss.
            empty = memory.label_memory[:0]
            arguments = memory.embedding_memory[:0], empty, memory.embedding_memory[:0], empty
        anchors, labels, rows, row_labels = arguments
        self.anchors, self.anchor_labels = anchors.detach().clone(), labels.clone()
        self.is_from_batch = self._from_batch(memory, anchors if rows is None else rows, rows is None)
        self.rows = (anchors if rows is None else rows).detach().clone()
        self.row_labels = (labels if row_labels is None else row_labels).clone()
        self._take_gradients(loss, anchors, memory_loss, distances)

    def _from_batch(self, memory: CrossBatchMemory, rows: Tensor, is_batch_alone: bool) -> Tensor:
        is_from_batch = torch.zeros(len(rows), dtype=torch.bool, device=rows.device)
        indices = self._stored.indices()
        if len(rows) == 0:
            return is_from_batch
        if indices is not None:
            is_from_batch[indices.to(rows.device)] = True
        elif is_batch_alone or getattr(memory, "num_calls", 0) > self._num_calls:
            is_from_batch[:] = True  # the warm-up, in which the memory has no part
        else:
            is_from_batch[num_occupied(memory) :] = True  # read only: rows of the batch come last
        return is_from_batch

    # -- gradients ------------------------------------------------------------------------------------------

    def _take_gradients(
        self, loss: Tensor, anchors: Tensor, memory_loss: Tensor | None, distances: Tensor | None
    ) -> None:
        """Computes the gradients of the loss, and of its part against the memory by the distances."""
        self.gradient = _gradient(loss, anchors)
        self.pair_gradient = self.memory_gradient = None
        if distances is not None and distances.shape == (len(self.anchors), len(self.rows)):
            assert memory_loss is not None
            pair_gradient = _gradient(memory_loss, distances)
            from_memory = pair_gradient.masked_fill(self.is_from_batch, 0.0).to(distances.dtype)
            self.pair_gradient = pair_gradient
            self.memory_gradient = _gradient(distances, anchors, from_memory)
        elif memory_loss is None or not _gradient(memory_loss, anchors).any():
            # PML's losses look at no distances where there are no pairs.
            self.pair_gradient = self.gradient.new_zeros(len(self.anchors), len(self.rows))
            self.memory_gradient = torch.zeros_like(self.gradient)

    # -- what they say --------------------------------------------------------------------------------------

    def valid_pairs(self) -> ValidPairs:
        """Returns the valid positives and negatives from batch and from memory: see :func:`valid_pairs`.

        Raises:
            ValueError: the loss computes no matrix of distances.
        """
        if self.pair_gradient is None:
            raise ValueError(
                f"the pairs of {type(self._memory.loss).__name__} cannot be told apart here: watch a loss "
                "of distances between all anchors and rows"
            )
        return valid_pairs(self.pair_gradient, self.anchor_labels, self.row_labels, self.is_from_batch)

    def common_mode_push(self, *, memory_only: bool = False, normalize: bool = False) -> CommonModePush:
        """Returns the push on all anchors alike: see :func:`common_mode_push`.

        Args:
            memory_only: whether to take only the gradient that comes from pairs with older rows (default
                False: the whole gradient).
            normalize: whether to take unit vectors and the gradient with respect to them (default False).
                Use it with a loss that normalises. Otherwise the displacement also holds differences
                between the lengths of anchors and rows.

        Raises:
            ValueError: ``memory_only`` was asked for, and the loss computes no matrix of distances.
        """
        gradient = self.memory_gradient if memory_only else self.gradient
        if gradient is None:
            raise ValueError(
                f"the memory's part of the gradient of {type(self._memory.loss).__name__} cannot be told "
                "apart here: pass memory_only=False"
            )
        anchors, older = self.anchors, self.rows[~self.is_from_batch]
        if normalize:
            # The gradient on an anchor is that on its unit vector over the anchor's length.
            gradient = gradient * anchors.norm(dim=1, keepdim=True)
            anchors, older = unit_length(anchors), unit_length(older)
        return common_mode_push(gradient, anchors, older)


def _alias(embeddings: Any) -> Any:
    """Returns another tensor of the same numbers, to which the gradient flows through it."""
    if not isinstance(embeddings, Tensor) or embeddings.layout != torch.strided:
        return embeddings  # which the memory refuses
    return embeddings.view_as(embeddings)


def _gradient(of: Tensor, at: Tensor, weight: Tensor | None = None) -> Tensor:
    """Returns the gradient, in float32 or better, which leaves the graph as it is; 0 where there is none."""
    gradient = None
    if of.requires_grad and at.requires_grad:
        (gradient,) = torch.autograd.grad(of, at, weight, retain_graph=True, allow_unused=True)
    return at_least_float32(torch.zeros_like(at) if gradient is None else gradient.detach())
