"""A loss of PML's by its own code, some positive pairs at a time."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

import torch
from pytorch_metric_learning.losses import AngularLoss
from torch import Tensor, nn

from ._pairs import Pairs, listed
from ._reducers import Elements, Rule
from ._share import Part

_PAIRS_AT_ONCE = {"cpu": 2**22, "gpu": 2**26}


def parts_by_pml(loss: Any, rule: Rule, anchors: Tensor, rows: Tensor, pairs: Pairs) -> Iterator[Part]:
    """Yields the terms of a loss that has one of every positive pair, or of every triplet with it.

    Args:
        loss: an ``AngularLoss``, or a ``TripletMarginLoss`` of all triplets of the pairs.
        rule: how it is reduced.
        anchors: ``(a, d)``, with gradient.
        rows: ``(n, d)``.
    """
    collecting = copy.copy(loss)
    collecting._modules = {**loss._modules, "reducer": _Unreduced()}
    a1, p = listed(pairs.positive)
    at_once = max(1, _PAIRS_AT_ONCE["cpu" if rows.device.type == "cpu" else "gpu"] // len(rows))
    for of_pairs, places in zip(a1.split(at_once), p.split(at_once), strict=True):
        if len(of_pairs) == 0:
            return
        first, last = of_pairs[[0, -1]].tolist()
        chosen = slice(first, last + 1)
        leaf = anchors[chosen].detach().requires_grad_(anchors.requires_grad)
        # AngularLoss takes all rows of other classes, whatever is listed, but something has to be listed.
        is_angular = isinstance(loss, AngularLoss)
        a2, n = (of_pairs[:1] - first, places[:1]) if is_angular else listed(pairs.negative[chosen])
        lists = of_pairs - first, places, a2, n
        info = collecting(leaf, pairs.labels[chosen], lists, rows, pairs.row_labels)["loss"]
        if torch.is_tensor(info["losses"]):
            terms = Elements(info["losses"].flatten(), anchors=info["indices"][0])
            yield Part([terms.fraction(rule, pairs.labels[chosen], pairs.over_rows)], leaf, chosen)


class _Unreduced(nn.Module):
    """In the place of a reducer: the terms as they are."""

    def forward(self, loss_dict: dict[str, Any], embeddings: Tensor, labels: Tensor) -> dict[str, Any]:
        return loss_dict
