"""The loop of docs/distributed.md, and a fill, on two ranks are those of one process with the whole batch."""

from __future__ import annotations

import re
from itertools import islice
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from across_ranks import from_first_rank
from pytorch_metric_learning.losses import SupConLoss
from ranks import on_ranks
from torch import Tensor, distributed, nn
from torch.utils.data import DataLoader, TensorDataset

from pml_xbn import XBNWrapper
from pml_xbn.training import ClassBatches, fill_from

PAGE = Path(__file__).parents[2] / "docs" / "distributed.md"


def loop_of_the_page() -> str:
    found = re.search(r"^```python\n(.*?)^```$", PAGE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    assert found is not None
    return found[1]


def in_one_process(images: Tensor, labels: Tensor, weights: dict[str, Tensor]) -> list[Tensor]:
    """Weights, rows and labels after two epochs, with batch normalization in eval()."""
    network = nn.Sequential(nn.Linear(5, 8), nn.BatchNorm1d(8))
    network.load_state_dict(weights)
    network.eval()
    loss_fn = XBNWrapper(SupConLoss(temperature=0.1), embedding_size=8, memory_size=64)
    optimizer = torch.optim.SGD(network.parameters(), lr=0.1)
    batches = ClassBatches(labels, m=4, batch_size=32)
    for epoch in range(2):
        batches.set_epoch(epoch)
        for batch in batches:
            optimizer.zero_grad()
            loss_fn(network(images[batch]), labels[batch]).backward()
            optimizer.step()
    return [network[0].weight.detach(), loss_fn.embedding_memory.double(), loss_fn.label_memory]


@on_ranks(2)
def test_the_loop_of_the_page_trains_as_one_process() -> None:
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        page: dict[str, Any] = {}
        with patch.object(distributed, "init_process_group"):
            exec(compile(loop_of_the_page(), PAGE.name, "exec"), page)
        torch.manual_seed(0)
        images = torch.randn(96, 5)
        torch.testing.assert_close(images, page["images"], rtol=0, atol=0)
        weights = nn.Sequential(nn.Linear(5, 8), nn.BatchNorm1d(8)).state_dict()
        expected = from_first_rank(lambda: in_one_process(images, page["labels"], weights))
    finally:
        torch.set_default_dtype(before)
    assert page["num_ranks"] == 2
    loss_fn, layer = page["loss_fn"], page["network"][0]
    assert not torch.allclose(layer.weight, weights["0.weight"], atol=1e-3)
    torch.testing.assert_close(layer.weight.detach(), expected[0], rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(loss_fn.embedding_memory.double(), expected[1], rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(loss_fn.label_memory, expected[2], rtol=0, atol=0)


@on_ranks(2)
def test_as_many_batches_as_fill_the_memory_once_store_what_one_process_stores() -> None:
    images, labels, model = torch.randn(96, 5), torch.arange(96) // 4, nn.Linear(5, 8)
    num_ranks, rank = distributed.get_world_size(), distributed.get_rank()

    def filled(batches: ClassBatches, **options: Any) -> tuple[XBNWrapper, int]:
        loss_fn = XBNWrapper(SupConLoss(), embedding_size=8, memory_size=48, **options)
        loader = DataLoader(TensorDataset(images, labels), batch_sampler=batches)
        return loss_fn, fill_from(loss_fn, islice(loader, 48 // 16), model)

    whole, of_whole = filled(ClassBatches(labels, 4, 16))
    part, of_part = filled(
        ClassBatches(labels, 4, 16, num_ranks=num_ranks, rank=rank), gather_distributed=True
    )
    assert (of_whole, of_part) == (48, 24)
    torch.testing.assert_close(part.embedding_memory, whole.embedding_memory)
    assert torch.equal(part.label_memory, whole.label_memory)
    assert part.has_been_filled
