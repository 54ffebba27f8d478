"""Four ranks in two groups of two, each of which trains with batches of its own."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache
from typing import Any

import torch
from across_ranks import mean_of_ranks, of_all_ranks
from torch import Tensor, distributed, nn

D, M, STEPS = 4, 17, 20
GROUPS = [0, 2], [1, 3]  # of the world, in which the numbers of ranks are others than in a group
# How many rows the two ranks of a group bring in a step.
LAYOUTS: dict[str, Callable[[int], list[int]]] = {
    "equal": lambda step: [3, 3],
    "unequal": lambda step: [1 + (2 * (rank + step)) % 5 for rank in range(2)],
    "one empty": lambda step: [0 if rank == step % 2 else 2 + step % 3 for rank in range(2)],
}


@cache
def own_group() -> distributed.ProcessGroup:
    groups = [distributed.new_group(ranks) for ranks in GROUPS]
    return groups[distributed.get_rank() % 2]


def batch_of(group: int, rank: int, step: int, size: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(100 * step + 10 * group + rank)
    inputs = torch.randn(size, D, dtype=torch.float64, generator=generator) + step
    return inputs, torch.randint(0, 3, (size,), generator=generator)


def own_batch(step: int, size: int) -> tuple[Tensor, Tensor]:
    return batch_of(distributed.get_rank() % 2, distributed.get_rank(own_group()), step, size)


def train(loss_fn: Any, layout: str, ranks: list[int], steps: int = STEPS) -> Iterator[list[Tensor]]:
    """Yields loss, mean gradient, rows and labels of all steps, of one rank or of a group's batches."""
    torch.manual_seed(0)
    model = nn.Linear(D, D, bias=False).double()
    group = loss_fn.process_group
    for step in range(steps):
        sizes = LAYOUTS[layout](step)
        parts = [batch_of(distributed.get_rank() % 2, rank, step, sizes[rank]) for rank in ranks]
        inputs, labels = map(torch.cat, zip(*parts, strict=True))
        model.zero_grad()
        loss = loss_fn(model(inputs), labels)
        loss.backward()
        gradient, memory = model.weight.grad, [loss_fn.embedding_memory, loss_fn.label_memory]
        if group is not None:
            gradient = mean_of_ranks(gradient, group)
        if loss_fn.shard_distributed:
            memory = [torch.cat(of_all_ranks(x, group)) for x in memory]
        yield [x.clone() for x in (loss.detach(), gradient, *memory)]


def assert_close(one: Any, other: Any) -> None:
    torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-10)
