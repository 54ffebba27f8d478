"""A unit that is zero for a whole batch, as after ReLU, costs no step more than another."""

import pytest
import torch
from pytorch_metric_learning.losses import SupConLoss

from pml_xbn import AXBNWrapper, XBNWrapper


@pytest.mark.parametrize("wrapper", [XBNWrapper, AXBNWrapper])
def test_dead_units_rewrite_no_row(wrapper: type[XBNWrapper] | type[AXBNWrapper]) -> None:
    generator = torch.Generator().manual_seed(0)
    memory = wrapper(SupConLoss(), embedding_size=8, memory_size=1024)
    numbers = []
    for _ in range(40):
        embeddings = torch.rand(16, 8, generator=generator)
        embeddings[:, 3] = 0
        before = memory.queue.rows._version
        memory(embeddings.requires_grad_(), torch.arange(16) // 2)
        numbers.append(memory.queue.rows._version - before)
    # Once for the batch, and after the first step that adapts all rows anew.
    assert [step for step, number in enumerate(numbers) if number > 1] == [1]
