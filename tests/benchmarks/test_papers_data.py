from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import tiny_datasets
import torch
from PIL.Image import Image as PillowImage
from tiny_han_fonts import draw_tiny_han
from torch.nn.functional import normalize
from training_script import has_timm, result_of, run_script

if not has_timm():
    pytest.skip("timm cannot be imported", allow_module_level=True)

from benchmarks.engine.ranks import Ranks
from benchmarks.papers.augmentation import build_transforms
from benchmarks.papers.data import TaskData, load_data
from benchmarks.papers.evaluation import Evaluation
from benchmarks.papers.presets import read_settings
from benchmarks.papers.settings import CHARACTERS, DATASETS
from pml_xbn.datasets import Han, VehicleID

WRITERS = {
    "sop": tiny_datasets.write_stanford_online_products,
    "in-shop": tiny_datasets.write_in_shop,
    "deep-fashion2": tiny_datasets.write_deep_fashion_2,
    "vehicle-id": tiny_datasets.write_vehicle_id,
    "cifar10": tiny_datasets.write_cifar10,
    "cifar100": tiny_datasets.write_cifar100,
    "cub": tiny_datasets.write_cub,
    "cars": tiny_datasets.write_cars196,
}
GALLERIES = ("in-shop", "deep-fashion2")
SUPERCLASSES = ("sop", "in-shop", "deep-fashion2", "cifar100")


@pytest.mark.parametrize("name", [name for name in DATASETS if name not in CHARACTERS])
def test_every_dataset_is_loaded_with_its_protocol(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if name in ("cub", "cars"):
        pytest.importorskip("pytorch_metric_learning.datasets")
    WRITERS[name](tmp_path, *([monkeypatch] if name.startswith("cifar") else []))
    data = load_data(read_settings(["--dataset", name, "--root", str(tmp_path)]))
    for images in filter(None, (data.train, data.queries, data.gallery)):
        image, label = images.items[int(images.positions[-1])]
        assert (image.mode, label) == ("RGB", int(images.labels[-1]))
    assert int(data.train.labels.max()) < data.num_classes
    assert (data.gallery is not None) == (name in GALLERIES)
    assert (data.drawn_galleries is not None) == (name == "vehicle-id")
    for images in (data.train, data.queries):
        assert (images.superclasses is not None) == (name in SUPERCLASSES)
        if images.superclasses is not None:
            assert len(images.superclasses) > int(images.labels.max())


def test_han_is_grey_and_ten_thousand_classes_elsewhere(tmp_path: Path) -> None:
    pytest.importorskip("fontTools")
    draw_tiny_han(tmp_path)
    settings = read_settings(["--dataset", "han", "--root", str(tmp_path), "--no-pretrained"])
    data = load_data(settings)
    han = Han("test", tmp_path)
    config = {"mean": (0.5, 0.4, 0.3), "std": (0.2, 0.3, 0.4)}
    train, test = build_transforms(settings, config)
    for images, transform in ((data.train, train), (data.queries, test)):
        image, label = images.items[int(images.positions[-1])]
        assert (transform(image).shape, label) == ((3, 32, 32), int(images.labels[-1]))
        assert images.superclasses is not None
    expected = (han.images[0].double() / 255 - 0.4) / 0.3
    torch.testing.assert_close(test(data.queries.items[0][0])[1].double(), expected, atol=1e-6, rtol=1e-5)
    assert data.gallery is None


def load_vehicles(root: Path, *flags: str) -> TaskData:
    tiny_datasets.write_vehicle_id(root)
    arguments = ["--dataset", "vehicle-id", "--root", str(root), *flags]
    return load_data(read_settings(arguments))


@pytest.mark.parametrize(("size", "queries"), [("small", 3), ("medium", 1), ("large", 1)])
def test_vehicles_have_three_test_sets(size: str, queries: int, tmp_path: Path) -> None:
    data = load_vehicles(tmp_path, "--test-size", size)
    assert data.gallery is None
    assert data.drawn_galleries is not None
    assert data.drawn_galleries.shape == (10, len(data.queries))
    for drawn in data.drawn_galleries:
        vehicles = data.queries.labels[drawn]
        assert sorted(vehicles.tolist()) == data.queries.labels.unique().tolist()  # one image of each
        assert int((~drawn).sum()) == queries


def test_galleries_of_fewer_vehicles_are_drawn_alike(tmp_path: Path) -> None:
    every = load_vehicles(tmp_path)
    some = load_vehicles(tmp_path, "--limit-classes", "2", "--gallery-draws", "3")
    assert every.drawn_galleries is not None
    assert some.drawn_galleries is not None
    kept = every.queries.labels < 2
    assert some.drawn_galleries.tolist() == every.drawn_galleries[:3, kept].tolist()


class Colour(torch.nn.Module):
    """Embeds an image by its mean colours, and counts the images."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        self.count += len(images)
        return images.mean((2, 3))


def test_figures_of_vehicles_are_means_over_galleries_of_images_embedded_once(tmp_path: Path) -> None:
    pytest.importorskip("faiss")
    rows = [(f"{number:07}", number % 5) for number in range(30)]
    tiny_datasets.write_vehicle_id(tmp_path)
    tiny_datasets.write_vehicle_list(tmp_path, "test_list_800.txt", rows)
    generator = torch.Generator().manual_seed(0)
    for image, vehicle in rows:
        centre = 40 * vehicle + torch.randint(80, (3,), generator=generator)
        tiny_datasets.Image.new("RGB", (12, 10), tuple(centre.clamp(max=255).tolist())).save(
            tmp_path / "image" / f"{image}.jpg"
        )
    flags = ["--dataset", "vehicle-id", "--root", str(tmp_path), "--workers", "0", "--gallery-draws", "4"]
    settings = read_settings(flags)
    data = load_data(settings)
    model = Colour()
    measured = Evaluation(settings, data, transform, Ranks(cpu=True))(model).accuracy
    assert model.count == 30

    def embed(dataset: VehicleID) -> torch.Tensor:
        images = torch.stack([transform(image) for image, _ in dataset])
        return normalize(images.mean((2, 3)))

    hits = []
    for seed in range(4):
        query, gallery = (
            VehicleID(tmp_path, f"small-{part}", gallery_seed=seed) for part in ("query", "gallery")
        )
        nearest = torch.cdist(embed(query), embed(gallery)).argmin(dim=1)
        hits.append((gallery.labels[nearest] == query.labels).double().mean().item())
    assert len(set(hits)) > 1
    assert measured["recall_at_1"] == pytest.approx(100 * sum(hits) / 4)


def transform(image: PillowImage) -> torch.Tensor:
    return torch.from_numpy(np.array(image)).movedim(-1, 0).float() / 255 - 0.5


def test_protocol_of_deep_fashion_2_is_the_presets(tmp_path: Path) -> None:
    tiny_datasets.write_deep_fashion_2(tmp_path)
    flags = ["--dataset", "deep-fashion2", "--root", str(tmp_path)]
    for more, protocol, classes in (
        ([], "axbn", 3),
        (["--preset", "xbm"], "xbm", 2),
        (["--preset", "xbm", "--protocol", "axbn"], "axbn", 3),
    ):
        settings = read_settings([*flags, *more])
        assert settings.protocol == protocol
        assert load_data(settings).num_classes == classes


def test_queries_are_searched_for_in_the_gallery(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    parts = ["train"] * 4 + ["query", "gallery", "gallery"]
    rows = [
        (f"img/WOMEN/{kind}/id_{item + 10 * (part != 'train'):08}/{number}.jpg", part)
        for item, kind in enumerate(("Dresses", "Dresses", "Denim", "Denim"))
        for number, part in enumerate(parts)
    ]
    tiny_datasets.write_in_shop(tmp_path, [(path, path.split("/")[3], part) for path, part in rows])
    generator = torch.Generator().manual_seed(0)
    for path, _ in rows:
        pixels = torch.randint(256, (10, 12, 3), dtype=torch.uint8, generator=generator).numpy()
        tiny_datasets.Image.fromarray(pixels).save(tmp_path / "Img" / path, format="JPEG")
    flags = ["--dataset", "in-shop", "--root", str(tmp_path), "--image-size", "32", "--method", "super-class"]
    run_script(monkeypatch, tmp_path / "out", *flags, "--binary", "--no-nmi")
    assert "16 training images of 4 classes, 4 queries in a gallery of 8" in capsys.readouterr().out
    result = result_of(tmp_path / "out")
    assert "map_at_r" in result
    assert "recall_at_10" not in result  # a gallery of 8 has no 10 neighbours
    assert result["recall_at_1"] in (0, 25, 50, 75, 100)
