from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import normalize

from pml_xbn.diagnostics import batch_noise, scalars
from pml_xbn.training import freeze_batch_norm


def network() -> nn.Sequential:
    torch.manual_seed(0)
    layers = nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 4)
    return nn.Sequential(*layers).double()


def batches(size: int = 16, seed: int = 0, width: int = 6) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    images, others = torch.randn(2, size, width, dtype=torch.float64, generator=generator)
    return images, others


class LessTheirMean(nn.Module):
    """An embedding of which all is known: the noise of a batch is its mean."""

    def forward(self, images: Tensor) -> Tensor:
        return images - images.mean(dim=0)


@pytest.mark.parametrize("num_parts", [2, 3, 5, 8, 16])
def test_noise_and_spread_are_those_of_their_definition(num_parts: int) -> None:
    model, (images, others) = network(), batches()
    measured = batch_noise(model, images, others, num_parts=num_parts)
    once = normalize(model(images))
    apart, replaced = torch.empty_like(once), torch.empty(16)
    for part in torch.arange(16).tensor_split(num_parts):
        replaced[part] = (16 - len(part)) / 16
        batch = torch.stack([images[i] if i in part else others[i] for i in range(16)])
        apart[part] = normalize(model(batch))[part]
    squares = torch.stack([(row - apart).square().sum(dim=1) for row in once])
    noise = (squares.diagonal() / 2 / replaced).mean()
    spread = squares[~torch.eye(16, dtype=torch.bool)].mean() / 2
    torch.testing.assert_close(measured, (noise / spread, noise, spread, (2 * noise).sqrt()))


@pytest.mark.parametrize("num_parts", [2, 16])
def test_noise_is_that_of_the_batch_whatever_the_number_of_parts(num_parts: int) -> None:
    draws = [
        batch_noise(
            LessTheirMean(), *batches(seed=seed, width=200), num_parts=num_parts, normalize=False
        ).noise
        for seed in range(60)
    ]
    noise = float(sum(draws)) / len(draws)
    assert noise == pytest.approx(200 / 16, rel=0.05)  # the variance of a mean of 16 in 200 dimensions


def test_small_batches_are_told_from_large_and_from_frozen_ones() -> None:
    model = network()
    small, large = (float(batch_noise(model, *batches(size)).share) for size in (8, 128))
    freeze_batch_norm(model)
    frozen = batch_noise(model, *batches(8))
    assert small > 3 * large > 0
    assert float(frozen.share) < 1e-12
    assert (batch_noise(network(), *batches(4)).is_large, frozen.is_large) == (True, False)
    assert str(frozen) == "0 % of the spread of embeddings is noise of the batch"


def test_dropout_is_no_noise_of_the_batch() -> None:
    model = nn.Sequential(nn.Linear(6, 4), nn.Dropout()).double()
    assert not torch.equal(model(batches()[0]), model(batches()[0]))
    assert [float(batch_noise(model, *batches(size)).noise) for size in (4, 64)] == [0, 0]


def test_a_measurement_leaves_no_trace() -> None:
    model = nn.Sequential(*network(), nn.Dropout())
    state, random_state = copy.deepcopy(model.state_dict()), torch.get_rng_state()
    measured = batch_noise(model, *batches())
    torch.testing.assert_close(model.state_dict(), state, rtol=0, atol=0)
    assert torch.equal(torch.get_rng_state(), random_state)
    assert not measured.noise.requires_grad
    assert set(scalars("noise", measured)) == {"noise_share", "noise_noise", "noise_spread", "noise_distance"}


def test_a_collapsed_embedding_has_no_noise() -> None:
    model = nn.Linear(6, 4)
    nn.init.zeros_(model.weight)
    assert [float(number) for number in batch_noise(model.double(), *batches())] == [0, 0, 0, 0]


def test_what_cannot_be_measured_is_refused() -> None:
    images, others = batches()
    with pytest.raises(ValueError, match=r"evaluation mode: call model\.train\(\)"):
        batch_noise(network().eval(), images, others)
    with pytest.raises(ValueError, match=r"shape \(16, 6\) and others \(15, 6\): pass two batches"):
        batch_noise(network(), images, others[:15])
    with pytest.raises(ValueError, match="3 images for num_parts=4: pass"):
        batch_noise(network(), images[:3], others[:3])
    with pytest.raises(ValueError, match="num_parts=1"):
        batch_noise(network(), images, others, num_parts=1)
    with pytest.raises(ValueError, match=r"embeddings has shape \(96,\)"):
        batch_noise(nn.Flatten(0), images, others)
