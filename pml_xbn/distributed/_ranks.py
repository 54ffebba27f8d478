"""What ranks tell each other: errors, numbers, and the batch of all."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from itertools import accumulate
from typing import NamedTuple

import torch
from torch import Tensor, nn

from .._arithmetic import widest
from ..memory._batch import Batch
from ..memory._queue import Contents
from ..memory._rows import Rows
from ._group import Group, LostRankError

# Ranks compute their maps from the same sums, and round alike on machines that are alike.
_ROUNDING_OF_MAPS = 1e-4


@contextmanager
def same_draws(seed: int, device: torch.device) -> Iterator[None]:
    """Draws the same random numbers on all ranks in a block; the generators go on as if it had drawn none."""
    is_on_gpu = device.type == "cuda"
    with torch.random.fork_rng(range(torch.cuda.device_count()) if is_on_gpu else []):
        (torch.manual_seed if is_on_gpu else torch.default_generator.manual_seed)(seed)
        yield


class Exchange(AbstractContextManager["Exchange"]):
    """A block at whose end ranks tell each other numbers, and which raises on all ranks if it does on one."""

    by_rank: Tensor  # (ranks, k), float64, from the end of the block on

    def __init__(self, group: Group, size: int = 0) -> None:
        self.group = group
        self.values = torch.zeros(size, dtype=torch.float64)  # (k,); the block may set this rank's

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        if isinstance(error, LostRankError) or not (error is None or isinstance(error, Exception)):
            return  # an interrupt: nobody waits for the others
        own = torch.cat([torch.tensor([error is not None], device="cpu"), self.values.cpu()])
        by_rank = torch.stack(self.group.gather(own)).cpu()  # one wait for all
        has_failed, self.by_rank = by_rank.tensor_split([1], dim=1)
        if has_failed.any():
            raise_on_all(self.group, error)


def raise_on_all(group: Group, error: Exception | None) -> None:
    """Raises, on the ranks without an error, that of the first rank with one, which raises its own itself."""
    told = None if error is None else (isinstance(error, ValueError), f"{type(error).__name__}: {error}")
    messages = group.gather_objects(told)
    if error is None:
        rank = next(rank for rank, told in enumerate(messages) if told is not None)
        is_value_error, message = messages[rank]
        raise (ValueError if is_value_error else RuntimeError)(f"rank {rank} failed with {message}")


class Report(NamedTuple):
    """What a rank tells the others of its batch."""

    num_refs: int
    num_anchors: int
    is_stored: bool
    is_finite: bool
    has_pairs: bool
    seed: int  # for draws that are the same on all ranks
    can_share: bool  # it can compute the loss of its own anchors by itself
    is_alike: bool  # it knows that its memory is that of the others


def gather_reports(
    group: Group,
    call: str,
    make: Callable[[], Batch],
    *,
    can_share: Callable[[], bool] = lambda: False,
    is_alike: bool = True,
    **state: int,
) -> tuple[Batch, list[Report]]:
    """Returns this rank's batch, and the reports of all.

    It raises on all ranks if ``make`` or ``can_share`` does on one, or their states differ.
    """
    group.call = call
    with Exchange(group, len(Report._fields) + len(state) + 4) as exchange:
        batch = make()
        seed = int(torch.randint(2**31, ()))
        pairs = batch.user_pairs is not None
        sizes = len(batch.refs), len(batch.anchors)
        report = Report(*sizes, batch.is_stored, batch.is_finite, pairs, seed, can_share(), is_alike)
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


@torch.no_grad()
def check_alike(group: Group, contents: Contents) -> None:
    """Raises on all ranks where they hold other rows, labels or samples. Ranks send a number for each row."""
    rows = contents.rows.with_number_on_host()
    num_rows = rows.most_rows_here
    sketch = _sketch(rows)
    # Ranks on GPUs may round rows otherwise. That is small beside the spread of the rows.
    rounding = torch.finfo(rows.stored.dtype).eps ** 0.5
    for name, values, tolerance in (
        ("label_memory", contents.labels[:num_rows], 0.0),
        ("id_memory", contents.ids[:num_rows], 0.0),
        ("embedding_memory", sketch, rounding),
    ):
        least, most = _least_and_most(group, values)
        centred = most.double() - most.double().mean()
        allowed = tolerance * (centred.square().mean().sqrt() + rounding * most.abs().amax())
        indices = (most - least > allowed).nonzero().flatten().tolist()
        if indices:
            raise ValueError(
                f"{name} differs between ranks 0 to {group.size - 1} in {len(indices)} of {num_rows} rows, "
                f"from row {indices[0]} on: load one checkpoint on all ranks, and edit rows alike on all"
            )


def check_maps_alike(group: Group, contents: Contents) -> None:
    """Raises on all ranks where their parts of the rows are read through other maps."""
    maps = torch.stack(tuple(contents.rows.affine))
    least, most = _least_and_most(group, maps)
    if (most - least > _ROUNDING_OF_MAPS * (most.abs() + most[0].abs())).any():
        raise ValueError(
            f"the maps of the rows that are spread over ranks 0 to {group.size - 1} differ, so they are not "
            "of one memory: load one checkpoint on all ranks, with torch.distributed.checkpoint"
        )


def check_adapters_alike(group: Group, adapters: Sequence[nn.Module]) -> None:
    """Raises on all ranks where their adapters hold other estimates. Ranks send a number for each."""
    if not adapters:
        return
    sketches = torch.stack([_sketch_of_state(adapter) for adapter in adapters])
    least, most = _least_and_most(group, sketches)
    is_other = most - least > _ROUNDING_OF_MAPS * (1 + most.abs())
    if is_other.any():
        name = type(adapters[int(is_other.nonzero()[0])]).__name__
        raise ValueError(
            f"the state of the adapter {name} differs between ranks 0 to {group.size - 1}: load one "
            "checkpoint on all ranks"
        )


def _least_and_most(group: Group, values: Tensor) -> tuple[Tensor, Tensor]:
    """Returns the smallest and the largest of the ranks' values."""
    return -group.max(-values), group.max(values)


def _sketch_of_state(module: nn.Module) -> Tensor:
    """Returns a number by which the state of a module can be told from another, 0-d float64."""
    parts = [x.detach().flatten() for x in module.state_dict().values() if isinstance(x, Tensor)]
    if not parts:
        return torch.zeros((), dtype=torch.float64)
    values = torch.cat([widest(part) for part in parts])
    weights = torch.linspace(1, 2, len(values), dtype=values.dtype, device=values.device)
    return (values * weights).nan_to_num_(0.0, 0.0, 0.0).sum().cpu()  # beside those of none


def _sketch(rows: Rows) -> Tensor:
    """Returns a number for each row ``(n,)``, by which rows can be told apart; 0 for rows of NaN."""
    weights = torch.linspace(
        1, 2, rows.stored.shape[1], dtype=rows.affine.scale.dtype, device=rows.stored.device
    )
    parts = [part.to(weights) @ weights for _, part in rows.parts(rows.dtype)]
    return torch.cat(parts).nan_to_num_(0.0, 0.0, 0.0)


def with_all_refs(group: Group, batch: Batch, reports: list[Report]) -> Batch:
    """Returns this rank's batch with the refs of all ranks, of which its own have gradients."""
    sizes, rank = [report.num_refs for report in reports], group.rank
    first = sum(sizes[:rank])
    return batch._replace(
        refs=_gathered(group, batch.refs, sizes),
        ref_labels=group.gather_rows(batch.ref_labels, sizes),
        own=None if batch.own is None else slice(first, first + sizes[rank]),
        ids=None if batch.ids is None else group.gather_rows(batch.ids, sizes),
    )


def with_all_anchors(group: Group, batch: Batch, reports: list[Report]) -> Batch:
    """Returns this rank's batch with the anchors of all, as a single process would have it.

    The mean over ranks of the gradients of a loss of it is the gradient of that process.
    """
    if batch.own is None:
        sizes = [report.num_anchors for report in reports]
        labels = group.gather_rows(batch.anchor_labels, sizes)
        return batch._replace(anchors=_gathered(group, batch.anchors, sizes), anchor_labels=labels)
    pairs = _gathered_pairs(group, batch, reports) if any(report.has_pairs for report in reports) else None
    whole = slice(0, len(batch.refs))
    return batch._replace(anchors=batch.refs, anchor_labels=batch.ref_labels, own=whole, user_pairs=pairs)


def _gathered(group: Group, own: Tensor, sizes: list[int]) -> Tensor:
    """Returns the rows of all ranks, with the gradient of this rank's."""
    rows, first = group.gather_rows(own.detach(), sizes), sum(sizes[: group.rank])
    own = own.view_as(own)
    if own.requires_grad:
        # Times the number of ranks: DDP divides by it, and no other rank has a gradient of these rows.
        own.register_hook(lambda gradient: gradient * group.size)
    return torch.cat([rows[:first], own, rows[first + len(own) :]])


def _gathered_pairs(group: Group, batch: Batch, reports: list[Report]) -> tuple[Tensor, ...]:
    """Returns the pairs or triplets that are given on all ranks, which number the batch of all."""
    own = batch.user_pairs
    by_rank = group.gather_objects(None if own is None else [indices.cpu() for indices in own])
    firsts = accumulate((report.num_refs for report in reports), initial=0)
    given = [[x + first for x in pairs] for pairs, first in zip(by_rank, firsts, strict=False) if pairs]
    if len({len(pairs) for pairs in given}) > 1:
        raise ValueError("indices_tuple is of triplets on one rank and of pairs on another: pass one kind")
    return tuple(torch.cat(indices).to(batch.refs.device) for indices in zip(*given, strict=True))
