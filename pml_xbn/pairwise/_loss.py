"""The loss of anchors against stored rows, from top to bottom.

A fused loss is computed from one matrix of anchors × rows together with its gradient, which is all that the
graph keeps. Any other loss runs PML's own code.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import torch
from pytorch_metric_learning.losses import AngularLoss, GenericPairLoss
from pytorch_metric_learning.reducers import DivisorReducer, SumReducer
from torch import Tensor

from .._arithmetic import at_most, nan_unless_zero, slices
from .._tracing import is_in_compiled_step, looks_again, number_if_readable
from ..memory._rows import Rows
from ._distance_weighted import mine_by_distance
from ._distances import Distances, is_symmetric
from ._fused_losses import Elements
from ._miners import mine, mine_by_pml
from ._pairs import IndicesTuple, Pairs, anchors_at_once
from ._ranges import Ranges, listed
from ._reductions import AllRows, added, gradients_of_values
from ._supported import FusedLoss, draws_by_distance, fused_miner_of, is_fused_miner


class Comparison(NamedTuple):
    """Anchors and rows, at least one of each, and the loss of them."""

    loss: Any  # that a memory supports
    miner: Any  # chooses among the pairs; None: all
    anchors: Tensor  # (a, d), with gradient
    anchor_labels: Tensor  # (a,)
    rows: Rows  # (n, d)
    row_labels: Tensor  # (n,)
    self_pairs: Tensor | None = None  # (a,), rows of the anchors' own copies, with which they form no pairs
    user_pairs: IndicesTuple | None = None  # pairs or triplets of anchors and rows besides
    are_finite: bool = False  # whether the host knows that anchors and rows are
    # Called with the arguments of the loss before it is computed without a call.
    watchers: Sequence[Callable[..., object]] = ()

    def all_pairs(self, first_row: int | None = None) -> Pairs:
        """Returns all pairs but self-pairs.

        Args:
            first_row: the index of the first row, if the rows are a part of all.
        """
        is_row = self.rows.is_row
        num_occupied = None if is_row is None else self.rows.num_rows
        return Pairs.all(
            self.anchor_labels, self.row_labels, self.self_pairs, is_row, num_occupied, first_row
        )

    def choose_pairs(self, distances: Distances) -> Pairs:
        """Returns the pairs that the miner chooses, by default all, and the caller's pairs."""
        pairs = self.all_pairs()
        if self.miner is not None:
            fused = fused_miner_of(self.miner)
            if fused is not None:
                pairs = mine(fused, self.miner, distances, pairs)
            elif draws_by_distance(self.miner):
                pairs = mine_by_distance(self.miner, distances, pairs)
            else:
                pairs = mine_by_pml(self.miner, distances, pairs)
        return pairs if self.user_pairs is None else pairs.and_user_pairs(self.user_pairs)

    def without_empty_rows(self) -> Comparison:
        """Returns the same comparison with the occupied rows alone, whose number the host reads."""
        rows = self.rows.with_number_on_host()
        return self._replace(rows=rows, row_labels=self.row_labels[: rows.most_rows_here])


def loss_against(compared: Comparison, fused: FusedLoss | None) -> Tensor:
    """Returns the loss of the anchors against the rows, a scalar if the loss's reducer returns one.

    Args:
        compared: anchors, rows and the loss.
        fused: how to compute it without a call; None: it is called.
    """
    if fused is None or not fused.has_terms or not is_fused_miner(compared.miner):
        compared = compared.without_empty_rows()
    if fused is None:
        return _loss_by_pml(compared)
    return sum_terms(compared, fused).with_graph()


def loss_within(compared: Comparison, fused: FusedLoss) -> Tensor:
    """Returns the loss of a batch by itself: its rows are the anchors, and get a gradient as the anchors do.

    A pair measures the same from both of its ends, so the gradient at a row is the one that an anchor gets
    from the transposed matrix.
    """
    sums = sum_terms(compared, fused)
    at_anchors = sums.at_anchors
    sums.at_anchors = lambda gradient: at_anchors(gradient + gradient.t())
    return sums.with_graph()


def _loss_by_pml(compared: Comparison) -> Tensor:
    """Returns the loss by its own code, which gets index tensors and a tensor of rows."""
    distances = Distances(compared.anchors.detach(), compared.rows, compared.are_finite)
    arguments = _arguments(compared, compared.choose_pairs(distances))
    with looks_again():
        value: Tensor = compared.loss(*arguments)
    return nan_unless_zero(value, distances.zero_if_finite())  # type: ignore[no-any-return]


# -- the sums of a fused loss's terms ----------------------------------------------------------------------


def sum_terms(compared: Comparison, fused: FusedLoss) -> LossSums:
    """Returns the sums of a fused loss's terms, with their gradients."""
    sums = LossSums(fused, compared.anchors)
    distances = Distances(compared.anchors.detach(), compared.rows, compared.are_finite)
    pairs = compared.choose_pairs(distances)
    for watch in compared.watchers:
        watch(*_arguments(compared.without_empty_rows(), pairs))
    if isinstance(fused.loss, GenericPairLoss):
        sums.num_pairs = pairs.counts
    if not fused.has_terms:
        _add_angular_terms_(sums, compared, pairs)
    else:
        _check_listed_pairs(fused.loss, pairs)
        _add_terms_(sums, distances, pairs)
    sums.zero_if_finite = distances.zero_if_finite()
    return sums


def _add_terms_(sums: LossSums, distances: Distances, pairs: Pairs) -> None:
    """Adds the terms of all anchors, some after the other where their matrices would leave the cache."""
    fused, distance = sums.fused, sums.fused.loss.distance
    mat = distances.measure(distance)
    sums.at_anchors = lambda gradient: distances.at_anchors(distance, gradient)
    overwrites = distances.is_needed_once(distance)
    at_once = _anchors_at_once(fused, pairs, mat)
    if at_once >= mat.shape[0]:
        for found in _terms_of(fused, mat, pairs, sums.is_learning, overwrites):
            gradients = found.gradients
            if gradients:
                gradients = [distances.at_products(distance, gradients[0]), *gradients[1:]]
            sums.parts.append(found._replace(gradients=gradients))
        return
    matrices: list[Tensor] = []  # the gradients, for each part of the loss
    if sums.is_learning:
        matrices = [torch.empty_like(mat) for _ in fused.reducers]
        if is_symmetric(distance):  # another's gradient needs the matrix once more
            matrices[-1] = mat
    for anchors in slices(len(mat), at_once):
        parts = _terms_of(fused, mat[anchors], pairs.at(anchors), sums.is_learning, overwrites)
        for found in parts:
            if found.gradients:
                found.gradients[0] = distances.at_products(distance, found.gradients[0], anchors)
        for found, matrix in zip(parts, matrices, strict=False):  # none without gradients
            matrix[anchors] = found.gradients[0]
            found.gradients[0] = matrix
        sums.add_(parts)


class PartSum(NamedTuple):
    """The sum of the terms of a part of a loss, such as that of its positive pairs."""

    value: Tensor  # 0-d
    divisor: Tensor  # how many terms there are, or what their reducer divides by
    gradients: list[Tensor]  # at the matrix (or the anchors) and at what is learned; none without gradients


def _terms_of(
    fused: FusedLoss, mat: Tensor, pairs: Pairs, is_learning: bool, overwrites: bool
) -> list[PartSum]:
    """Returns the sums of the terms of anchors, for each part of the loss, with gradients at the matrix.

    It may overwrite the matrix, if it is told so.
    """
    if fused.fused.has_derivatives and not fused.learned:
        found = _terms_by_derivatives(fused, mat, pairs, is_learning, overwrites)
        if found is not None:
            return [found]
    return _terms_by_autograd(fused, mat, pairs, is_learning)


def _terms_by_autograd(fused: FusedLoss, mat: Tensor, pairs: Pairs, is_learning: bool) -> list[PartSum]:
    """Does what ``_terms_of`` does for every loss."""
    assert fused.fused.terms is not None
    over_rows = AllRows(has_gradient=is_learning)
    leaf = mat.detach().requires_grad_(is_learning)
    with torch.set_grad_enabled(is_learning):
        terms = fused.fused.terms(fused.loss, leaf, pairs, over_rows)
        totals = [terms[name].totals(reducer) for name, reducer in fused.reducers.items()]
    found, num_inputs = [], 1 + len(fused.learned)
    inputs = [leaf, *fused.learned, *over_rows.results]
    for number, ((values, count), (name, reducer)) in enumerate(
        zip(totals, fused.reducers.items(), strict=True)
    ):
        gradients: list[Tensor] = []
        if is_learning:
            at: Sequence[Tensor | None] = [None] * len(inputs)
            if values.requires_grad:
                # What is learned may be part of the values of the reductions too, which come next.
                is_last = number == len(totals) - 1 and not over_rows.reductions
                options = {"retain_graph": not is_last, "allow_unused": True}
                at = torch.autograd.grad(values, inputs, torch.ones_like(values), **options)
            of_results, wholes = at[num_inputs:], [None] * len(over_rows.results)
            by_results = gradients_of_values(over_rows.reductions, of_results, wholes, inputs[:num_inputs])
            gradients = _with_zeros(added(by_results, at[:num_inputs]), inputs[:num_inputs])
        divisor = terms[name].divisor if type(reducer) is DivisorReducer else None
        with torch.no_grad():
            value = values.sum()
        found.append(PartSum(value, count if divisor is None else divisor, gradients))
    return found


def _terms_by_derivatives(
    fused: FusedLoss, mat: Tensor, pairs: Pairs, is_learning: bool, overwrites: bool
) -> PartSum | None:
    """Does what ``_terms_of`` does, by the derivatives that the loss gives, in half of the time of autograd.

    It returns None where ``LogSumExp`` reduces a multiple of the matrix in place of the matrix itself.
    """
    compute, over_rows = fused.fused.terms, AllRows(overwrites=mat if overwrites else None)
    assert compute is not None
    (elements,), (reducer,) = compute(fused.loss, mat, pairs, over_rows).values(), fused.reducers.values()
    assert isinstance(elements, Elements)
    assert elements.at_results is not None
    if not all(reduction.values is mat for reduction in over_rows.reductions):
        return None
    value, divisor, counted = elements.total_of_anchors(reducer)
    if not is_learning:
        return PartSum(value, divisor, [])
    at_matrix = None
    for reduction, derivative in zip(over_rows.reductions, elements.at_results, strict=True):
        at_matrix = reduction.gradient(derivative * counted, None, at_matrix)
    assert at_matrix is not None
    return PartSum(value, divisor, [at_matrix])


def _with_zeros(gradients: Sequence[Tensor | None], inputs: Sequence[Tensor]) -> list[Tensor]:
    """Returns the gradients on the device of the first input, with zeros in place of None."""
    both = zip(gradients, inputs, strict=True)
    return [
        (torch.zeros_like(x) if gradient is None else gradient).to(inputs[0].device) for gradient, x in both
    ]


def _check_listed_pairs(loss: Any, pairs: Pairs) -> None:
    """Lets PML refuse pairs that are listed as positive and as negative, as it has done since 2.9."""
    is_listed = pairs.num_pairs is None and pairs.positive.dtype != torch.bool
    is_checked = hasattr(loss, "_assert_either_pos_or_neg")
    if is_listed and is_checked and loss.loss_method == loss.mat_based_loss:
        loss._assert_either_pos_or_neg(pairs.positive, pairs.negative)


def _anchors_at_once(fused: FusedLoss, pairs: Pairs, mat: Tensor) -> int:
    """Returns for how many anchors the terms are computed at once: all, if they depend on each other."""
    num_anchors, num_listed = mat.shape
    if not (fused.anchors_are_independent and (pairs.triplets is None or isinstance(pairs.triplets, Ranges))):
        return num_anchors
    # torch.compile fuses what would leave the cache, and copies a matrix that is written in parts.
    if is_in_compiled_step():
        return num_anchors
    if getattr(fused.loss, "smooth_loss", False):  # lists triplets
        num_listed *= int(pairs.masks()[0].sum(dim=1).max())
    return anchors_at_once(num_listed, mat.device)


def _add_angular_terms_(sums: LossSums, compared: Comparison, pairs: Pairs) -> None:
    """Adds the terms of PML's AngularLoss by its own code, some positive pairs at a time."""
    loss: AngularLoss = compared.loss
    (reducer,) = sums.fused.reducers.values()
    leaf = compared.anchors.detach().requires_grad_(sums.is_learning)
    for elements in _angular_terms(loss, leaf, compared.rows, pairs):
        values, count = elements.totals(reducer)
        value, gradients = values.sum(), []
        if sums.is_learning:
            gradients = list(torch.autograd.grad(value, [leaf]))
        sums.add_([PartSum(value.detach(), count, gradients)])


def _angular_terms(loss: AngularLoss, anchors: Tensor, stored: Rows, pairs: Pairs) -> Iterator[Elements]:
    a1, p = listed(pairs.positive > 0)  # once each, as triplets hold a pair with every negative
    if len(a1) == 0 or not pairs.negative.any():
        return
    rows = stored.read(anchors.dtype)
    at_once = 8 * anchors_at_once(len(rows), rows.device)  # for each part all rows are read
    for anchors_of_pairs, indices in zip(a1.split(at_once), p.split(at_once), strict=True):
        # All rows of other classes are its negatives, whatever is listed, but something has to be listed.
        lists = anchors_of_pairs, indices, a1[:1], p[:1]
        found = loss.compute_loss(anchors, pairs.labels, lists, rows, pairs.row_labels)  # no hook sees it
        yield Elements(found["loss"]["losses"].flatten(), pairs.positive[anchors_of_pairs, indices])


def _arguments(compared: Comparison, pairs: Pairs) -> tuple[Any, ...]:
    """Returns what PML's loss is called with, or would be; rows and their labels are copies."""
    rows = compared.rows.read(compared.anchors.dtype)
    return compared.anchors, compared.anchor_labels, pairs.lists(), rows, compared.row_labels.clone()


# -- from sums to the loss ---------------------------------------------------------------------------------


class LossSums:
    """The sums, divisors and gradients of some anchors' terms, from which the loss follows.

    Ranks that share the anchors of a batch add up their ``totals`` before the loss is computed.
    """

    def __init__(self, fused: FusedLoss, anchors: Tensor) -> None:
        self.fused = fused
        self.inputs = [anchors, *fused.learned]
        self.is_learning = torch.is_grad_enabled() and (anchors.requires_grad or bool(fused.learned))
        self.parts: list[PartSum] = []
        # Makes the first gradient of the parts that at the anchors.
        self.at_anchors: Callable[[Tensor], Tensor] = lambda gradient: gradient
        self.num_pairs: Sequence[Tensor | int] = [0, 0]  # positive and negative ones
        self.zero_if_finite: Tensor | float = 0.0  # NaN if what is compared is not finite

    def add_(self, parts: list[PartSum]) -> None:
        """Adds the terms of other anchors; gradients at the same matrix are the same tensor."""
        if not self.parts:
            self.parts = parts
            return
        for number, (before, new) in enumerate(zip(self.parts, parts, strict=True)):
            gradients = [x if x is y else x + y for x, y in zip(before.gradients, new.gradients, strict=True)]
            self.parts[number] = PartSum(before.value + new.value, before.divisor + new.divisor, gradients)

    def _begin(self) -> None:
        """Begins with zeros, if there are no terms."""
        if not self.parts:
            like = self.inputs[0].detach()
            inputs = self.inputs if self.is_learning else []
            for _ in self.fused.reducers:
                zeros = [torch.zeros_like(x, device=like.device).detach() for x in inputs]
                self.parts.append(PartSum(like.new_zeros(()), like.new_zeros(()), zeros))

    @property
    def totals(self) -> Tensor:
        """k sums, k divisors, the 2 numbers of pairs, and zero or NaN, all float64.

        They may be set to those of all ranks.
        """
        self._begin()
        values, divisors, _ = zip(*self.parts, strict=True)
        numbers, device = (*values, *divisors, *self.num_pairs, self.zero_if_finite), self.inputs[0].device
        return torch.stack([torch.as_tensor(x, device=device).double() for x in numbers])

    @totals.setter
    def totals(self, totals: Tensor) -> None:
        k, numbers = len(self.parts), totals.to(self.inputs[0].device).unbind()
        for number, part in enumerate(self.parts):
            self.parts[number] = part._replace(value=numbers[number], divisor=numbers[k + number])
        self.num_pairs, self.zero_if_finite = list(numbers[2 * k : -1]), numbers[-1]

    def with_graph(self, num_ranks: int = 1) -> Tensor:
        """Returns the loss, whose backward pass returns the gradients, times the number of ranks."""
        self._begin()
        divisors, like = [part.divisor for part in self.parts], self.inputs[0]
        factors = reducing_factors(self.fused, divisors, self.num_pairs, self.zero_if_finite, like)
        value = _weighted([part.value for part in self.parts], factors).to(like)
        if not self.is_learning:
            return value
        at_matrix, *of_learned = zip(*(part.gradients for part in self.parts), strict=True)
        if len(factors) == 1:  # which the backward pass multiplies with
            factor, gradients = factors[0], [self.at_anchors(at_matrix[0]), *(x for (x,) in of_learned)]
        else:
            factor, gradients = 1.0, [self.at_anchors(_weighted(at_matrix, factors))]
            gradients += [_weighted(x, factors) for x in of_learned]
        if num_ranks != 1:
            factor = factor * num_ranks
        return with_known_gradients(value, gradients, self.inputs, factor)


def _weighted(values: Sequence[Tensor], factors: Sequence[Tensor | float]) -> Tensor:
    """Returns the sum of values times factors."""
    weighted = values[0] * factors[0]
    for value, factor in zip(values[1:], factors[1:], strict=True):
        if isinstance(factor, Tensor):
            weighted = torch.addcmul(weighted, value, factor.to(value.dtype))
        else:
            weighted = torch.add(weighted, value, alpha=factor)
    return weighted


def reducing_factors(
    fused: FusedLoss,
    divisors: Sequence[Tensor],
    num_pairs: Sequence[Tensor | int],
    zero: Tensor | float,
    like: Tensor,
) -> list[Tensor | float]:
    """Returns by what the reducers multiply the sums of the terms, for each part of the loss.

    They are numbers of the host where it can read them.

    Args:
        fused: the loss.
        divisors: for each part the number of terms, or what its reducer divides by instead.
        num_pairs: how many pairs are positive, and how many are negative.
        zero: 0, or NaN to make the loss and all its gradients NaN.
        like: a tensor of the loss's dtype and device.
    """
    has_terms: Tensor | float = 1.0
    if isinstance(fused.loss, GenericPairLoss):
        # PML's are zero for one positive and one negative pair, or fewer.
        positive, negative = map(number_if_readable, num_pairs)
        needs_both = fused.fused.needs_both
        # Of many pairs the product of both may be beyond int64.
        has_terms = positive * at_most(negative, 2) > 1 if needs_both else (positive > 1) | (negative > 1)
    has_terms = has_terms + number_if_readable(zero)
    factors: list[Tensor | float] = []
    for reducer, of_part in zip(fused.reducers.values(), divisors, strict=True):
        divisor = number_if_readable(of_part)
        factor: Tensor | float = has_terms
        if type(reducer) is not SumReducer:
            at_least_one = divisor.clamp_min(1).to(like) if isinstance(divisor, Tensor) else max(divisor, 1)
            factor = has_terms / at_least_one
        if type(reducer) is DivisorReducer:  # PML's result is 0 for a divisor of 0, whatever the sum
            factor = factor * (divisor > 0)
        factors.append(factor.to(like) if isinstance(factor, Tensor) else factor)
    return factors


# -- the graph ---------------------------------------------------------------------------------------------


def with_known_gradients(
    value: Tensor, gradients: Sequence[Tensor], inputs: Sequence[Tensor], factor: Tensor | float = 1.0
) -> Tensor:
    """Returns a loss whose graph holds its gradients, and nothing else of what computed it.

    Args:
        value: the loss, which nobody else holds.
        gradients: its gradients at the inputs, but for the factor; none if it has no gradient.
        inputs: the anchors, and what is learned.
        factor: what the gradients are multiplied with.
    """
    if not gradients:
        return value
    if isinstance(factor, Tensor):
        gradients, factor = [gradient * factor for gradient in gradients], 1.0
    loss: Tensor = _KnownGradients.apply((value, gradients, factor), *inputs)
    return loss


class _KnownGradients(torch.autograd.Function):
    """Its gradients cannot be differentiated again."""

    @staticmethod
    def forward(ctx: Any, known: tuple[Tensor, Sequence[Tensor], float], *inputs: Tensor) -> Tensor:
        value, gradients, ctx.factor = known
        ctx.save_for_backward(*gradients)
        ctx.devices = [x.device for x in inputs]
        ctx.sums = []
        if not is_in_compiled_step():
            with torch.enable_grad():
                # Numbers whose graphs lead to the inputs, and which do not keep these in memory as the inputs
                # themselves would be.
                ctx.sums = list(map(torch.sum, inputs))
        return value

    @staticmethod
    def backward(ctx: Any, loss_gradient: Tensor) -> tuple[Tensor | None, ...]:
        factor = loss_gradient if ctx.factor == 1 else loss_gradient * ctx.factor
        both = zip(ctx.saved_tensors, ctx.devices, strict=True)
        gradients = [(factor * gradient).to(device) for gradient, device in both]
        if ctx.sums and torch.is_grad_enabled():  # create_graph=True; a penalty would count as constant
            gradients = [x + _Unknown.apply(y) for x, y in zip(gradients, ctx.sums, strict=True)]
        return None, *gradients


class _Unknown(torch.autograd.Function):
    """Zero, which raises when it is differentiated."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return torch.zeros_like(x)

    @staticmethod
    def backward(ctx: Any, _: Tensor) -> None:
        raise RuntimeError(
            "the loss of a memory has no second derivative: compute it with PML's code on embedding_memory"
        )
