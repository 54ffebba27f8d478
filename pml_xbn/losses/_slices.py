"""Sums of a loss's terms, computed some anchors at a time."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from ._forms import Form, Pairs
from ._rules import Rule
from ._sums import Part, num_at_once, summed


def fractions(loss: Any, form: Form, rules: dict[str, Rule], pairs: Pairs) -> tuple[Tensor, Tensor]:
    """Sums ``(k,)``, with gradient, and counts ``(k,)``, int64, of the loss's parts that have a rule.

    A count is below 0 where the sum is not to be divided.
    """

    def sums(part: Pairs) -> tuple[Tensor, Tensor]:
        terms = form.terms(loss, part)
        of_parts = [terms[name].fraction(rule, part.labels) for name, rule in rules.items()]
        counts = [
            torch.full_like(count, -1) if rule.divisor == "one" else count
            for (_, count), rule in zip(of_parts, rules.values(), strict=True)
        ]
        return torch.stack([total for total, _ in of_parts]), torch.stack(counts)

    at_once = num_at_once(pairs.mat, pairs.mat.shape[1])
    if at_once >= len(pairs.mat) or pairs.mat.shape[1] == 1 or not (form.is_by_anchor and form.is_sliced):
        return sums(pairs)

    def by_slices(mat: Tensor) -> Iterator[Part]:
        for first in range(0, len(mat), at_once):
            anchors = slice(first, first + at_once)
            part = pairs.of_anchors(anchors)._replace(mat=mat[anchors])
            yield anchors, part.mat, *sums(part)

    return summed(by_slices, pairs.mat, *learned_tensors(loss))


def learned_tensors(loss: Any) -> list[Tensor]:
    """What else than the matrix gets a gradient: a temperature, say, or a reducer's weights."""
    attributes = (x for module in loss.modules() for x in vars(module).values())
    tensors = [*loss.parameters(), *(x for x in attributes if isinstance(x, Tensor))]
    return [x for x in tensors if x.requires_grad]
