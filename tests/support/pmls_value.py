"""What PML's own loss and miner give of a batch and the rows that a memory holds."""

from __future__ import annotations

from typing import Any

import torch
from lifted_structure import LiftedStructureOfPaper
from pytorch_metric_learning import losses
from pytorch_metric_learning.losses import CrossBatchMemory
from pytorch_metric_learning.reducers import ClassWeightedReducer
from pytorch_metric_learning.utils import loss_and_miner_utils as lmu
from torch import Tensor

Indices = tuple[Tensor, ...]

# Losses that hand their reducer one value of each anchor, as PerAnchorReducer needs it with a memory.
PER_ANCHOR = {"CircleLoss", "GeneralizedLiftedStructureLoss", "MultiSimilarityLoss", "NCALoss", "SupConLoss"}


def chosen_of_each(
    miner: Any, anchors: Tensor, labels: Tensor, rows: Tensor, row_labels: Tensor, self_pairs: Tensor | None
) -> Indices:
    """Pairs or triplets that PML's miner chooses if every anchor is compared with all rows but its own copy.

    The miner sees one anchor at a time, as PML's can leave out no other row than that of the diagonal.

    Args:
        self_pairs: for every anchor the index of its own copy, ``(a,)``; None where there is none.
    """
    chosen: list[Indices] = []
    for number in range(len(anchors)):
        others = torch.arange(len(rows))
        if self_pairs is not None:
            others = others[others != self_pairs[number]]
        if len(others) == 0:
            continue
        anchor = slice(number, number + 1)
        compared = anchors[anchor], labels[anchor], rows[others], row_labels[others]
        indices = lmu.get_all_pairs_indices(*compared[1::2]) if miner is None else miner(*compared)
        of_anchors = {0, 2} if len(indices) == 4 else {0}
        chosen.append(tuple(x + number if k in of_anchors else others[x] for k, x in enumerate(indices)))
    if not chosen:
        return (torch.zeros(0, dtype=torch.int64),) * 4
    return tuple(torch.cat(x) for x in zip(*chosen, strict=True))


def value_and_gradients(loss: Any, anchors: Tensor, *compared: Any) -> list[Tensor]:
    """The loss, its gradient with respect to the anchors, and those with respect to what it learns."""
    leaf = anchors.detach().clone().requires_grad_()
    loss.zero_grad()
    value = loss(leaf, *compared)
    (3 * value).backward()
    learned = [torch.zeros_like(x) if x.grad is None else x.grad for x in loss.parameters()]
    return [value.detach(), leaf.grad, *(x.clone() for x in learned)]


def pmls(
    memory: CrossBatchMemory,
    anchors: Tensor,
    labels: Tensor,
    self_pairs: Tensor | None,
    given: Indices | None = None,
    chosen: Indices | None = None,
) -> list[Tensor]:
    """PML's loss against the rows that ``memory`` holds, and its gradients.

    Args:
        given: pairs or triplets within the batch, as ``indices_tuple``.
        chosen: what the miner has chosen; default: what it chooses, anchor by anchor.
    """
    rows, row_labels = memory.embedding_memory[: memory.num_rows], memory.label_memory[: memory.num_rows]
    rows = rows.to(torch.promote_types(rows.dtype, anchors.dtype)).clone()
    if chosen is None:
        chosen = chosen_of_each(memory.miner, anchors, labels, rows, row_labels, self_pairs)
    if given is not None:
        of_anchors = {0, 2} if len(given) == 4 else {0}
        moved = tuple(x if k in of_anchors else self_pairs[x] for k, x in enumerate(given))
        if len(chosen) == 3 and len(moved) == 4:
            moved = lmu.convert_to_triplets(given, labels)
            moved = moved[0], self_pairs[moved[1]], self_pairs[moved[2]]
        elif len(chosen) == 4 and len(moved) == 3:
            moved = moved[0], moved[1], moved[0], moved[2]
        chosen = tuple(torch.cat(x) for x in zip(chosen, moved, strict=True))
    loss = memory.loss
    # Of LiftedStructureLoss PML's value is that of other pairs (B15).
    if isinstance(loss, losses.LiftedStructureLoss) and not isinstance(loss.reducer, ClassWeightedReducer):
        loss = LiftedStructureOfPaper(loss, self_pairs)
    return value_and_gradients(loss, anchors, labels, chosen, rows, row_labels)


def assert_as_pmls(
    ours: list[Tensor], expected: list[Tensor], rtol: float = 1e-8, atol: float = 1e-9
) -> None:
    """Of no terms PML's MeanReducer makes NaN; ours is 0."""
    for one, other in zip(ours, expected, strict=True):
        other = other.nan_to_num(0)
        torch.testing.assert_close(one, other, rtol=rtol, atol=atol * max(1.0, float(other.abs().max())))
