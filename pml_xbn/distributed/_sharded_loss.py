"""The loss of the anchors of all ranks against rows that are spread over them, a part of the rows at a time.

A loss needs reductions over all rows, such as log-sums, before it has terms, and the sum of the terms
before it has a gradient. So a rank goes through its rows up to three times: first for the reductions, which
ranks merge, then for the terms, and last for the gradient. What it has computed of a part of the rows it
keeps while that fits a budget, and computes it again otherwise. So the budget bounds what a rank takes beside
its rows, however many there are, and where there are few a rank computes nothing twice.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from .._arithmetic import slices, widest
from ..pairwise._distances import Distances
from ..pairwise._fused_losses import Elements, Terms
from ..pairwise._loss import Comparison, reducing_factors
from ..pairwise._miners import record_num_pairs
from ..pairwise._reductions import (
    Count,
    Largest,
    LogSumExp,
    Max,
    Reduction,
    Sum,
    added,
    gradients_of_values,
)
from ..pairwise._supported import FusedLoss, fused_miner_of
from ._group import Group
from ._shards import ShardedRows


class Budget(NamedTuple):
    """What a rank takes, beside its rows and all anchors, at most; in bytes."""

    part: int  # to compute a part of the rows
    large_part: int  # to compute one of few rows with very many anchors
    read_rows: int  # for the rows of a part as they are now, where they are stored in another way
    graphs: int  # for parts that are kept with all that their gradient needs
    matrices: int  # for the matrices of products of other parts


# On a CPU, what is computed of a part stays in the cache. A step takes some 100 MB more than what is kept.
BUDGETS = {
    "cpu": Budget(part=2**24, large_part=2**26, read_rows=2**25, graphs=2**27 + 2**26, matrices=2**27),
    "gpu": Budget(part=2**29, large_part=2**29, read_rows=2**29, graphs=2**29, matrices=2**28),
}
# So many numbers of a pair of anchor and row are held at once, from its product to its gradient.
_NUMBERS_OF_A_PAIR = 16
# Every part adds to the gradient of all anchors: of fewer rows, that would be most of the work.
_LEAST_ROWS = 512

_Known = Sequence[Sequence[Tensor]]  # results of reductions over all rows, in the order they were asked for


def sharded_loss(compared: Comparison, fused: FusedLoss) -> tuple[Tensor, list[Tensor]]:
    """Returns the loss of all anchors against the rows of all ranks, and its gradients, if any.

    The first gradient is that of the anchors. Summed over ranks it is what one process would have, times the
    number of ranks, by which DDP divides. The others are of what is learned, and the mean of these over ranks
    is what one process would have.
    """
    return _ShardedLoss(compared, fused).value()


class _NotKnownError(Exception):
    """A loss or miner has asked for reductions over all rows that are not known yet."""


class _KnownResults:
    """Reductions over the rows of all ranks: it returns the results that are known, and then raises."""

    def __init__(self, known: _Known, computed: Sequence[Sequence[Reduction]] = ()) -> None:
        self._known, self._num_told = known, 0
        # Reductions of this part in an earlier run, in the order they were asked for.
        self._computed = computed
        self.reductions: Sequence[Reduction] = []  # which were asked for last, over a part of the rows

    def __call__(self, *reductions: Reduction) -> Sequence[Tensor]:
        self.reductions = reductions
        if self._num_told < len(self._computed):
            for reduction, computed in zip(reductions, self._computed[self._num_told], strict=True):
                reduction.reuse_(computed)
        if self._num_told == len(self._known):
            raise _NotKnownError
        self._num_told += 1
        return self._known[self._num_told - 1]


class _Run(NamedTuple):
    """The loss as it is computed from a part of the rows, once the results over all rows are known."""

    inputs: list[Tensor]  # the matrix, and what is learned
    distances: Distances
    reductions: Sequence[Reduction]  # the last ones
    terms: Terms
    totals: list[tuple[Tensor, Tensor]]  # of these terms, by the parts of the loss: values, and their number


class PartOfRows:
    """A part of this rank's rows, with what is kept of it."""

    def __init__(self, compared: Comparison, fused: FusedLoss, keeps_graph: bool, keeps_matrix: bool) -> None:
        self._keeps_graph, self._keeps_matrix = keeps_graph, keeps_matrix
        self._compared, self._fused = compared, fused
        self._distances: Distances | None = None
        self._computed: list[Sequence[Reduction]] = []
        self._run: _Run | None = None
        # How many chosen pairs are positive and negative; written in place, as what is allocated between the
        # large tensors of two parts, and kept, would leave gaps that these do not fit in.
        self.num_pairs = torch.zeros(2, dtype=torch.int64, device=compared.anchors.device)
        # NaN if anchors or these rows are not finite.
        self.zero_if_finite = compared.anchors.detach().new_zeros(())

    def ask(self, known: _Known) -> Sequence[Reduction] | None:
        """Returns the reductions that the loss needs next, over these rows; None if it knows all it needs."""
        over_rows = _KnownResults(known)
        try:
            with torch.no_grad():
                self._compute(over_rows)
        except _NotKnownError:
            if self._keeps_graph:
                self._computed.append(over_rows.reductions)
            return over_rows.reductions
        return None

    def run(self, known: _Known, is_learning: bool) -> _Run:
        """Returns the loss as it is computed once all is known."""
        if self._run is not None:
            return self._run
        over_rows = _KnownResults(known, self._computed)
        self._computed = []
        with torch.set_grad_enabled(is_learning):
            distances, leaf, terms = self._compute(over_rows, is_learning)
            totals = [terms[name].totals(reducer) for name, reducer in self._fused.reducers.items()]
        run = _Run([leaf, *self._fused.learned], distances, over_rows.reductions, terms, totals)
        self._run = run if self._keeps_graph else None
        return run

    def forget(self) -> None:
        """Frees what is kept."""
        self._run = self._distances = None
        self._computed = []

    def _compute(
        self, over_rows: _KnownResults, is_learning: bool = False
    ) -> tuple[Distances, Tensor, Terms]:
        """Returns distances, their matrix and the terms, or raises where a result is not known."""
        compared, rows = self._compared, self._compared.rows
        assert isinstance(rows, ShardedRows)
        distances = self._distances or Distances(compared.anchors.detach(), rows)
        self._distances = distances if self._keeps_graph or self._keeps_matrix else None
        pairs = compared.all_pairs(rows.first)
        if compared.miner is not None:
            fused_miner = fused_miner_of(compared.miner)
            assert fused_miner is not None
            with torch.no_grad():
                mat = distances.measure(compared.miner.distance)
                pairs = fused_miner(compared.miner, mat, pairs, over_rows)
        self.num_pairs.copy_(
            torch.stack([torch.as_tensor(x, device=self.num_pairs.device) for x in pairs.counts])
        )
        leaf = distances.measure(self._fused.loss.distance).detach().requires_grad_(is_learning)
        self.zero_if_finite.fill_(distances.zero_if_finite())
        assert self._fused.fused.terms is not None
        return distances, leaf, self._fused.fused.terms(self._fused.loss, leaf, pairs, over_rows)


class _ShardedLoss:
    """A loss of all anchors against the rows of all ranks, as one rank computes it."""

    def __init__(self, compared: Comparison, fused: FusedLoss) -> None:
        rows, anchors = compared.rows, compared.anchors
        assert isinstance(rows, ShardedRows)
        self._group, self._miner, self._fused = rows.group, compared.miner, fused
        self._is_learning = torch.is_grad_enabled() and (anchors.requires_grad or bool(fused.learned))
        self._anchors = anchors.detach()
        self._parts = list(_parts_of_rows(compared._replace(anchors=self._anchors), rows, fused))
        self._known: list[list[Tensor]] = []
        self._differentiated: list[int] = []  # numbers of the last reductions that have a gradient
        # Terms of pairs are of the rows of a part; those of anchors are the same of all parts, on all ranks.
        self._has_terms_of_pairs = False

    def value(self) -> tuple[Tensor, list[Tensor]]:
        """Returns the loss, and its gradients, if any."""
        if self._miner is not None:
            self._miner.reset_stats()
        while self._reduce():
            pass
        sums, counts, num_pairs, zero, gradients = self._sum_terms()
        if self._miner is not None and (num_pairs.device.type == "cpu" or self._miner.collect_stats):
            record_num_pairs(self._miner, *num_pairs.tolist())
        found = reducing_factors(self._fused, counts.unbind(), num_pairs.unbind(), zero, sums)
        factors = torch.stack([torch.as_tensor(x, dtype=sums.dtype, device=sums.device) for x in found])
        value = (factors * sums).sum().to(self._anchors)
        return value, self._gradients(factors, gradients) if self._is_learning else []

    def _reduce(self) -> bool:
        """Computes over all rows what the loss needs next; returns whether it needed anything."""
        merged: list[Tensor] = []
        reductions: Sequence[Reduction] = []
        for part in self._parts:
            asked = part.ask(self._known)
            if asked is None:
                return False
            with torch.no_grad():
                found = [widest(reduction.part()) for reduction in asked]
                if merged:
                    found = [x.merged(*both) for x, *both in zip(asked, merged, found, strict=True)]
            merged, reductions = found, asked
        self._differentiated = [number for number, x in enumerate(reductions) if x.has_gradient]
        results = _merged_over_ranks(self._group, reductions, merged)
        for number in self._differentiated:
            results[number].requires_grad_(self._is_learning)
        self._known.append(results)
        return True

    def _sum_terms(self) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
        """Returns what follows from the terms on all ranks, for each of the k parts of the loss.

        These are the sums ``(k,)``, the counts ``(k,)``, the numbers of positive and negative pairs ``(2,)``,
        a zero that is NaN where something is not finite, and the gradients of the sums ``(k, r, a)`` at the
        results of the r reductions that have one.
        """
        at = [self._known[-1][number] for number in self._differentiated]
        sums = widest(self._anchors.new_zeros(len(self._fused.reducers)))
        counts, gradients = torch.zeros_like(sums), sums.new_zeros(len(sums), len(at), len(self._anchors))
        for part in self._parts:
            run = part.run(self._known, self._is_learning)
            terms = (run.terms[name] for name in self._fused.reducers)
            self._has_terms_of_pairs = any(isinstance(x, Elements) and x.values.ndim == 2 for x in terms)
            for number, (values, count) in enumerate(run.totals):
                sums[number] += values.detach().sum()
                counts[number] += count
                if at and values.requires_grad:
                    found = torch.autograd.grad(values.sum(), at, retain_graph=True, allow_unused=True)
                    for gradient, x in zip(gradients[number], found, strict=True):
                        gradient += 0 if x is None else x
            if not self._has_terms_of_pairs:
                break
        if not self._has_terms_of_pairs and self._group.rank > 0:  # they are to count once
            sums, counts, gradients = (torch.zeros_like(x) for x in (sums, counts, gradients))
        num_pairs = torch.stack([part.num_pairs for part in self._parts]).sum(dim=0)
        zero = torch.stack([part.zero_if_finite for part in self._parts]).sum(dim=0, keepdim=True)
        numbers = [sums, counts, num_pairs.to(sums), zero.to(sums), gradients.flatten()]
        of_all = self._group.sum(torch.cat(numbers)).split([len(x) for x in numbers])
        return of_all[0], of_all[1], of_all[2].long(), of_all[3].squeeze(0), of_all[4].view_as(gradients)

    def _gradients(self, factors: Tensor, of_sums: Tensor) -> list[Tensor]:
        """Returns the gradients of the loss, given those of the sums at the results of reductions."""
        inputs = [self._anchors, *self._fused.learned]
        gradients = [torch.zeros_like(x, device=self._anchors.device).detach() for x in inputs]
        weights = [x.to(self._anchors) for x in (factors.view(-1, 1, 1) * of_sums).sum(dim=0)]
        wholes = [self._known[-1][number].detach() for number in self._differentiated] if weights else []
        for part in self._parts:
            run = part.run(self._known, self._is_learning)
            is_first = part is self._parts[0] and self._group.rank == 0
            of_terms: Sequence[Tensor | None] = [None] * len(inputs)
            if self._has_terms_of_pairs or is_first:
                outputs = [
                    (values, factor.to(values).expand_as(values))
                    for (values, _), factor in zip(run.totals, factors, strict=True)
                    if values.requires_grad
                ]
                if outputs:
                    ends, of_ends = zip(*outputs, strict=True)
                    options = {"allow_unused": True, "retain_graph": True}
                    of_terms = torch.autograd.grad(ends, run.inputs, of_ends, **options)
            reductions = [run.reductions[number] for number in self._differentiated]
            of_reductions = gradients_of_values(reductions, weights, wholes, run.inputs)
            at_matrix, *of_learned = added(of_reductions, of_terms)
            distance = self._fused.loss.distance
            if at_matrix is not None:
                at_matrix = run.distances.at_products(distance, at_matrix)
                gradients[0] += run.distances.at_anchors(distance, at_matrix)
            for summed, x in zip(gradients[1:], of_learned, strict=True):
                summed += 0 if x is None else x.to(summed.device)
            part.forget()
        return [gradient.mul_(self._group.size) for gradient in gradients]


def _parts_of_rows(compared: Comparison, rows: ShardedRows, fused: FusedLoss) -> Iterator[PartOfRows]:
    """Yields the parts of this rank's rows, at least one; the first ones keep their graph or matrix."""
    anchors = compared.anchors
    budget = BUDGETS["cpu" if anchors.device.type == "cpu" else "gpu"]
    itemsize, num_anchors = anchors.element_size(), max(1, len(anchors))
    of_row = _NUMBERS_OF_A_PAIR * itemsize * num_anchors
    at_once = max(budget.part // of_row, min(_LEAST_ROWS, budget.large_part // of_row))
    at_once = max(1, min(at_once, budget.read_rows // (itemsize * anchors.shape[1])))
    graphs = budget.graphs // (at_once * of_row)
    matrices = budget.matrices // (at_once * num_anchors * itemsize)
    all_slices = list(slices(rows.most_rows_here, at_once)) or [slice(0, 0)]
    parts = zip(all_slices, rows.divided(all_slices), strict=True)
    for number, (rows_of_part, part) in enumerate(parts):
        of_part = compared._replace(rows=part, row_labels=compared.row_labels[rows_of_part])
        keeps_graph = number < max(1, graphs)
        yield PartOfRows(of_part, fused, keeps_graph, not keeps_graph and number < graphs + matrices)


def _merged_over_ranks(
    group: Group, reductions: Sequence[Reduction], parts: Sequence[Tensor]
) -> list[Tensor]:
    """Returns the results of reductions over the rows of all ranks, given what this rank's add to them.

    Whatever the number of reductions, ranks send each other three tensors of them at most.
    """

    def numbers_of(*types: type[Reduction]) -> list[int]:
        return [number for number, reduction in enumerate(reductions) if isinstance(reduction, types)]

    def sent(send: Callable[[Tensor], Tensor], values: dict[int, Tensor]) -> dict[int, Tensor]:
        return dict(zip(values, send(torch.stack(list(values.values()))), strict=True)) if values else {}

    rows_of_largest = numbers_of(Largest)
    own = {number: parts[number] for number in numbers_of(LogSumExp, Max)}
    own |= {number: parts[number][0] for number in rows_of_largest}
    largest = sent(group.max, own)
    # Of the ranks that have the largest value, the first row counts.
    own = {x: torch.where(parts[x][0] == largest[x], -parts[x][1], -torch.inf) for x in rows_of_largest}
    first = {x: torch.where(largest[x] > -torch.inf, -row, -1) for x, row in sent(group.max, own).items()}
    own = {number: parts[number] for number in numbers_of(Sum, Count)}
    own |= {number: (parts[number] - largest[number]).exp() for number in numbers_of(LogSumExp)}
    sums = sent(group.sum, own)
    for number in numbers_of(LogSumExp):
        sums[number] = sums[number].log() + largest[number]
    merged = largest | first | sums
    return [reduction.as_result(merged[number]) for number, reduction in enumerate(reductions)]
