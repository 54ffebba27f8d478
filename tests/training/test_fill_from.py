from __future__ import annotations

from typing import Any

import pytest
import torch
from pytorch_metric_learning.losses import CrossBatchMemory, SupConLoss
from torch import Tensor, nn

from pml_xbn import XBNWrapper
from pml_xbn.training import fill_from

IMAGES, LABELS = torch.randn(20, 6, generator=torch.Generator().manual_seed(0)), torch.arange(20) % 7


def loader(size: int) -> list[tuple[Tensor, Tensor]]:
    return list(zip(IMAGES.split(size), LABELS.split(size), strict=True))


def network() -> nn.Sequential:
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(6, 4), nn.BatchNorm1d(4))


def memory_of(size: int, **options: Any) -> XBNWrapper:
    return XBNWrapper(SupConLoss(), embedding_size=4, memory_size=size, **options)


@pytest.mark.parametrize(("size", "expected"), [(13, 13), (20, 20), (50, 20)])
def test_it_stores_as_many_rows_as_there_are_places_and_images(size: int, expected: int) -> None:
    """Rows are those of batches in training mode, each by its own statistics, in float64."""
    memory, model = memory_of(size), network()
    assert fill_from(memory, loader(8), model) == memory.num_rows == expected
    linear: Any = model[0]
    rows = []
    for batch in IMAGES.double().split(8):
        features = batch @ linear.weight.double().T + linear.bias.double()
        spread = (features.var(dim=0, unbiased=False) + 1e-5).sqrt()
        rows.append((features - features.mean(dim=0)) / spread)
    torch.testing.assert_close(
        memory.embedding_memory[:expected].double(), torch.cat(rows)[:expected], atol=1e-5, rtol=1e-5
    )
    assert memory.label_memory[:expected].tolist() == LABELS[:expected].tolist()
    assert model.training
    assert not any(parameter.grad is not None for parameter in model.parameters())


def test_a_loader_that_never_ends_is_read_until_the_memory_is_full() -> None:
    def endless() -> Any:
        while True:
            yield from loader(8)

    assert fill_from(memory_of(45), endless(), network()) == 45


def test_it_replaces_the_rows_of_a_full_memory_and_is_no_call() -> None:
    memory, model = memory_of(10), network()
    fill_from(memory, loader(5), model)
    before = memory.embedding_memory.clone()
    with torch.no_grad():
        model[0].weight.mul_(-1)
    fill_from(memory, loader(5), model)
    assert not torch.allclose(memory.embedding_memory, before)
    assert memory.num_calls == 0


def test_a_fill_before_the_warm_up_is_over_warns_that_its_rows_will_be_stale() -> None:
    memory, model = memory_of(10, warmup=2), network()
    for _ in range(2):
        with pytest.warns(UserWarning, match="of 2 calls of the warm-up are left"):
            fill_from(memory, loader(5), model)
        memory(model(IMAGES[:5]), LABELS[:5])
    fill_from(memory, loader(5), model)


@pytest.mark.parametrize("who", ["loader", "model"])
def test_an_error_midway_leaves_the_memory_as_it_was(who: str) -> None:
    def fail_at_the_third(value: Tensor) -> Tensor:
        calls.append(value)
        return value[[99]] if len(calls) == 3 else value

    memory, calls = memory_of(20), []
    fill_from(memory, loader(5), network())
    before = memory.state_dict()
    batches = ((fail_at_the_third(x) if who == "loader" else x, y) for x, y in loader(5))
    with pytest.raises(IndexError):
        fill_from(memory, batches, lambda x: (fail_at_the_third(x) if who == "model" else x)[:, 2:])
    torch.testing.assert_close(memory.state_dict(), before, rtol=0, atol=0)


def test_a_batch_that_the_memory_skips_is_no_loss_of_the_others() -> None:
    memory = memory_of(20, nonfinite="skip")
    batches = [(images.clone(), labels) for images, labels in loader(5)]
    batches[1][0][2] = torch.nan
    assert fill_from(memory, batches, nn.Linear(6, 4)) == memory.num_rows == 15
    memory = memory_of(20, nonfinite="skip", gather_distributed=True)
    model = nn.Linear(6, 4)
    assert fill_from(memory, batches, lambda x: model(x).half()) == memory.num_rows == 15


def test_a_model_may_return_the_same_tensor_at_every_call() -> None:
    output = torch.empty(5, 4)
    memory = memory_of(20)
    fill_from(memory, loader(5), lambda images: output.copy_(images[:, :4]))
    torch.testing.assert_close(memory.embedding_memory, IMAGES[:, :4])


def test_images_with_ids_take_the_places_of_their_samples() -> None:
    """After the fill a step with the same ids replaces rows and adds none; also where rows are averaged."""
    for update in ("queue", "average"):
        memory, model = memory_of(30, update=update), network()
        ids = torch.arange(20)
        batches = [(*batch, part) for batch, part in zip(loader(8), ids.split(8), strict=True)]
        assert fill_from(memory, batches, model) == memory.num_rows == 20
        memory(model(IMAGES[:8]), LABELS[:8], sample_ids=ids[:8])
        assert memory.num_rows == 20


def test_a_function_may_embed() -> None:
    memory = memory_of(20)
    fill_from(memory, loader(8), lambda images: images[:, :4])
    torch.testing.assert_close(memory.embedding_memory, IMAGES[:, :4])


def test_what_cannot_be_filled_is_named() -> None:
    pml: Any = CrossBatchMemory(SupConLoss(), embedding_size=4, memory_size=8)
    with pytest.raises(
        TypeError, match="memory is a CrossBatchMemory, which has no fill_memory: pass an Ada"
    ):
        fill_from(pml, loader(4), network())
    with pytest.raises(ValueError, match="loader gives no batch: pass one"):
        fill_from(memory_of(8), [], network())
    with pytest.raises(ValueError, match="embedding_size"):
        fill_from(memory_of(8), loader(4), nn.Linear(6, 3))
    with pytest.raises(ValueError, match=r"labels has shape \(3,\): pass one label per embedding"):
        fill_from(memory_of(5), [(IMAGES[:5], LABELS[:3])], network())
    with pytest.raises(TypeError, match="embeddings is a dict"):
        fill_from(memory_of(8), loader(4), lambda images: {"rows": images})  # type: ignore[arg-type,return-value]
    for item, kind in (
        ({"x": IMAGES}, "dict"),
        ((IMAGES,), r"\(Tensor\)"),
        (({}, LABELS), r"\(dict, Tensor\)"),
    ):
        with pytest.raises(TypeError, match=rf"loader gives a? ?{kind}: pass one that gives \(images"):
            fill_from(memory_of(8), [item], network())
    items = [(IMAGES[:2], LABELS[:2]), (IMAGES[:2], LABELS[:2], LABELS[:2])]
    with pytest.raises(TypeError, match="loader gives 2 tensors first and 3 later"):
        fill_from(memory_of(8), items, network())
