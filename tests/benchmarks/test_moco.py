from __future__ import annotations

import contextlib
import importlib
import io
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from comparisons import read_csv, run_until
from float64 import Xbn
from torch import Tensor, nn
from torch.nn.functional import normalize
from training_script import assert_equal

from benchmarks.engine.comparison import Comparison
from benchmarks.engine.run import Run
from benchmarks.engine.step import Step
from benchmarks.moco.__main__ import compare as build_comparison
from benchmarks.moco.__main__ import main
from benchmarks.moco.data import epoch_batches, load_data
from benchmarks.moco.encoders import Encoders
from benchmarks.moco.knn import knn_accuracy
from benchmarks.moco.settings import METHODS, Settings
from benchmarks.moco.split_batch_norm import SplitBatchNorm2d, split_batch_norms
from benchmarks.moco.task import MoCoTask

TINY = Settings(
    epochs=3, batch_size=16, queue=40, bn_splits=4, classes=8, knn_k=20, diagnostics_every=2, device="cpu"
)
TINY_OPTIONS = [
    *("--epochs", "2", "--batch-size", "16", "--queue", "40", "--bn-splits", "4", "--classes", "8"),
    *("--diagnostics-every", "2", "--device", "cpu"),
]


def compare(method: str, path: Path, *, resume: bool = False, kill_at: int = -1) -> Comparison:
    """A comparison of one method, interrupted before the step ``kill_at``."""
    comparison = build_comparison(replace(TINY, methods=(method,)), tiny_data())
    return run_until(comparison, path, resume=resume, kill_at=kill_at)


def tiny_data(settings: Settings = TINY) -> Any:
    return load_data(settings)


# -- the script ------------------------------------------------------------------------------------------


def test_script_writes_its_figures_as_csv(tmp_path: Path) -> None:
    printed = io.StringIO()
    with pytest.MonkeyPatch.context() as patch, contextlib.redirect_stdout(printed):
        patch.setattr(sys, "argv", ["moco", "--output", str(tmp_path), *TINY_OPTIONS, "--methods", *METHODS])
        main()
    results, epochs = read_csv(tmp_path / "results.csv"), read_csv(tmp_path / "epochs.csv")
    assert [(row["method"], row["epoch"]) for row in epochs] == [
        (method, epoch) for method in METHODS for epoch in "012"
    ]
    for start, last, result in zip(epochs[::3], epochs[2::3], results, strict=True):
        assert last["weighted_knn"] == result["weighted_knn"]
        assert {**start, "method": ""} == {**epochs[0], "method": ""}  # of equal initial weights


# -- training and resuming -------------------------------------------------------------------------------


def test_what_is_interrupted_within_an_epoch_resumes_exactly(tmp_path: Path) -> None:
    method = "axbn"
    expected = compare(method, tmp_path / "whole").histories[method]
    path, steps = tmp_path / "checkpoints", len(expected.step_times) // 3
    with pytest.raises(SystemExit, match="--resume goes on"):
        compare(method, path, kill_at=steps + 1)
    history = compare(method, path, resume=True).histories[method]
    assert history.steps == expected.steps
    assert history.epochs == expected.epochs
    assert history.diagnostics == expected.diagnostics
    assert [row["epoch"] for row in history.epochs] == [0, 1, 2, 3]


def one_epoch(method: str, **changes: Any) -> Run:
    settings = replace(TINY, **changes)
    run = Run(MoCoTask(settings, tiny_data(settings), method))
    run.train_epoch()
    return run


def test_diagnostics_leave_no_trace() -> None:
    measured, other = (one_epoch("axbn", diagnostics_every=every) for every in (1, 0))
    assert measured.history.diagnostics
    assert not other.history.diagnostics
    for part in ("encoders", "optimizer", "loss_fn"):
        assert_equal(measured.state_dict()[part], other.state_dict()[part])


def test_keys_are_embedded_as_they_were_when_they_were_stored() -> None:
    """Or an encoder that does not learn would have stale keys."""
    rows = one_epoch("moco", learning_rate=0.0, diagnostics_every=1).history.diagnostics["staleness"]
    assert len(rows) >= 3
    assert all(row["before_maximum"] < 1e-5 for row in rows)
    rows = one_epoch("moco", momentum=0.5, diagnostics_every=1).history.diagnostics["staleness"]
    assert all(row["before_maximum"] > 0.01 for row in rows[1:])


def test_resume_adds_a_method_and_keeps_the_others(tmp_path: Path) -> None:
    path = tmp_path / "checkpoints"
    moco = compare("moco", path).histories["moco"]
    compare("centre", path, resume=True)
    assert compare("moco", path, resume=True, kill_at=0).histories["moco"] == moco
    compare("centre", path)  # which starts anew
    assert [file.name for file in path.iterdir()] == ["centre.pt"]


@pytest.mark.parametrize("method", METHODS)
def test_losses_and_queue_are_those_of_the_equations(method: str) -> None:
    """InfoNCE (MoCo, Eq. 1) against a queue that Eq. 6 of AXBN adapts, recomputed from the embeddings."""
    # AXBN's gain is 0.9997 here, so its queue is nearly XBN's.
    tolerance = 2e-3 if method == "axbn" else 1e-6
    run = Run(MoCoTask(replace(TINY, diagnostics_every=0), tiny_data(), method))
    task = run.task
    task.encoders.double()
    task.loss_fn.memory_dtype = torch.float64
    task.loss_fn.reset_queue()
    seen: list[tuple[Tensor, Tensor]] = []
    task.encoders.register_forward_hook(lambda module, args, output: seen.append(output))
    adapt = Xbn(match_std=method != "centre")
    steps, queue = 6, torch.empty(0, TINY.embedding_size, dtype=torch.float64)
    batches = epoch_batches(len(task.data.train_labels), TINY.batch_size, seed=0, epoch=0)
    batches = batches.repeat(steps, 1)[:steps]  # images come again, and are new classes
    for step, (queries, keys) in enumerate(task.data.pairs(dict(enumerate(batches)), epoch=0)):
        loss = task.train_step(
            (queries.double(), keys.double()), Step(0, step, step, True), run._diagnostics
        )["loss"]
        anchors, positives = seen.pop()
        if method != "moco" and step:
            queue = torch.from_numpy(adapt(queue.numpy(), (), positives.numpy(), ()))
        queue = torch.cat([queue, positives])[-TINY.queue :]
        expected = info_nce(anchors, queue, TINY.temperature).item()
        assert loss.item() == pytest.approx(expected, rel=tolerance)
    oldest_first = task.loss_fn.embedding_memory.roll(-task.loss_fn.queue_idx, dims=0)
    torch.testing.assert_close(oldest_first, queue, rtol=tolerance, atol=tolerance)


def info_nce(queries: Tensor, queue: Tensor, temperature: float) -> Tensor:
    """The queries' positives are the last rows of the queue, in the same order."""
    logits = normalize(queries) @ normalize(queue).T / temperature
    positive = logits.diagonal(offset=len(queue) - len(queries))
    return (logits.logsumexp(dim=1) - positive).mean()


# -- encoders --------------------------------------------------------------------------------------------


def test_key_encoder_follows_the_query_encoder() -> None:
    encoders = Encoders(TINY)
    before = [p.clone() for p in encoders.key.parameters()]
    for parameter in encoders.query.parameters():
        parameter.data += torch.randn_like(parameter)
    images = torch.rand(16, 1, 32, 32)
    _, keys = encoders(images, images, "key")
    assert not keys.requires_grad
    for key, old, query in zip(encoders.key.parameters(), before, encoders.query.parameters(), strict=True):
        assert not key.requires_grad
        torch.testing.assert_close(key, 0.99 * old + 0.01 * query.detach())


def test_keys_are_normalised_with_other_images_than_their_queries_but_keep_their_order() -> None:
    encoders, images = Encoders(TINY).eval(), torch.rand(16, 1, 32, 32)
    queries, keys = encoders(images, images, "key")  # both encoders are equal before the first step
    torch.testing.assert_close(queries, keys)
    encoders.train()
    queries, keys = encoders(images, images, "key")
    assert not torch.allclose(queries, keys, rtol=1e-2)


@pytest.mark.parametrize("splits", [1, 2, 4])
def test_split_batch_norm_is_that_of_the_parts(splits: int) -> None:
    network = nn.Sequential(nn.BatchNorm2d(3))
    split_batch_norms(network, splits)
    assert type(network[0]) is (nn.BatchNorm2d if splits == 1 else SplitBatchNorm2d)
    images = torch.randn(8, 3, 5, 5) * 2 + 1
    parts = images.double().view(splits, -1, 3, 5, 5)
    mean = parts.mean(dim=(1, 3, 4), keepdim=True)
    variance = parts.var(dim=(1, 3, 4), keepdim=True, correction=0)
    expected = ((parts - mean) / (variance + 1e-5).sqrt()).view_as(images)
    torch.testing.assert_close(network(images).double(), expected, rtol=1e-4, atol=1e-5)


def test_split_batch_norm_remembers_as_long_as_batch_norm() -> None:
    split, whole = SplitBatchNorm2d(3, 4), nn.BatchNorm2d(3)
    part = torch.randn(4, 3, 5, 5)
    for _ in range(5):
        split(part.repeat(4, 1, 1, 1))
        whole(part)
    torch.testing.assert_close(split.running_mean, whole.running_mean)
    torch.testing.assert_close(split.running_var, whole.running_var)
    images = torch.randn(6, 3, 5, 5)
    torch.testing.assert_close(split.eval()(images), whole.eval()(images))


# -- kNN accuracy ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(("k", "temperature"), [(1, 0.1), (7, 0.1), (60, 0.5), (10_000, 1.0)])
@pytest.mark.parametrize("with_gallery", [False, True])
def test_knn_accuracy_is_that_of_brute_force(k: int, temperature: float, with_gallery: bool) -> None:
    centres = torch.randn(6, 16)

    def images(size: int) -> tuple[Tensor, Tensor]:
        labels = torch.arange(size) % 6
        return normalize(centres[labels] + 2 * torch.randn(size, 16)), labels

    queries, gallery = images(90), images(150) if with_gallery else None
    accuracy = knn_accuracy(*queries, gallery, k, temperature)
    voted, nearest = brute_force(queries, gallery, k, temperature)
    assert accuracy["weighted_knn"] == pytest.approx(voted, abs=1e-4)
    assert accuracy["recall_at_1"] == pytest.approx(nearest, abs=1e-4)
    assert 20 < accuracy["weighted_knn"] < 100


def brute_force(
    queries: tuple[Tensor, Tensor], gallery: tuple[Tensor, Tensor] | None, k: int, temperature: float
) -> tuple[float, float]:
    """In float64 and one query at a time."""
    voted = nearest = 0
    for position, (query, label) in enumerate(zip(*queries, strict=True)):
        others, labels = queries if gallery is None else gallery
        if gallery is None:
            kept = torch.arange(len(others)) != position
            others, labels = others[kept], labels[kept]
        cosines, order = (others.double() @ query.double()).sort(descending=True)
        votes = dict.fromkeys(labels.tolist(), 0.0)
        for cosine, neighbour in zip(cosines[:k].tolist(), labels[order[:k]].tolist(), strict=True):
            votes[neighbour] += torch.tensor(cosine / temperature).exp().item()
        voted += int(max(votes, key=votes.__getitem__) == label)
        nearest += int(labels[order[0]] == label)
    return 100 * voted / len(queries[0]), 100 * nearest / len(queries[0])


# -- data and settings -----------------------------------------------------------------------------------


def test_every_epoch_has_its_own_batches_of_different_images() -> None:
    first = epoch_batches(50, 16, seed=1, epoch=0)
    assert first.shape == (3, 16)
    assert len(first.unique()) == 48
    assert torch.equal(epoch_batches(50, 16, seed=1, epoch=0), first)
    assert not torch.equal(epoch_batches(50, 16, seed=1, epoch=1), first)
    assert not torch.equal(epoch_batches(50, 16, seed=2, epoch=0), first)


def test_two_views_differ_and_depend_on_seed_epoch_and_step_alone() -> None:
    data, batches = tiny_data(), torch.arange(16).repeat(2, 1)
    (first, second), later = data.pairs(dict(enumerate(batches)), epoch=0)
    assert not torch.equal(first, second)
    assert not torch.equal(first, later[0])
    (again, _), _ = tiny_data().pairs(dict(enumerate(batches)), epoch=0)
    assert torch.equal(again, first)


def test_cifar_trains(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    try:
        importlib.import_module("torchvision.datasets")
    except (ImportError, RuntimeError) as error:  # the latter: built for another torch
        pytest.skip(f"no torchvision: {error}")
    import tiny_datasets

    tiny_datasets.write_cifar10(tmp_path, monkeypatch)
    settings = Settings(
        dataset="cifar10",
        epochs=2,
        batch_size=2,
        queue=4,
        bn_splits=1,
        embedding_size=8,
        diagnostics_every=1,
        root=tmp_path,
        workers=1,
        device="cpu",
    )
    data = load_data(settings)
    run = Run(MoCoTask(settings, data, "xbn"))
    for _ in range(2):
        run.train_epoch()
    assert [row["epoch"] for row in run.history.epochs] == [0, 1, 2]
    assert len(run.history.step_times) == 2 * (len(data.train_labels) // 2)
    assert run.history.diagnostics["staleness"][-1]["before_mean"] > 0
    (first, second), *_ = data.pairs({0: torch.tensor([0, 1])}, epoch=0)
    assert first.shape == (2, 3, 32, 32)
    assert not torch.equal(first, second)
    (again, _), *_ = data.pairs({0: torch.tensor([0, 1])}, epoch=0)
    assert torch.equal(again, first)
    batches = {0: torch.tensor([1, 0]), 1: torch.tensor([0, 1])}
    (_, (second, _)), ((alone, _),) = data.pairs(batches, 0), data.pairs({1: batches[1]}, 0)
    assert torch.equal(alone, second)
