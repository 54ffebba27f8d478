"""Pairs and triplets as PML lists them: index tensors, four of pairs or three of triplets."""

from __future__ import annotations

import torch
from pytorch_metric_learning.utils import loss_and_miner_utils as lmu
from torch import Tensor

IndicesTuple = tuple[Tensor, ...]


def listed(counts: Tensor) -> tuple[Tensor, Tensor]:
    """Returns anchors and rows of pairs, each as often as it counts."""
    indices = counts.nonzero()
    if counts.dtype != torch.bool:
        indices = indices.repeat_interleave(counts[counts > 0], dim=0)
    anchors, rows = indices.unbind(dim=1)
    return anchors, rows


def mapped(user_pairs: IndicesTuple, rows: Tensor) -> IndicesTuple:
    """Returns pairs or triplets of a batch with ``rows[i]`` in place of each positive or negative ``i``."""
    is_anchor = (True, False, False) if len(user_pairs) == 3 else (True, False, True, False)
    indices = (x.to(rows.device, torch.int64) for x in user_pairs)
    return tuple(x if anchor else rows[x] for x, anchor in zip(indices, is_anchor, strict=True))


def appended(indices: IndicesTuple, user_pairs: IndicesTuple, labels: Tensor) -> IndicesTuple:
    """Returns ``indices`` and behind them ``user_pairs`` of the batch, as triplets if the first are some."""
    convert = lmu.convert_to_triplets if len(indices) == 3 else lmu.convert_to_pairs
    user_pairs = convert(user_pairs, labels)
    return tuple(torch.cat([a, b.to(a.device)]) for a, b in zip(indices, user_pairs, strict=True))


def drop_self_pairs(indices: IndicesTuple, self_pairs: Tensor) -> IndicesTuple:
    """Returns the pairs or triplets without those of an anchor and its own copy."""
    left: list[Tensor] = []
    for anchors, *rows in [indices] if len(indices) == 3 else [indices[:2], indices[2:]]:
        keep = (torch.stack(rows) != self_pairs[anchors]).all(dim=0)
        left += [x[keep] for x in (anchors, *rows)]
    return tuple(left)
