"""What ranks tell each other: tensors, errors, and the batch of all."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from itertools import accumulate
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch import distributed as dist

from ..memory._batch import Batch


def is_distributed() -> bool:
    """Returns whether this process is one of several ranks."""
    return dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1


def gather_rows(rows: Tensor, sizes: list[int]) -> Tensor:
    """Returns the rows of all ranks in rank order, given how many each has, ``(sum(sizes), ...)``."""
    padded = rows.new_zeros(max(sizes), *rows.shape[1:], device=sending_device(rows.device))
    padded[: len(rows)] = rows
    by_rank = [torch.empty_like(padded) for _ in sizes]
    dist.all_gather(by_rank, padded)
    return torch.cat([x[:size] for x, size in zip(by_rank, sizes, strict=True)]).to(rows.device)


def all_reduced(values: Tensor, op: dist.ReduceOp.RedOpType = dist.ReduceOp.SUM) -> Tensor:
    """Returns what the values of all ranks reduce to, without gradient."""
    result = values.detach().to(sending_device(values.device), copy=True).contiguous()
    dist.all_reduce(result, op)
    return result.to(values.device)


def reduce_scattered(rows: Tensor, sizes: list[int]) -> Tensor:
    """Returns this rank's rows of the sum over ranks of rows in rank order, given how many each has."""
    padded = rows.new_zeros(len(sizes), max(sizes), *rows.shape[1:], device=sending_device(rows.device))
    for rank, part in enumerate(rows.split(sizes)):
        padded[rank, : len(part)] = part
    by_rank = torch.empty_like(padded)  # not reduce_scatter, which gloo lacks in some releases
    dist.all_to_all_single(by_rank, padded)
    return by_rank.sum(dim=0)[: sizes[dist.get_rank()]].to(rows.device)


def sending_device(device: torch.device) -> torch.device:
    """Returns the device from which tensors of another are sent: that one, if NCCL sends from it."""
    backends = str(dist.get_backend_config())  # such as cpu:gloo,cuda:nccl
    if "nccl" not in backends:
        return torch.device("cpu")
    if device.type == "cuda" or "cpu:" in backends:
        return device
    bound = getattr(dist.group.WORLD, "bound_device_id", None)  # since torch 2.2
    return bound or torch.device("cuda", torch.cuda.current_device())


@contextmanager
def same_draws(seed: int, device: torch.device) -> Iterator[None]:
    """Draws the same random numbers on all ranks in a block; the generators go on as if it had drawn none."""
    with torch.random.fork_rng(range(torch.cuda.device_count()) if device.type == "cuda" else []):
        torch.manual_seed(seed)
        yield


class Exchange(AbstractContextManager["Exchange"]):
    """A block at whose end ranks tell each other numbers, and which raises on all ranks if it does on one."""

    by_rank: Tensor  # (ranks, k), float64, from the end of the block on

    def __init__(self, size: int = 0) -> None:
        self.values = torch.zeros(size, dtype=torch.float64)  # (k,); the block may set this rank's

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        if error is not None and not isinstance(error, Exception):
            return  # an interrupt: nobody waits for the others
        own = torch.cat([torch.tensor([error is not None], device="cpu"), self.values.cpu()])
        own = own.to(sending_device(own.device))
        by_rank = [torch.empty_like(own) for _ in range(dist.get_world_size())]
        dist.all_gather(by_rank, own)
        has_failed, self.by_rank = torch.stack(by_rank).cpu().tensor_split([1], dim=1)  # one wait for all
        if not has_failed.any():
            return
        messages: list[Any] = [None] * len(by_rank)
        told = None if error is None else (isinstance(error, ValueError), f"{type(error).__name__}: {error}")
        dist.all_gather_object(messages, told)
        if error is None:
            rank = next(rank for rank, told in enumerate(messages) if told is not None)
            is_value_error, message = messages[rank]
            raise (ValueError if is_value_error else RuntimeError)(f"rank {rank} failed with {message}")


class Report(NamedTuple):
    """What a rank tells the others of its batch."""

    num_refs: int
    num_anchors: int
    is_stored: bool
    has_pairs: bool
    seed: int  # for draws that are the same on all ranks
    can_share: bool  # it can compute the loss of its own anchors apart


def reported(make: Callable[[], Batch], can_share: bool = False, **state: int) -> tuple[Batch, list[Report]]:
    """Returns this rank's batch, and the reports of all; raises on all if ``make`` does, or states differ."""
    with Exchange(len(Report._fields) + len(state) + 4) as exchange:
        batch = make()
        seed = int(torch.randint(2**31, ()))
        pairs = batch.user_pairs is not None
        report = Report(len(batch.refs), len(batch.anchors), batch.is_stored, pairs, seed, can_share)
        state |= {
            "embedding_size": batch.refs.shape[1],
            "bits_of_dtype": torch.finfo(batch.refs.dtype).bits,
            "has_enqueue_mask": batch.own is None,
            "has_sample_ids": batch.ids is not None,
        }
        exchange.values = torch.tensor([*report, *state.values()], dtype=torch.float64)
    reports, states = exchange.by_rank.long().tensor_split([len(Report._fields)], dim=1)
    for name, values in zip(state, states.t().tolist(), strict=True):
        if len(set(values)) > 1:
            raise ValueError(
                f"{name} is {values} on ranks 0 to {len(values) - 1}: build, load and call it alike on all"
            )
    return batch, [Report(*values) for values in reports.tolist()]


def with_all_refs(batch: Batch, reports: list[Report]) -> Batch:
    """Returns this rank's batch with the refs of all ranks, of which its own have gradients."""
    sizes, rank = [report.num_refs for report in reports], dist.get_rank()
    first = sum(sizes[:rank])
    return batch._replace(
        refs=_gathered(batch.refs, sizes),
        ref_labels=gather_rows(batch.ref_labels, sizes),
        own=None if batch.own is None else slice(first, first + sizes[rank]),
        ids=None if batch.ids is None else gather_rows(batch.ids, sizes),
    )


def with_all_anchors(batch: Batch, reports: list[Report]) -> Batch:
    """Returns this rank's batch with the refs of all as a single process would have it.

    The mean over ranks of the gradients of a loss of it is the gradient of that process.
    """
    if batch.own is None:
        sizes = [report.num_anchors for report in reports]
        labels = gather_rows(batch.anchor_labels, sizes)
        return batch._replace(anchors=_gathered(batch.anchors, sizes), anchor_labels=labels)
    pairs = _gathered_pairs(batch, reports) if any(report.has_pairs for report in reports) else None
    whole = slice(0, len(batch.refs))
    return batch._replace(anchors=batch.refs, anchor_labels=batch.ref_labels, own=whole, user_pairs=pairs)


def _gathered(own: Tensor, sizes: list[int]) -> Tensor:
    """Returns the rows of all ranks, with the gradient of this rank's."""
    rows, first = gather_rows(own.detach(), sizes), sum(sizes[: dist.get_rank()])
    # Times the number of ranks, as it is the only one of the gradients of these rows that are averaged.
    own = own.detach() + dist.get_world_size() * (own - own.detach())
    return torch.cat([rows[:first], own, rows[first + len(own) :]])


def _gathered_pairs(batch: Batch, reports: list[Report]) -> tuple[Tensor, ...]:
    """Returns the pairs or triplets that are given on all ranks, which number the batch of all."""
    own, by_rank = batch.user_pairs, list[Any]([None] * len(reports))
    dist.all_gather_object(by_rank, None if own is None else [indices.cpu() for indices in own])
    firsts = accumulate((report.num_refs for report in reports), initial=0)
    given = [[x + first for x in pairs] for pairs, first in zip(by_rank, firsts, strict=False) if pairs]
    if len({len(pairs) for pairs in given}) > 1:
        raise ValueError("indices_tuple is of triplets on one rank and of pairs on another: pass one kind")
    return tuple(torch.cat(indices).to(batch.refs.device) for indices in zip(*given, strict=True))
