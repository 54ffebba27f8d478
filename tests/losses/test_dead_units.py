"""A unit that is zero for a whole batch, as after ReLU, costs no step more than another."""

import pytest
import torch
from pytorch_metric_learning.losses import SupConLoss

from pml_xbn import AXBNWrapper, XBNWrapper


@pytest.mark.parametrize("wrapper", [XBNWrapper, AXBNWrapper])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_dead_units_rewrite_rows_once(
    wrapper: type[XBNWrapper] | type[AXBNWrapper], dtype: torch.dtype
) -> None:
    generator = torch.Generator().manual_seed(0)
    memory = wrapper(SupConLoss(), embedding_size=8, memory_size=1024, memory_dtype=dtype)
    numbers = []
    for _ in range(40):
        embeddings = torch.rand(16, 8, generator=generator)
        embeddings[:, 3] = 0
        before = memory.queue.rows._version
        memory(embeddings.requires_grad_(), torch.arange(16) // 2)
        numbers.append(memory.queue.rows._version - before)
    # Once for the batch. All rows are stored anew after the first step that adapts; in float16 once more.
    assert max(numbers[3:]) == 1
