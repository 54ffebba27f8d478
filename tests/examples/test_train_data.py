from __future__ import annotations

from pathlib import Path

import pytest
import tiny_datasets
import torch
from training_script import has_timm, result_of, run_script

if not has_timm():
    pytest.skip("timm cannot be imported", allow_module_level=True)

from training.command_line import build_parser, read_settings
from training.data import load_data
from training.settings import DATASETS

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
GALLERIES = ("in-shop", "deep-fashion2", "vehicle-id")
SUPERCLASSES = ("sop", "in-shop", "deep-fashion2", "cifar100")


@pytest.mark.parametrize("name", [name for name in DATASETS if name != "glyphs"])
def test_every_dataset_is_loaded_with_its_protocol(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if name in ("cub", "cars"):
        pytest.importorskip("pytorch_metric_learning.datasets")
    WRITERS[name](tmp_path, *([monkeypatch] if name.startswith("cifar") else []))
    data = load_data(read_settings(build_parser(None), ["--dataset", name, "--root", str(tmp_path)]))
    for images in filter(None, (data.train, data.queries, data.gallery)):
        image, label = images.items[int(images.positions[-1])]
        assert (image.mode, label) == ("RGB", int(images.labels[-1]))
    assert int(data.train.labels.max()) < data.num_classes
    assert (data.gallery is not None) == (name in GALLERIES)
    for images in (data.train, data.queries):
        assert (images.superclasses is not None) == (name in SUPERCLASSES)
        if images.superclasses is not None:
            assert len(images.superclasses) > int(images.labels.max())


@pytest.mark.parametrize(("size", "queries"), [("small", 3), ("medium", 1), ("large", 1)])
def test_vehicles_have_three_test_sets(size: str, queries: int, tmp_path: Path) -> None:
    tiny_datasets.write_vehicle_id(tmp_path)
    flags = ["--dataset", "vehicle-id", "--root", str(tmp_path), "--test-size", size]
    data = load_data(read_settings(build_parser(None), flags))
    assert data.gallery is not None
    assert len(data.queries) == queries
    assert len(data.gallery) == len(data.gallery.labels.unique())  # one image of every vehicle


def test_absent_dataset_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    flags = ["--dataset", "in-shop", "--root", str(tmp_path / "absent")]
    with pytest.raises(SystemExit, match=r"error: .*list_eval_partition\.txt is missing"):
        run_script(monkeypatch, tmp_path / "out", *flags)


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
    assert set(result) == {"epoch", "recall_at_1", "map_at_r"}  # a gallery of 8 has no 10 neighbours
    assert result["recall_at_1"] in (0, 25, 50, 75, 100)
