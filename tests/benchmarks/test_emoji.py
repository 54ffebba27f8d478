"""Emoji as they are read, and runs of the study on them, stopped and resumed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from efficientnet_wheel import write_weights
from emoji_packages import CATEGORIES, CLASSES, VENDORS, package, write_emoji
from PIL import Image

from benchmarks.engine.efficientnet import LateStages, frozen_features, load_network
from benchmarks.engine.emoji import SPLITS, emoji_entries, load_emoji
from benchmarks.engine.emoji_folders import write_folders
from benchmarks.engine.run import Run
from benchmarks.study import cases as study_cases
from benchmarks.study import run as study_run
from benchmarks.study.budget import Budget
from benchmarks.study.cases import Case
from benchmarks.study.data_sets import Roots

REGIME = "emoji, 6 epochs"
PACE = study_run.Pace(evaluations=2, measured_every=3, warmup=5)


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("emoji")
    write_emoji(folder)
    return folder


@pytest.fixture
def _tiny_budget(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(study_cases.BUDGETS, REGIME, Budget("emoji", 6))


def test_folders_have_the_classes_that_are_not_kept_back_on_white(root: Path, tmp_path: Path) -> None:
    count = write_folders(root, tmp_path)
    splits = {split: emoji_entries(root, split) for split in SPLITS}
    assert count == len(splits["train"]) + len(splits["test"])
    assert not {one["unified"] for one in splits["final"]} & {folder.name for folder in tmp_path.iterdir()}
    files = [
        tmp_path / one["unified"] / f"{vendor}.png"
        for one in splits["train"]
        for vendor in VENDORS
        if one[f"has_img_{vendor}"]
    ]
    written = torch.stack([torch.from_numpy(np.array(Image.open(file))) for file in files])
    assert torch.equal(255 - written.permute(0, 3, 1, 2), load_emoji(root, "train", None, side=64).images)


def test_every_emoji_of_three_vendors_is_in_one_split(root: Path) -> None:
    splits = {split: load_emoji(root, split, None) for split in SPLITS}
    sizes = {split: torch.bincount(images.labels) for split, images in splits.items()}
    assert sum(map(len, sizes.values())) == CLASSES
    assert sorted(torch.cat(list(sizes.values())).tolist()) == sorted(3 + (i % 3 > 0) for i in range(CLASSES))
    assert min(map(len, sizes.values())) > 4
    for images in splits.values():
        assert images.images.shape == (len(images.labels), 3, 32, 32)
        assert len(images.superclasses) == len(images.labels.unique())
        assert int(images.superclasses.max()) < len(CATEGORIES)
    assert len({images.checksum for images in splits.values()}) == len(SPLITS)
    assert splits["train"].images.dtype == torch.uint8


def test_images_are_ink_on_paper(root: Path) -> None:
    train = load_emoji(root, "train", None)
    found = {tuple(image.flatten().tolist()) for image in train.images}
    table = json.loads((package(root, "apple") / "emoji.json").read_text())
    likely = 0
    for emoji in table:
        path = package(root, "apple") / "img" / "apple" / "64" / emoji["image"]
        pixels = np.asarray(Image.open(path)).astype(float)
        alpha = pixels[..., 3:] / 255
        on_white = pixels[..., :3] * alpha + 255 * (1 - alpha)
        ink = 255 - on_white.reshape(32, 2, 32, 2, 3).mean(axis=(1, 3)).transpose(2, 0, 1)
        likely += any(np.abs(np.array(image) - ink.ravel()).max() < 1.5 for image in found)
    assert likely == len(train.superclasses)


def test_a_split_depends_on_the_emoji_alone(root: Path, tmp_path: Path) -> None:
    write_emoji(tmp_path)
    for vendor in VENDORS:
        path = package(tmp_path, vendor) / "emoji.json"
        table = json.loads(path.read_text())
        path.write_text(json.dumps(table[::2]))
    fewer, all_of_them = (load_emoji(folder, "train", None) for folder in (tmp_path, root))
    images = {tuple(image.flatten().tolist()) for image in all_of_them.images}
    assert 0 < len(fewer.images) < len(images)
    assert all(tuple(image.flatten().tolist()) in images for image in fewer.images)


def test_images_of_another_version_are_refused(tmp_path: Path) -> None:
    write_emoji(tmp_path, version="15.1.2")
    with pytest.raises(ValueError, match=r"version 15\.1\.2; the images are those of 16\.0\.0"):
        load_emoji(tmp_path, "train", None)


@pytest.mark.usefixtures("_tiny_budget")
@pytest.mark.parametrize("method", ["no-xbm", "xbn", "xbm+warm-up", "xbm+momentum 0.99", "xbm+oldest"])
def test_a_run_that_was_stopped_goes_on_to_the_same_result(
    method: str, root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    case = Case(method, int("oldest" in method), 8, 0.5 * (method != "no-xbm"), "batch", REGIME, 1)
    whole = study_run.train(case, tmp_path / "whole", None, Roots(root), PACE)
    assert [row["epoch"] for row in whole["epochs"]] == [3, 6]

    train_epoch = Run.train_epoch
    with monkeypatch.context() as patch:

        def until_the_fifth(run: Run, *args: Any) -> bool:
            if run.epoch == 4:
                raise KeyboardInterrupt
            return train_epoch(run, *args)

        patch.setattr(Run, "train_epoch", until_the_fifth)
        with pytest.raises(KeyboardInterrupt):
            study_run.train(case, tmp_path, None, Roots(root), PACE._replace(saved_after=-1))
    trained = []
    monkeypatch.setattr(
        Run, "train_epoch", lambda run, *args: trained.append(run.epoch) or train_epoch(run, *args)
    )
    resumed = study_run.train(case, tmp_path, None, Roots(root), PACE)
    assert trained == [4, 5]
    for outcome in (whole, resumed):
        for name in ("minutes", "cpu_minutes"):
            assert outcome["result"].pop(name) > 0
    assert resumed == whole


@pytest.mark.usefixtures("_tiny_budget")
def test_a_run_ends_with_an_evaluation(root: Path, tmp_path: Path) -> None:
    pace = PACE._replace(evaluations=1.5)  # every fourth epoch
    outcome = study_run.train(
        Case("no-xbm", 0, 8, 0.0, "batch", REGIME, 1), tmp_path, None, Roots(root), pace
    )
    assert [row["epoch"] for row in outcome["epochs"]] == [4, 6]


@pytest.fixture
def _weights(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(write_weights(tmp_path / "site"))


@pytest.mark.usefixtures("_weights")
def test_the_late_stages_go_on_from_the_frozen_ones() -> None:
    network, ink = load_network(), torch.rand(3, 3, 64, 64)
    early, pooled = frozen_features(network, ink)
    with torch.no_grad():
        whole = network.forward_features(1 - 2 * ink).mean(dim=(2, 3))
        torch.testing.assert_close(pooled, whole)
        late = LateStages(network, 5).eval()
        torch.testing.assert_close(late(early), late[1](whole))


@pytest.mark.usefixtures("_weights")
def test_a_pretrained_network_trains_on_one_of_the_copies(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(study_cases.BUDGETS, "tiny", Budget("pretrained", 2))
    case = Case("xbm+warm-up of an epoch", 0, 16, 0.5, "batch", "tiny", 1)
    run = study_run.begin(case, tmp_path, None, Roots(root))
    images, _ = next(iter(run.task.batches(0, 0)))
    copies = run.task.data.train.images.flatten(0, 1)
    assert len(copies) == 4 * len(run.task.data.train.labels)
    assert all((copies == image).flatten(1).all(dim=1).any() for image in images)
    outcome = study_run.train(case, tmp_path, None, Roots(root))
    assert 0 <= outcome["result"]["recall_at_1"] <= 100
    assert [row["epoch"] for row in outcome["epochs"]] == [1, 2]
    hits, numbers = (sum(map(int, outcome["classes"][name].split())) for name in ("hits", "images"))
    assert outcome["result"]["recall_at_1"] == pytest.approx(100 * hits / numbers)
