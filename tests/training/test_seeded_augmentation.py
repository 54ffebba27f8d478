"""A run that goes on in the middle of an epoch sees images augmented as the run that stopped would have."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
import torch
from pytorch_metric_learning.losses import SupConLoss
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, Subset

from pml_xbn import XBNWrapper
from pml_xbn.training import ClassBatches, SeededAugmentation

LABELS = torch.arange(48) // 4
IMAGES = torch.randn(48, 6, generator=torch.Generator().manual_seed(0))


class Augmented(Dataset[Any]):
    """Draws from each of the generators that libraries of augmentation draw from."""

    def __len__(self) -> int:
        return len(IMAGES)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        noise = torch.randn(6) + random.random() + float(np.random.rand())
        return IMAGES[index] + noise, LABELS[index]


class AugmentedBatches(Augmented):
    def __getitems__(self, indices: list[int]) -> list[tuple[Tensor, Tensor]]:
        return [self[index] for index in indices]


def loaded(batches: Any, workers: int = 0, dataset: Any = None, seed: int = 0) -> list[Tensor]:
    dataset = SeededAugmentation(dataset or Augmented(), seed)
    return [images for images, _ in DataLoader(dataset, batch_sampler=batches, num_workers=workers)]


def states() -> list[Any]:
    return [torch.get_rng_state().tolist(), random.getstate(), str(np.random.get_state())]


@pytest.mark.parametrize("dataset", [Augmented(), AugmentedBatches(), Subset(Augmented(), range(48))])
def test_a_batch_is_augmented_alike_whatever_came_before_it_and_whoever_loads_it(dataset: Any) -> None:
    batches = list(ClassBatches(LABELS, m=2, batch_size=8))
    whole = torch.stack(loaded(batches, dataset=dataset))
    for done, workers in ((2, 0), (2, 1), (3, 2)):
        torch.manual_seed(done)
        assert torch.equal(torch.stack(loaded(batches[done:], workers, dataset)), whole[done:])
    drawn = whole - IMAGES[torch.tensor(batches)]
    assert len(drawn.sum(dim=2).unique()) == drawn[..., 0].numel()  # no two images have the same


def test_another_seed_augments_otherwise() -> None:
    batches = list(ClassBatches(LABELS, m=2, batch_size=8))
    first, second = (torch.stack(loaded(batches, seed=seed)) for seed in (0, 1))
    assert not torch.isclose(first, second).any()
    with pytest.raises(ValueError, match="seed=-1"):
        SeededAugmentation(Augmented(), seed=-1)


def test_training_draws_what_it_would_have_drawn_also_after_an_error() -> None:
    before = states()
    dataset = SeededAugmentation(Augmented())
    assert len(dataset) == 48
    dataset.__getitems__([3, 4])
    with pytest.raises(IndexError):
        dataset.__getitems__([3, 480])
    assert states() == before
    assert dataset[3][1] == LABELS[3]


@pytest.mark.parametrize(("first", "then"), [(0, 0), (1, 1), (0, 2)])
def test_resume_in_the_middle_of_an_epoch_continues_bit_for_bit(first: int, then: int) -> None:
    """With dropout, augmentation and workers: the loop of docs/checkpoints.md."""
    batches = ClassBatches(LABELS, m=2, batch_size=8)
    dataset = SeededAugmentation(Augmented())

    def build() -> dict[str, Any]:
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(6, 16), nn.Dropout(), nn.Linear(16, 4))
        loss_fn = XBNWrapper(SupConLoss(), embedding_size=4, memory_size=20)
        return {"model": model, "loss_fn": loss_fn, "optimizer": torch.optim.AdamW(model.parameters())}

    def train(parts: dict[str, Any], step: int, last_step: int, workers: int) -> None:
        while step < last_step:
            epoch, done = divmod(step, len(batches))
            batches.set_epoch(epoch)
            to_come = list(batches)[done:]
            for images, labels in DataLoader(dataset, batch_sampler=to_come, num_workers=workers):
                torch.manual_seed(step)
                parts["optimizer"].zero_grad()
                parts["loss_fn"](parts["model"](images), labels).backward()
                parts["optimizer"].step()
                step += 1
                if step == last_step:
                    break

    whole, stopped, resumed = build(), build(), build()
    train(whole, 0, 15, first)
    train(stopped, 0, 8, first)  # the second step of the second epoch
    for name, part in stopped.items():
        resumed[name].load_state_dict(part.state_dict())
    torch.manual_seed(99)
    train(resumed, 8, 15, then)
    for name, value in whole["model"].state_dict().items():
        assert torch.equal(resumed["model"].state_dict()[name], value), name
    assert torch.equal(resumed["loss_fn"].embedding_memory, whole["loss_fn"].embedding_memory)
