"""Icons as they are read and drawn."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from benchmarks.engine.icons import SPLITS, STYLES, VERSIONS, load_icons

NAMES = tuple(f"{word}-{number}" for word in ("arrow", "file", "user") for number in range(8))
FEW = ("moon", "sun")  # that three authors have drawn


def write_icons(root: Path) -> None:
    """Five authors draw every name, those with styles two of them; all hide one more name."""
    for number, package in enumerate(VERSIONS):
        style = STYLES.get(package, "")
        names = NAMES if number < 5 else ()
        if package in STYLES:
            names = NAMES[:2]
        names = (*names, *(FEW if number < 3 else ()))
        icons = {f"{name}{style}": icon(i, number) for i, name in enumerate(names)}
        if style:
            icons["moon-filled"] = icon(0, number)  # another style
        icons[f"hidden{style}"] = {**icon(1, number), "hidden": True}
        sizes = {} if number == 0 else {"width": 24, "height": 24}
        folder = root / package
        folder.mkdir(parents=True)
        for file, value in (
            ("package.json", {"name": f"@iconify-json/{package}", "version": VERSIONS[package]}),
            ("icons.json", {"prefix": package, "icons": icons, **sizes}),
        ):
            (folder / file).write_text(json.dumps(value), encoding="utf-8")


def icon(name: int, author: int) -> dict[str, object]:
    side = 4 + name % 8
    square = f'<path fill="currentColor" d="M{author % 5} {author % 3}h{side}v{4 + name // 8}h-{side}z"/>'
    return {"body": square, "width": 20} if author == 1 else {"body": square}


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("icons")
    write_icons(folder)
    return folder


def test_every_name_of_four_authors_is_in_one_split(root: Path) -> None:
    splits = {split: load_icons(root, split, None) for split in SPLITS}
    sizes = torch.cat([torch.bincount(images.labels) for images in splits.values()])
    assert len(sizes) == len(NAMES)  # those of few authors are left out
    with_a_style = 2 * len(STYLES)  # two names, drawn by every author that has one
    assert int(sizes.sum()) == 5 * len(NAMES) + with_a_style
    for images in splits.values():
        assert images.images.shape == (len(images.labels), 3, 64, 64)
        assert int(images.superclasses.max()) == 2  # arrow, file and user
    assert splits["train"].images.dtype == torch.uint8
    assert splits["train"].checksum != splits["test"].checksum


def test_icons_are_ink_on_paper_at_their_own_size(root: Path) -> None:
    train = load_icons(root, "train", None)
    first = train.images[train.labels == 0]
    # The first author, whose package names no size, has 16 units: a square at the left upper corner.
    ink = first[0, 0].numpy() > 127
    rows, columns = np.nonzero(ink)
    assert rows.min() == columns.min() == 0
    name = next(i for i in range(len(NAMES)) if (columns.max() + 1) // 4 == 4 + i % 8)
    assert columns.max() + 1 == 4 * (4 + name % 8)
    assert torch.equal(first[0, 0], first[0, 2])
    # The second draws on 20 by 24 units, of which the longer side fills the picture.
    across = np.nonzero(first[1, 0].numpy().max(axis=0) > 127)[0]
    assert len(across) == pytest.approx((4 + name % 8) * 64 / 24, abs=1)


def test_images_of_another_version_are_refused(tmp_path: Path) -> None:
    write_icons(tmp_path)
    (tmp_path / "ph" / "package.json").write_text(json.dumps({"version": "1.0.0"}))
    with pytest.raises(ValueError, match=rf"version 1\.0\.0; the images are those of {VERSIONS['ph']}"):
        load_icons(tmp_path, "train", None)
