from __future__ import annotations

import functools

import pytest
import torch
from torch import Tensor, nn
from training_script import TINY, has_timm

if not has_timm():
    pytest.skip("timm cannot be imported", allow_module_level=True)

from benchmarks.engine.ranks import Ranks
from benchmarks.engine.run import Run
from benchmarks.papers.data import load_data
from benchmarks.papers.in_parts import InParts
from benchmarks.papers.presets import read_settings
from benchmarks.papers.task import PapersTask
from pml_xbn.heads import MomentumBatchNorm
from pml_xbn.losses import AdaptiveCrossBatchMemory

FEATURES = 6


def train_in_float64(accumulate: int, monkeypatch: pytest.MonkeyPatch, *flags: str) -> dict[str, Tensor]:
    """All that a run trains and stores; its batch normalization is frozen."""
    rest = ["--freeze-bn", "--image-size", "16", "--diagnostics-every", "0"]
    settings = read_settings([*TINY, *rest, "--epochs", "2", "--accumulate", str(accumulate), *flags])
    with monkeypatch.context() as patch:
        # The memory keeps float32 or less unless it is told.
        init = AdaptiveCrossBatchMemory.__init__

        @functools.wraps(init)
        def init_in_float64(*args: object, **options: object) -> None:
            init(*args, **options | {"memory_dtype": torch.float64})

        patch.setattr(AdaptiveCrossBatchMemory, "__init__", init_in_float64)
        task = PapersTask(settings, load_data(settings), Ranks(cpu=True))
    for part in (task.model, task.loss_fn, task._warmup_loss):
        part.double()
    task.model.register_forward_pre_hook(lambda model, inputs: (inputs[0].double(),))
    run = Run(task)
    while run.epoch < task.length.epochs:
        run.train_epoch()
    return task.model.state_dict() | task.loss_fn.state_dict()


@pytest.mark.parametrize(
    "flags",
    [
        ["--method", "axbn", "--memory-ratio", "0.2"],
        ["--method", "xbn", "--update-factor", "2", "--memory-ratio", "0.5", "--fill-memory"],
        ["--method", "norm-softmax", "--class-ratio", "0.5"],  # draws classes after the parts
    ],
    ids=lambda flags: flags[1],
)
def test_weights_and_memory_are_those_of_the_whole_batch(
    flags: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    whole, parts = (train_in_float64(accumulate, monkeypatch, *flags) for accumulate in (1, 4))
    for name, value in whole.items():
        torch.testing.assert_close(parts[name], value, rtol=1e-9, atol=1e-9, msg=name)


def test_gradients_and_statistics_are_those_of_parts_whose_activations_are_kept() -> None:
    """With random numbers, and with moments that depend on the part before."""
    generator = torch.Generator().manual_seed(0)
    weights = torch.randn(12, FEATURES, dtype=torch.float64, generator=generator)
    models = []
    for kept in (True, False):
        torch.manual_seed(1)
        norms = nn.BatchNorm1d(FEATURES), MomentumBatchNorm(FEATURES, num_calls=9, ideal_batch_size=8)
        model = nn.Sequential(*norms, nn.Dropout(0.5), nn.Linear(FEATURES, FEATURES)).double()
        for step in range(3):
            images = torch.randn(12, FEATURES, dtype=torch.float64) + step
            parts = [model(part) for part in images.chunk(3)] if kept else [InParts(model, 3)(images)]
            (torch.cat(parts).softmax(dim=0) * weights).sum().backward()
        models.append(model)
    for one, other in zip(*(model.parameters() for model in models), strict=True):
        torch.testing.assert_close(other.grad, one.grad, rtol=1e-12, atol=1e-12)
    assert models[0][-1].weight.grad.abs().max() > 1e-3
    for one, other in zip(*(model.buffers() for model in models), strict=True):
        assert torch.equal(one, other)


def test_one_part_at_a_time_is_embedded_again_and_back_propagated() -> None:
    order: list[tuple[str, float]] = []

    class Noted(nn.Module):
        def forward(self, images: Tensor) -> Tensor:
            part = float(images.detach())
            order.append(("embedded", part))
            embeddings = images.exp()
            if embeddings.requires_grad:
                embeddings.register_hook(lambda gradient: order.append(("back", part)))
            return embeddings

    images = torch.arange(3.0)[:, None].requires_grad_()
    embeddings = InParts(Noted(), 3)(images)
    first = [("embedded", part) for part in (0.0, 1.0, 2.0)]
    assert order == first
    order.clear()
    embeddings.sum().backward()
    assert order == [(what, part) for part in (2.0, 1.0, 0.0) for what in ("back", "embedded")]
