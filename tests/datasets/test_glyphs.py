import sys

import pytest
import torch
from torch.utils.data import DataLoader

from pml_xbn.datasets import Glyphs
from pml_xbn.datasets.glyph_rendering import render_glyphs

SPLITS = ("train", "test")


@pytest.fixture(params=SPLITS)
def dataset(request: pytest.FixtureRequest) -> Glyphs:
    return Glyphs(request.param)


def test_a_half_holds_thousands_of_classes(dataset: Glyphs) -> None:
    # The fonts have not changed since 2016, but a new FreeType may merge or part some images.
    assert abs(len(dataset.label_names) - 2175) < 75
    assert abs(len(dataset) - 17_280) < 600


def test_shapes_and_dtypes(dataset: Glyphs) -> None:
    size, classes = len(dataset), len(dataset.label_names)
    assert dataset.images.shape == (size, 32, 32)
    assert dataset.images.dtype == torch.uint8
    assert dataset.labels.shape == (size,)
    assert dataset.labels.dtype == torch.int64
    assert dataset.superclasses.shape == (classes,)
    assert dataset.superclasses.dtype == torch.int64
    assert (dataset.paths, dataset.evaluation) == (None, ("test",))


def test_nothing_depends_on_the_default_device(dataset: Glyphs) -> None:
    with torch.device("meta"):
        found = Glyphs(dataset.split)
    for name in ("images", "labels", "superclasses"):
        assert torch.equal(getattr(found, name), getattr(dataset, name))


def test_labels_are_contiguous_with_3_to_16_images_each(dataset: Glyphs) -> None:
    counts = dataset.labels.bincount()
    assert len(counts) == len(dataset.label_names)
    assert counts.min() == 3
    assert counts.max() == 16


def test_superclasses_are_contiguous_and_are_the_first_words(dataset: Glyphs) -> None:
    assert len(set(dataset.superclass_names)) == len(dataset.superclass_names)
    assert dataset.superclasses.unique().tolist() == list(range(len(dataset.superclass_names)))
    for name, superclass in zip(dataset.label_names, dataset.superclasses.tolist(), strict=True):
        assert name.split()[0] == dataset.superclass_names[superclass]


@pytest.mark.parametrize("script", ["LATIN", "GREEK", "CYRILLIC", "ARABIC", "CANADIAN", "BRAILLE"])
def test_both_halves_hold_the_large_scripts(script: str) -> None:
    for split in SPLITS:
        dataset = Glyphs(split)
        superclass = dataset.superclass_names.index(script)
        assert (dataset.superclasses == superclass).sum() > 80


def test_halves_share_no_character() -> None:
    train, test = Glyphs("train"), Glyphs("test")
    assert set(train.label_names).isdisjoint(test.label_names)
    assert len(set(train.label_names)) == len(train.label_names)


def test_no_two_images_of_either_half_are_equal() -> None:
    images = torch.cat([Glyphs(split).images for split in SPLITS])
    distinct = {image.numpy().tobytes() for image in images}
    assert len(distinct) == len(images)


def test_every_image_has_ink_that_stays_off_the_border(dataset: Glyphs) -> None:
    assert dataset.images.amax(dim=(1, 2)).min() > 0
    inner = dataset.images[:, 1:-1, 1:-1]
    assert inner.sum(dtype=torch.int64) == dataset.images.sum(dtype=torch.int64)


def test_halves_share_one_rendering_which_a_fresh_one_repeats() -> None:
    first = Glyphs("train")
    render_glyphs.cache_clear()
    train, test = Glyphs("train"), Glyphs("test")
    assert render_glyphs.cache_info().misses == 1
    assert first.checksum == train.checksum == test.checksum
    assert torch.equal(train.images, first.images)


def test_changing_one_dataset_leaves_the_next_as_it_was() -> None:
    first = Glyphs("train")
    expected = first.images.clone()
    first.images.zero_()
    assert torch.equal(Glyphs("train").images, expected)


def test_item_without_transforms_is_an_image_and_an_int(dataset: Glyphs) -> None:
    image, label = dataset[5]
    assert torch.equal(image, dataset.images[5, None])
    assert type(label) is int
    assert label == dataset.labels[5]


def test_transforms_are_applied() -> None:
    dataset = Glyphs(transform=lambda image: image.float() / 255, target_transform=str)
    image, label = dataset[-1]
    assert torch.equal(image, dataset.images[-1, None] / 255)
    assert label == str(int(dataset.labels[-1]))


def test_default_loader_collates_batches() -> None:
    images, labels = next(iter(DataLoader(Glyphs("test"), batch_size=8)))
    assert images.shape == (8, 1, 32, 32)
    assert labels.shape == (8,)


def test_unknown_split_names_it_and_the_valid_ones() -> None:
    with pytest.raises(ValueError, match="split is 'val'; choose one of 'train' and 'test'"):
        Glyphs("val")


def test_without_matplotlib_the_error_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pml_xbn.datasets.glyphs.render_glyphs", render_glyphs.__wrapped__)
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(ImportError, match=r'pip install "pml_xbn\[examples\]"'):
        Glyphs("train")
