"""Asserts that batch normalization on two ranks is that of a single process with the batch of both."""

from __future__ import annotations

import torch
from torch import Tensor, distributed, nn

from benchmarks.engine.sync_batch_norm import synchronise_batch_norm

STEPS = 2
SPLITS = [[4, 4], [3, 5], [1, 7]]
CASES = {
    "1d without scale and bias": (lambda: nn.BatchNorm1d(3, affine=False), [8, 3]),
    "2d with scale and bias": (lambda: nn.BatchNorm2d(3, affine=True), [8, 3, 4, 2]),
}


def build_model(name: str) -> nn.Module:
    torch.manual_seed(1)
    model = nn.Sequential(CASES[name][0]()).double()
    for parameter in model.parameters():
        nn.init.normal_(parameter)  # a scale of 1 and a bias of 0 would do nothing
    return model


def results_of(model: nn.Module, name: str, rows: slice) -> dict[str, Tensor]:
    """What two steps and one evaluation with these rows of the batches give."""
    generator = torch.Generator().manual_seed(0)
    results = {}
    for step in range(STEPS):
        batch, pull = torch.randn(2, *CASES[name][1], dtype=torch.float64, generator=generator)
        inputs = (2 * batch + step)[rows].requires_grad_()
        outputs = model(inputs)
        (outputs * pull[rows]).sum().backward()
        results |= {f"outputs of step {step}": outputs.detach(), f"gradient of step {step}": inputs.grad}
    results["outputs in eval mode"] = model.eval()(inputs.detach()).detach()
    return results


def of_all_ranks(gradient: Tensor) -> Tensor:
    distributed.all_reduce(gradient)
    return gradient


def assert_equal(one: Tensor, other: Tensor, what: str) -> None:
    torch.testing.assert_close(one, other, rtol=1e-10, atol=1e-10, msg=lambda text: f"{what}: {text}")


def check(name: str, sizes: list[int], rank: int) -> None:
    first = sum(sizes[:rank])
    rows = slice(first, first + sizes[rank])
    alone = build_model(name)
    expected = results_of(alone, name, slice(None))
    model = synchronise_batch_norm(build_model(name), torch.device("cpu"))
    where = f"{name}, batches of {sizes}"
    for what, result in results_of(model, name, rows).items():
        assert_equal(result, expected[what][rows], f"{where}, {what}")
    for (what, one), other in zip(model.named_parameters(), alone.parameters(), strict=True):
        assert_equal(of_all_ranks(one.grad), other.grad, f"{where}, gradient of {what}")
    for (what, one), other in zip(model.named_buffers(), alone.buffers(), strict=True):
        assert_equal(one, other, f"{where}, {what}")


def check_all() -> None:
    for name in CASES:
        for sizes in SPLITS:
            check(name, sizes, distributed.get_rank())
