"""Steps that the command for a GPU measures do what they say."""

from __future__ import annotations

import time
from typing import Any

import pytest
import torch

from benchmarks.cost.embeddings import DIM, Embeddings
from benchmarks.on_gpu.cost.case import Case
from benchmarks.on_gpu.cost.subject import draw_batch
from benchmarks.on_gpu.network import cells as network_cells
from benchmarks.on_gpu.network import networks, step
from benchmarks.on_gpu.steps import cells, run
from benchmarks.on_gpu.steps.ways import build_loss, build_step

CPU = torch.device("cpu")


def memory_after_steps(method: str) -> tuple[Any, list[torch.Tensor]]:
    """The memory, and the batches of its last two steps, that a measured step is built on."""
    cell = cells.Cell(64, 16, "float32", "none", "raise", method)
    case, data = Case("SupConLoss", "none", 64, 10, 16, "float32", ()), Embeddings(10, CPU)
    memory: Any = build_loss(cell, case, data, CPU)
    batches = [draw_batch(case, data) for _ in range(3)]
    take = build_step(cell, memory, batches[0])
    for batch in batches[1:]:
        take(batch)
    return memory, [x for batch in batches[1:] for x in batch]


@pytest.mark.parametrize("method", [cells.EAGER, cells.CAPTURED, cells.PML])
def test_a_measured_step_stores_the_batch_that_it_is_given(method: str) -> None:
    """So it is of a replay, whose batch is copied into what was captured."""
    memory, (_, labels, rows, last_labels) = memory_after_steps(method)
    end = memory.queue_idx or len(memory.label_memory)
    assert torch.equal(memory.label_memory[end - 16 : end], last_labels)
    torch.testing.assert_close(memory.embedding_memory[end - 16 : end], rows)
    assert torch.equal(memory.label_memory[(end - 32) % 64 : (end - 32) % 64 + 16], labels)


def test_the_products_are_those_of_the_batch_and_all_rows_forward_and_backward() -> None:
    case, data = Case("SupConLoss", "none", 64, 10, 16, "float32", ()), Embeddings(10, CPU)
    product = build_loss(cells.Cell(64, 16, "float32", "none", "raise", cells.PRODUCTS), case, data, CPU)
    value = product(torch.eye(DIM)[:16].requires_grad_(), torch.zeros(16))
    assert value.shape == (16, 64)
    assert value.grad_fn is not None


def test_what_a_step_keeps_the_host_for_is_measured_behind_the_network() -> None:
    host, added = run._behind(lambda: time.sleep(0.05), lambda: time.sleep(0.02), CPU, 3)
    assert 20 <= host < 45
    assert 15 <= added < 60


@pytest.mark.parametrize("method", network_cells.METHODS)
def test_a_training_step_trains(method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if method == cells.COMPILED:
        pytest.skip("compiling takes half a minute; the step is that of the eager one")
    networks_built: list[torch.nn.Module] = []

    def build(name: str) -> torch.nn.Module:
        networks_built.append(networks.build(name))
        return networks_built[0]

    monkeypatch.setattr(step, "build", build)
    monkeypatch.setattr(step, "_RATE", 1e-2)
    cell = network_cells.Cell(networks.LAYERS, "bfloat16", 8, 32, method)
    take = step.build_step(cell, 32, CPU)
    before = [x.clone() for x in networks_built[0].parameters()]
    for _ in range(3):
        take()
    changed = [not torch.equal(a, b) for a, b in zip(before, networks_built[0].parameters(), strict=True)]
    # Biases of convolutions before a batch normalization have no gradient but for rounding.
    assert changed[0]
    assert changed[-2]
