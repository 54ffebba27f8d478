"""PKU VehicleID."""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .annotation_files import read_rows
from .image_dataset import Annotation, ImageDataset

if TYPE_CHECKING:
    from PIL.Image import Image

_VEHICLES = {"small": 800, "medium": 1600, "large": 2400}


class VehicleID(ImageDataset):
    """PKU VehicleID: vehicles on surveillance cameras.

    Splits ``"train"`` and three test lists, ``"small"`` (7,332 images of 800 vehicles), ``"medium"``
    (12,995 of 1,600) and ``"large"`` (20,038 of 2,400). The XBM paper follows the protocol of the dataset's
    authors: one image of every vehicle, drawn at random, is the gallery and all others are queries. Those
    are the splits ``"small-query"``, ``"small-gallery"`` and so on. A list as a whole serves for searching
    every image among all others, which gives other figures: compare like with like.
    There are no superclasses for all vehicles.

    Needs ``train_test_split/train_list.txt``, ``train_test_split/test_list_800.txt`` (``1600``, ``2400``)
    and ``image/*.jpg``.

    Source: Liu et al., Deep Relative Distance Learning: Tell the Difference Between Similar Vehicles, CVPR
    2016, https://www.pkuml.org/resources/pku-vehicleid.html.

    Args:
        gallery_seed: another seed draws another gallery, for an average over several.

    Other Args, Attributes, Raises: as `ImageDataset`; ``label_names`` are the vehicle ids.

    Example:
        >>> from pathlib import Path
        >>> from tempfile import TemporaryDirectory
        >>> from pml_xbn.datasets import VehicleID
        >>> with TemporaryDirectory() as root:
        ...     for folder in ("image", "train_test_split"):
        ...         Path(root, folder).mkdir()
        ...     for image in ("0000001.jpg", "0000002.jpg"):
        ...         Path(root, "image", image).touch()
        ...     _ = Path(root, "train_test_split", "train_list.txt").write_text("0000001 42\\n0000002 7")
        ...     dataset = VehicleID(root, "train")
        >>> dataset.labels, dataset.label_names
        (tensor([1, 0]), ['7', '42'])
    """

    title = "PKU VehicleID"
    homepage = "https://www.pkuml.org/resources/pku-vehicleid.html"
    splits = ("train", *(size + part for size in _VEHICLES for part in ("", "-query", "-gallery")))
    evaluation = ("small-query", "small-gallery")

    def __init__(
        self,
        root: str | Path,
        split: str = "train",
        transform: Callable[[Image], Any] | None = None,
        target_transform: Callable[[int], Any] | None = None,
        download: bool = False,
        *,
        gallery_seed: int = 0,
    ) -> None:
        self.gallery_seed = gallery_seed
        super().__init__(root, split, transform, target_transform, download)

    def _read(self) -> Annotation:
        size, _, part = self.split.partition("-")
        name = "train_list.txt" if size == "train" else f"test_list_{_VEHICLES[size]}.txt"
        path = self._existing(self.root / "train_test_split" / name)
        rows = read_rows(path, {"image": str, "vehicle": int})
        class_names = {vehicle: str(vehicle) for _, vehicle in rows}
        if part:
            gallery = self._draw_gallery([vehicle for _, vehicle in rows])
            rows = [row for i, row in enumerate(rows) if (i in gallery) == (part == "gallery")]
        return Annotation(
            classes=[vehicle for _, vehicle in rows],
            class_names=class_names,
            paths=[self.root / "image" / f"{image}.jpg" for image, _ in rows],
        )

    def _draw_gallery(self, vehicles: list[int]) -> set[int]:
        """One position in the list for every vehicle."""
        positions = defaultdict(list)
        for position, vehicle in enumerate(vehicles):
            positions[vehicle].append(position)
        # Only random() is promised to give the same numbers in every version of Python.
        uniform = random.Random(self.gallery_seed).random
        return {images[int(uniform() * len(images))] for images in positions.values()}
