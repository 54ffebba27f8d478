"""From labels to superclasses."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn

from .._checks import INTEGERS

Superclasses = Tensor | Sequence[int] | Mapping[int, int]


class SuperclassLookup(nn.Module):
    """Looks up the superclass of every label. On a GPU it does not wait for the host.

    Args:
        superclasses: a 1-D integer tensor or sequence, indexed by label, or a dict from label to superclass.

    Raises:
        ValueError: there are no entries or more than one dimension, or a label or superclass is negative or
            no integer.

    Example:
        >>> lookup = SuperclassLookup({3: 0, 8: 1})
        >>> lookup(torch.tensor([8, 3, 5]))
        tensor([ 1,  0, -1])
    """

    labels: Tensor
    groups: Tensor

    def __init__(self, superclasses: Superclasses) -> None:
        super().__init__()
        if isinstance(superclasses, Mapping):
            labels = _as_integers(list(superclasses.keys()), "a label of superclasses")
            groups = _as_integers(list(superclasses.values()), "a value of superclasses")
        else:
            groups = _as_integers(superclasses, "superclasses")
            labels = torch.arange(len(groups), device=groups.device)
        labels, order = labels.sort()
        self.register_buffer("labels", labels, persistent=False)
        self.register_buffer("groups", groups[order], persistent=False)

    def forward(self, labels: Tensor, missing: int = -1) -> Tensor:
        """Returns the superclass of every label ``(n,)``, and ``missing`` for labels without one."""
        if labels.is_meta:  # where the shape is all there is, and the lookup itself would be lost
            return torch.empty_like(labels, dtype=torch.int64)
        if self.labels.device != labels.device:
            self.to(labels.device)  # as PML's memory follows the batch
        position = torch.searchsorted(self.labels, labels).clamp(max=len(self.labels) - 1)
        return self.groups[position].masked_fill(self.labels[position] != labels, missing)

    def is_missing(self, labels: Tensor) -> Tensor:
        """Returns True ``(n,)`` where a label has no superclass."""
        return self.forward(labels) < 0


def _as_integers(values: Tensor | Sequence[int], what: str) -> Tensor:
    remedy = "pass a non-negative integer superclass for every label"
    try:
        tensor = values if isinstance(values, Tensor) else torch.as_tensor(values, device="cpu")
    except (TypeError, ValueError, RuntimeError, OverflowError) as error:
        raise ValueError(f"{what} holds {values!r}: {remedy}") from error
    if tensor.ndim != 1 or len(tensor) == 0:
        raise ValueError(f"superclasses has shape {tuple(tensor.shape)}: {remedy}, in one dimension")
    if tensor.dtype not in INTEGERS:
        raise ValueError(f"{what} is {tensor[0].item()!r} ({tensor.dtype}): {remedy}")
    if tensor.min() < 0:
        raise ValueError(f"{what} is {int(tensor.min())}: {remedy}")
    return tensor.to(torch.int64)
