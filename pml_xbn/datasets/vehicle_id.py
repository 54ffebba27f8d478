"""PKU VehicleID."""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from .annotation_files import read_rows, relative_path
from .image_dataset import Annotation, ImageDataset

if TYPE_CHECKING:
    from PIL.Image import Image

_VEHICLES = {"small": 800, "medium": 1600, "large": 2400}
_IMAGES = {"small": 6_493, "medium": 13_377, "large": 19_777}


class VehicleID(ImageDataset):
    """PKU VehicleID: vehicles on surveillance cameras.

    Splits, with the figures of the lists as they are released, and in brackets those of the dataset's paper,
    which XBM repeats (§4.2):

    * ``"train"``: 113,346 images of 13,164 vehicles (110,178 of 13,134).
    * ``"small"``: a test list of 800 vehicles, 6,493 images (7,332).
    * ``"medium"``: 1,600 vehicles, 13,377 images (12,995).
    * ``"large"``: 2,400 vehicles, 19,777 images (20,038).

    One image of every vehicle, drawn at random, is the gallery and all others are queries, the protocol of
    the dataset's authors, which the XBM paper follows. Those are the splits ``"small-query"``,
    ``"small-gallery"`` and so on. Figures depend on the draw: average them over several. A list as a whole
    serves for that (`draw_gallery`), or for searching every image among all others, which gives other
    figures: compare like with like. There are no superclasses for all vehicles.

    Needs ``train_test_split/train_list.txt``, ``train_test_split/test_list_800.txt`` (``1600``, ``2400``)
    and ``image/*.jpg``.

    Source: Liu et al., Deep Relative Distance Learning: Tell the Difference Between Similar Vehicles, CVPR
    2016, https://www.pkuml.org/resources/pku-vehicleid.html.

    Args:
        gallery_seed: another seed draws another gallery.

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
    official_counts = (
        113_346,
        *(n for size, v in _VEHICLES.items() for n in (_IMAGES[size], _IMAGES[size] - v, v)),
    )

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
        rows = read_rows(path, {"image": relative_path, "vehicle": int})
        class_names = {vehicle: str(vehicle) for _, vehicle in rows}
        if part:
            gallery = _draw([vehicle for _, vehicle in rows], self.gallery_seed)
            rows = [row for i, row in enumerate(rows) if (i in gallery) == (part == "gallery")]
        return Annotation(
            classes=[vehicle for _, vehicle in rows],
            class_names=class_names,
            paths=[self.root / "image" / f"{image}.jpg" for image, _ in rows],
        )

    def draw_gallery(self, seed: int) -> Tensor:
        """Draws a gallery from a whole test list, so that its images need to be embedded only once.

        Args:
            seed: that of ``gallery_seed`` draws the same gallery.

        Returns:
            (N,) bool tensor: which images are the gallery; the others are the queries.

        Raises:
            ValueError: the dataset is no test list as a whole.
        """
        if self.split not in _VEHICLES:
            sizes = ", ".join(map(repr, _VEHICLES))
            raise ValueError(f"a gallery is drawn from a test list, not from {self.split!r}; load {sizes}")
        is_gallery = torch.zeros(len(self), dtype=torch.bool, device="cpu")
        is_gallery[list(_draw(self.labels.tolist(), seed))] = True
        return is_gallery


def _draw(vehicles: list[int], seed: int) -> set[int]:
    """Returns one position in the list for every vehicle."""
    positions = defaultdict(list)
    for position, vehicle in enumerate(vehicles):
        positions[vehicle].append(position)
    # Only random() is promised to give the same numbers in every version of Python.
    uniform = random.Random(seed).random
    return {images[int(uniform() * len(images))] for images in positions.values()}
