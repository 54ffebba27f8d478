"""A loss as sums and counts, of one rank's anchors or of all there are, with its gradient."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import torch
from pytorch_metric_learning.losses import GenericPairLoss
from torch import Tensor

from ._forms import Recipe
from ._pairs import Pairs
from ._plain import learned_tensors
from ._reducers import Fraction


class Part(NamedTuple):
    """Some terms of a loss.

    Attributes:
        fractions: a sum and its divisor of every part of the loss.
        leaf: what they are computed from, with gradient.
        places: where in the whole the leaf is; None: it is the whole.
    """

    fractions: list[Fraction]
    leaf: Tensor
    places: slice | None = None


class Share:
    """Sums over the terms of some anchors, of which those of all make the loss, with their gradients.

    Args:
        loss: one of PML's.
        recipe: how it is computed.
        anchors: ``(a, d)``.
        pairs: those that the terms are of; default none.
        parts: all terms; each part is forgotten when its gradient is known.
        whole: what the terms are computed from, the anchors or a matrix.
        pull: makes of a gradient with respect to the whole that with respect to the anchors.
    """

    def __init__(
        self,
        loss: Any,
        recipe: Recipe,
        anchors: Tensor,
        pairs: Pairs | None = None,
        parts: Iterable[Part] = (),
        whole: Tensor | None = None,
        pull: Callable[[Tensor], Tensor] | None = None,
    ) -> None:
        self._loss, self._form, self._anchors, self._pairs, self._pull = (
            loss,
            recipe.form,
            anchors,
            pairs,
            pull,
        )
        self._rules = list(recipe.rules.values())
        self._learned = learned_tensors(loss) if torch.is_grad_enabled() else []
        self._sums: list[Tensor] = []
        self._counts: list[Tensor] = []
        self._gradients: list[list[Tensor | None]] = [[None] * (1 + len(self._learned)) for _ in self._rules]
        for part in parts:
            self._add(part, whole)
        if not self._sums:
            self._sums = [anchors.detach().new_zeros(()) for _ in self._rules]
            self._counts = [total.long() for total in self._sums]

    def _add(self, part: Part, whole: Any) -> None:
        for k, (total, count) in enumerate(part.fractions):
            if k == len(self._sums):  # the first part
                self._sums.append(total.detach())
                self._counts.append(count)
            else:
                self._sums[k] = self._sums[k] + total.detach()
                self._counts[k] = self._counts[k] + count
            self._add_gradients(self._gradients[k], total, part, whole, k + 1 < len(part.fractions))

    def _add_gradients(
        self, gradients: list[Tensor | None], total: Tensor, part: Part, whole: Any, has_more: bool
    ) -> None:
        inputs = [(i, x) for i, x in enumerate([part.leaf, *self._learned]) if x.requires_grad]
        if not (total.requires_grad and inputs):
            return
        of_inputs = torch.autograd.grad(
            total, [x for _, x in inputs], retain_graph=has_more, allow_unused=True
        )
        for (i, _), new in zip(inputs, of_inputs, strict=True):
            if new is None:
                continue
            before = gradients[i]
            if i == 0 and part.places is not None:
                gradients[0] = before = torch.zeros_like(whole) if before is None else before
                before[part.places] += new
            else:
                gradients[i] = new if before is None else before + new

    def value(self) -> Tensor:
        """Returns the loss, if there are no other anchors."""
        pairs = self._pairs
        assert pairs is not None
        has_terms: bool | Tensor = True
        num_rows = pairs.over_rows.num_rows(pairs.positive.shape[1])
        if not pairs.is_all or len(self._anchors) * num_rows <= 2 * len(self._anchors) + 2:
            numbers = pairs.counted().numbers
            assert numbers is not None
            has_terms = self._has_terms(*numbers)
        elif self._form.needs_both_kinds:  # without positive pairs there are no terms anyway
            has_terms = pairs.over_rows.any(pairs.negative).any()
        return self._attached(self._sums, self._counts, has_terms)

    def numbers(self) -> Tensor:
        """Returns what the other ranks have to know, ``(2k + 2,)``, float64."""
        num_pairs = (0, 0) if self._pairs is None else self._pairs.counted().numbers
        numbers = [*self._sums, *self._counts, *self._anchors.new_tensor(num_pairs, dtype=torch.float64)]
        return torch.stack([number.double() for number in numbers])

    def value_of_ranks(self, of_ranks: Tensor) -> Tensor:
        """Returns the loss of all ranks; the mean of its gradients on the ranks is that of a single process.

        Args:
            of_ranks: the numbers of all ranks, ``(ranks, 2k + 2)``, float64.
        """
        k, device = len(self._rules), self._anchors.device
        sums, counts, num_pairs = of_ranks.sum(dim=0).split([k, k, 2])
        has_terms = self._has_terms(*num_pairs.tolist())
        return self._attached(
            list(sums.to(device)), list(counts.to(device)), has_terms, num_ranks=len(of_ranks)
        )

    def _attached(
        self, sums: list[Tensor], counts: list[Tensor], has_terms: bool | Tensor, num_ranks: int = 1
    ) -> Tensor:
        """Returns the sum of the quotients with its gradients, which are all that its graph keeps."""
        divisors = []
        for total, count, rule in zip(sums, counts, self._rules, strict=True):
            divisor = torch.ones_like(total) if rule.divisor == "one" else count.to(total.dtype).clamp_min(1)
            divisors.append(divisor if has_terms is True else divisor / has_terms)  # by infinity, if not
        value: Tensor = _divided(sums, divisors).to(self._sums[0].dtype)
        inputs = [self._anchors, *self._learned]
        if any(x.requires_grad for x in inputs) and torch.is_grad_enabled():
            of_parts, has_one = self._gradients, len(divisors) == 1
            if has_one:  # before it is divided, as a matrix would be copied
                of_parts = [[self._pulled(of_parts[0][0]), *of_parts[0][1:]]]
            gradients = [_divided(x, divisors) for x in zip(*of_parts, strict=True)]
            if not has_one:
                gradients[0] = self._pulled(gradients[0])
            known = [torch.zeros_like(x) if g is None else g for x, g in zip(inputs, gradients, strict=True)]
            if num_ranks > 1:
                known = [num_ranks * gradient for gradient in known]
            value = attached(value, known, inputs)
        if self._loss.embedding_regularizer:
            value = value + self._loss.embedding_regularization_loss(self._anchors)["losses"]
        return value

    def _has_terms(self, num_positive: float, num_negative: float) -> bool:
        """Returns whether PML's loss looks at so many pairs, and is not zero without that."""
        if isinstance(self._loss, GenericPairLoss) and max(num_positive, num_negative) <= 1:
            return False
        return not self._form.needs_both_kinds or min(num_positive, num_negative) > 0

    def _pulled(self, gradient: Tensor | None) -> Tensor | None:
        return gradient if gradient is None or self._pull is None else self._pull(gradient)


def attached(value: Tensor, gradients: list[Tensor], inputs: list[Tensor]) -> Tensor:
    """Returns the value with known gradients, which are all that its graph keeps."""
    result: Tensor = _KnownGradient.apply((value, gradients), *inputs)
    return result


def _divided(terms: Iterable[Any], divisors: list[Tensor]) -> Any:
    """Returns the sum of the quotients of the terms that are not None."""
    quotients = [
        (term / divisor).to(term.dtype)
        for term, divisor in zip(terms, divisors, strict=True)
        if term is not None
    ]
    return sum(quotients[1:], start=quotients[0]) if quotients else None


class _KnownGradient(torch.autograd.Function):
    """A loss whose gradients are known; they cannot be differentiated again."""

    @staticmethod
    def forward(ctx: Any, known: tuple[Tensor, list[Tensor]], *_: Tensor) -> Tensor:
        value, gradients = known
        ctx.save_for_backward(*gradients)
        return value

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, of_loss: Tensor) -> tuple[Tensor | None, ...]:
        return None, *(of_loss * gradient for gradient in ctx.saved_tensors)
