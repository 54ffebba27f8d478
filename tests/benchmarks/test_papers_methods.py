"""What the presets are made of: pooling, BN, dropout, optimizers, weights and the divisor of XBM's Eq. 1."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from training_script import TINY, has_timm

if not has_timm():
    pytest.skip("timm cannot be imported", allow_module_level=True)

import timm
from torch.nn.functional import cross_entropy, normalize

from benchmarks.engine.ranks import Ranks
from benchmarks.engine.run import Run
from benchmarks.papers.augmentation import build_transforms
from benchmarks.papers.data import load_data
from benchmarks.papers.evaluation import result_row
from benchmarks.papers.methods import LossSetup, build_beside, build_loss
from benchmarks.papers.model import build_model, weights_name
from benchmarks.papers.optimisation import build_optimizer
from benchmarks.papers.pml_parts import make_loss
from benchmarks.papers.presets import read_settings
from benchmarks.papers.settings import Settings
from benchmarks.papers.task import PapersTask
from pml_xbn.diagnostics import class_separability, superclass_neighbours


def read(flags: str = "") -> Settings:
    return read_settings([*TINY, *flags.split()])


def train_quietly(run: Run) -> None:
    while run.epoch < run.task.length.epochs:
        run.train_epoch()


def new_run(flags: str) -> Run:
    settings = read(flags)
    return Run(PapersTask(settings, load_data(settings), Ranks(cpu=True)))


def test_pooling_takes_the_place_of_the_backbones_own() -> None:
    images = torch.randn(2, 3, 64, 64)
    for flags, pool in (
        ("", lambda maps: maps.mean((2, 3))),
        ("--pooling max", lambda maps: maps.amax((2, 3))),
    ):
        backbone = build_model(read(flags), num_calls=1)[0].backbone.eval()
        torch.testing.assert_close(backbone(images), pool(backbone.forward_features(images)))


def test_frozen_bn_keeps_its_statistics_and_learns_its_scale() -> None:
    flags = "--method no-xbm --head bn-neck --warmup-epochs 0"
    for freeze in (False, True):
        run = new_run(f"{flags} {'--freeze-bn' if freeze else ''}")
        model = run.task.model
        before = {name: value.clone() for name, value in model.state_dict().items()}
        train_quietly(run)
        changed = {
            name
            for name, value in run.task.model.state_dict().items()
            if not torch.equal(value, before[name])
        }
        assert ("backbone.bn1.running_mean" in changed) != freeze
        assert "backbone.bn1.weight" in changed
        assert any(name.startswith("head.") and name.endswith("running_mean") for name in changed)


def test_dropout_is_of_embeddings_in_training() -> None:
    model, _ = build_model(read("--dropout 0.5 --no-normalize"), num_calls=1)
    images = torch.randn(8, 3, 32, 32)
    assert 0.2 < (model.train()(images) == 0).float().mean() < 0.8
    assert (model.eval()(images) != 0).all()


@pytest.mark.parametrize("flags", ["--optimizer sgd", "--optimizer adam", "--optimizer adamw"])
def test_vectors_have_no_weight_decay_unless_they_are_to(flags: str) -> None:
    parameters = [torch.nn.Parameter(torch.zeros(shape)) for shape in ((2, 2), (2,), ())]
    name = flags.split()[1]
    groups = build_optimizer(name, read(f"{flags} --weight-decay 0.3"), parameters).param_groups
    assert [(group["weight_decay"], len(group["params"])) for group in groups] == [(0.3, 1), (0.0, 2)]
    groups = build_optimizer(name, read("--weight-decay 0.3 --decay-vectors"), parameters).param_groups
    assert [(group["weight_decay"], len(group["params"])) for group in groups] == [(0.3, 3)]


def test_sgd_is_nesterovs_where_there_is_momentum() -> None:
    parameters = [torch.nn.Parameter(torch.zeros(2, 2))]
    for flags, expected in (
        ("", (0.9, True)),
        ("--no-nesterov", (0.9, False)),
        ("--sgd-momentum 0", (0.0, False)),
    ):
        group = build_optimizer("sgd", read(flags), parameters).param_groups[0]
        assert (group["momentum"], group["nesterov"]) == expected


def test_the_resized_crop_has_its_scale_ratio_and_colours() -> None:
    config = {"mean": (0.5,) * 3, "std": (0.5,) * 3}
    cub, _ = build_transforms(read("--preset sgsl --dataset cub"), config)
    cars, test = build_transforms(read("--preset sgsl --dataset cars"), config)
    for train, jitter, hue, ratio in ((cub, 0.25, None, (0.75, 4 / 3)), (cars, 0.3, (-0.1, 0.1), (1, 1))):
        resize, colours, crop, *_ = train.transforms
        assert resize.size == (256, 256)
        assert colours.brightness == colours.contrast == colours.saturation == (1 - jitter, 1 + jitter)
        assert colours.hue == hue
        assert (crop.size, crop.scale, crop.ratio) == ((224, 224), (0.16, 1), pytest.approx(ratio))
    assert [type(step).__name__ for step in test.transforms[:2]] == ["Resize", "CenterCrop"]


def test_sgsls_labels_and_first_weights_are_those_of_the_code_that_it_defers_to() -> None:
    setup = LossSetup(embedding_size=16, memory_size=8, num_classes=5, world_size=1)
    loss_fn = build_loss(read("--method sgsl --sgsl-start 0 --label-smoothing 0.2"), setup)
    assert not loss_fn.W.any()
    torch.nn.init.normal_(loss_fn.W)
    embeddings, labels = torch.randn(8, 16), torch.arange(8) % 5
    targets = torch.full((8, 5), 0.2 / 4)
    targets[range(8), labels] = 0.8
    expected = -(targets * (embeddings @ loss_fn.W).log_softmax(dim=1)).sum(dim=1).mean()
    torch.testing.assert_close(loss_fn(embeddings, labels), expected)


def test_random_batches_train_with_a_memory() -> None:
    run = new_run("--method xbm --images-per-class 0 --batch-size 12")
    positions = run.task._batches.epoch(1)  # type: ignore[attr-defined]
    assert len(positions.unique()) == positions.numel()
    train_quietly(run)
    assert run.task.loss_fn.num_rows == 24  # type: ignore[attr-defined]


def test_sgsls_weight_is_that_of_its_part_beside_the_softmax() -> None:
    setup = LossSetup(embedding_size=16, memory_size=8, num_classes=5, world_size=1)
    embeddings, labels, losses = torch.randn(8, 16), torch.arange(8) % 5, []
    for weight in (0, 1, 2.5):
        loss_fn = build_loss(read(f"--method sgsl --sgsl-weight {weight}"), setup)
        loss_fn.W.data = torch.eye(16, 5)
        losses.append(loss_fn(embeddings, labels).item())
    assert losses[2] - losses[0] == pytest.approx(2.5 * (losses[1] - losses[0]), rel=1e-4)
    assert losses[1] > losses[0]


def test_lmcl_has_its_margin_and_the_first_weights_of_norm_softmax() -> None:
    setup = LossSetup(embedding_size=16, memory_size=8, num_classes=50, world_size=1)
    flags = "--method no-xbm --miner none --loss CosFaceLoss --loss-options weight_init_func=linear"
    loss_fn = build_loss(read(flags), setup)
    (weights,) = loss_fn.parameters()
    assert weights.shape == (16, 50)
    assert 0.9 / 4 < weights.abs().max() <= 1 / 4
    embeddings, labels = torch.randn(8, 16), torch.arange(8)
    cosines = normalize(embeddings) @ normalize(weights, dim=0)
    logits = 64 * (cosines - 0.35 * torch.eye(8, 50))
    torch.testing.assert_close(loss_fn(embeddings, labels), cross_entropy(logits, labels))


def test_resize_is_the_side_before_the_crop() -> None:
    config = {"mean": (0.5,) * 3, "std": (0.5,) * 3}
    flags = "--preset norm-softmax --dataset cub --image-size 227"
    for more, larger in (("", 259), ("--resize 256", 256)):
        for transform in build_transforms(read(f"{flags} {more}"), config):
            assert transform.transforms[0].size == (larger, larger)
            assert tuple(transform.transforms[1].size) == (227, 227)


def eq_1(anchors: np.ndarray, labels: list[int], rows: np.ndarray, of_rows: list[int]) -> float:
    """XBM's Eq. 1 (and Eq. 4), for contrastive weights with λ = 0.5; an anchor is no row of its own."""
    total = 0.0
    for i, anchor in enumerate(anchors):
        for j, row in enumerate(rows):
            cosine = float(anchor @ row / np.linalg.norm(anchor) / np.linalg.norm(row))
            if labels[i] != of_rows[j]:
                total += max(cosine - 0.5, 0)
            elif not np.array_equal(anchor, row):
                total += 1 - cosine
    return total / len(anchors)


def test_xbms_loss_is_eq_1_with_its_divisor() -> None:
    """Of the memory, which holds the batch, and of the batch."""
    run = new_run(
        "--preset xbm --memory-warmup 0 --no-fill-memory --warmup-epochs 0 --steps-per-epoch 3 "
        "--diagnostics-every 0"
    )
    batches: list[Any] = []
    run.task.loss_fn.register_forward_pre_hook(
        lambda _, arguments: batches.append((arguments[0].detach(), arguments[1]))
    )
    train_quietly(run)
    assert len(batches) == 3
    rows, of_rows = np.zeros((0, 16)), []
    for (embeddings, labels), logged in zip(batches, run.history.steps, strict=True):
        anchors, of_anchors = embeddings.double().numpy(), labels.tolist()
        rows, of_rows = np.concatenate([rows, anchors]), of_rows + of_anchors
        expected = eq_1(anchors, of_anchors, rows, of_rows) + eq_1(anchors, of_anchors, anchors, of_anchors)
        assert logged["loss"] == pytest.approx(expected, rel=1e-5)


def test_the_gradient_is_that_of_the_divided_loss() -> None:
    """As a first step of SGD shows."""
    rest = "--loss ContrastiveLoss --loss-options reducer=SumReducer --miner none --method no-xbm"
    rest += " --warmup-epochs 0 --steps-per-epoch 1 --optimizer sgd --sgd-momentum 0 --weight-decay 0"
    rest += " --clip-gradient 0"
    moved = []
    for flags in ("--learning-rate 0.008 --loss-per-anchor", "--learning-rate 0.001"):
        run = new_run(f"{rest} {flags}")
        train_quietly(run)
        moved.append(run.task.model.head.state_dict())
    for name, value in moved[0].items():
        torch.testing.assert_close(value, moved[1][name])


def test_ring_loss_is_eq_4_about_the_norm_of_the_first_batch() -> None:
    loss_fn = make_loss("RingLoss", {}, num_classes=5, embedding_size=3)
    first, second, labels = torch.randn(8, 3), torch.randn(6, 3), torch.zeros(8)
    norms = [np.linalg.norm(rows.double().numpy(), axis=1) for rows in (first, second)]
    for rows, lengths in zip((first, second), norms, strict=True):
        expected = ((lengths - norms[0].mean()) ** 2).sum() / (2 * len(rows))
        assert loss_fn(rows, labels).item() == pytest.approx(expected, rel=1e-5)
    loss_fn(second, labels).backward()
    assert loss_fn.radius.grad.item() == pytest.approx(norms[0].mean() - norms[1].mean(), rel=1e-4)


def test_center_contrastive_loss_is_eq_3_4() -> None:
    options = {"scale": 3.0, "margin": 0.2, "centre_weight": 0.7}
    loss_fn = make_loss("CenterContrastiveLoss", options, num_classes=5, embedding_size=3)
    rows, labels = torch.randn(8, 3), torch.arange(8) % 5
    (centres,) = (part.detach().double().numpy() for part in loss_fn.parameters())
    total = 0.0
    for row, y in zip(rows.double().numpy(), labels.tolist(), strict=True):
        cosines = centres @ row / np.linalg.norm(centres, axis=1) / np.linalg.norm(row)
        own = np.exp(3 * (cosines[y] - 0.2))
        total -= np.log(own * np.exp(2 * 0.7 * cosines[y]) / (own + np.exp(3 * cosines).sum()))
    assert loss_fn(rows, labels).item() == pytest.approx(total / 8, rel=1e-5)


@pytest.mark.parametrize(
    ("beside", "expected"),
    [
        (
            "NormalizedSoftmaxLoss --beside-options temperature=1",
            lambda rows, labels, weights: cross_entropy(normalize(rows) @ normalize(weights, dim=0), labels),
        ),
        (
            "TripletMarginLoss --beside-options margin=0 smooth_loss=True",
            lambda rows, labels, weights: torch.stack(
                [
                    torch.nn.functional.softplus((a - p).norm() - (a - n).norm())
                    for i, a in enumerate(normalize(rows))
                    for j, p in enumerate(normalize(rows))
                    for k, n in enumerate(normalize(rows))
                    if i != j and labels[i] == labels[j] != labels[k]
                ]
            ).mean(),
        ),
    ],
    ids=["L2-Norm", "SoftMargin"],
)
def test_losses_beside_the_softmax_are_the_papers(beside: str, expected: Any) -> None:
    setup = LossSetup(embedding_size=16, memory_size=8, num_classes=5, world_size=1)
    loss_fn = build_beside(read(f"--method sgsl --beside {beside}"), setup)
    rows, labels = torch.randn(8, 16), torch.arange(8) % 4
    weights = next(loss_fn.parameters(), None)
    torch.testing.assert_close(loss_fn(rows, labels), expected(rows, labels, weights))


def test_a_loss_beside_is_added_and_trained_from_the_first_stage_on() -> None:
    flags = "--method per-class --accumulate 1 --clip-gradient 0 --mixed-precision no"
    alone, both = new_run(flags), new_run(f"{flags} --beside RingLoss --beside-weight 0.5")
    for run in (alone, both):
        run.train_epoch()
    radius = both.task.parts["beside"].loss.radius
    assert radius.item() > 0
    assert radius.grad is not None
    # In the first step the models are the same, and embeddings of unit length: R is 1, and the loss is 0.
    first, second = (run.history.steps for run in (alone, both))
    assert first[0]["loss"] == pytest.approx(second[0]["loss"], rel=1e-5)


def test_separability_is_that_of_features_before_they_are_normalized() -> None:
    run = new_run("--preset sgsl --embedding-size 16")
    run.task.model.eval()
    images = torch.stack([run.task.evaluation.transform(image) for image, _ in run.task.data.queries.items])
    with torch.no_grad():
        features = run.task.model(images)
    assert features.norm(dim=1).std() > 0.01
    expected = class_separability(features, run.task.data.queries.labels)
    measured = run.task.evaluation(run.task.model)
    told = result_row(measured.accuracy, measured.embeddings)
    for name in ("criterion", "between", "within"):
        assert told[f"separability_{name}"] == pytest.approx(float(getattr(expected, name)), rel=1e-3)
    shares = superclass_neighbours(
        normalize(features), run.task.data.queries.superclasses[run.task.data.queries.labels]
    )
    for k, share in enumerate(shares.tolist(), start=1):
        assert told[f"superclass_within_{k}"] == pytest.approx(100 * share, rel=1e-6)


def test_weights_come_from_a_file(tmp_path: Path) -> None:
    source = timm.create_model("resnet18", num_classes=7)
    torch.save(source.state_dict(), tmp_path / "weights.pth")
    old = {key: value for key, value in source.state_dict().items() if "num_batches" not in key}
    torch.save(old, tmp_path / "old.pth")
    for name in ("weights.pth", "old.pth"):
        settings = read(f"--backbone resnet18 --pretrained --weights {tmp_path / name}")
        backbone = build_model(settings, num_calls=1)[0].backbone
        assert all(torch.equal(value, source.state_dict()[key]) for key, value in backbone.named_parameters())
        assert weights_name(settings) == f"resnet18 from {tmp_path / name}"


def test_a_file_without_the_weights_is_refused(tmp_path: Path) -> None:
    other, larger = tmp_path / "other.pth", tmp_path / "larger.pth"
    torch.save({"head.weight": torch.zeros(1)}, other)
    torch.save(timm.create_model("resnet26", num_classes=7).state_dict(), larger)
    for file in (other, larger):
        with pytest.raises(ValueError, match=f"--weights is {file}, .*resnet18"):
            build_model(read(f"--backbone resnet18 --pretrained --weights {file}"), num_calls=1)


def test_weights_are_named_by_their_tag() -> None:
    default = timm.get_pretrained_cfg("resnet50").tag
    for flags, name in (
        ("--backbone resnet50", f"resnet50.{default}"),
        ("--backbone resnet50.tv_in1k", "resnet50.tv_in1k"),
        ("--backbone resnet50 --no-pretrained", "resnet50, untrained"),
    ):
        assert weights_name(read(f"--pretrained {flags}")) == name
