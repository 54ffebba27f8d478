"""DeepFashion2, consumer-to-shop retrieval."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from .deep_fashion_2_items import CATEGORIES, Item, read_items, read_items_once
from .image_dataset import Annotation, ImageDataset

if TYPE_CHECKING:
    from PIL.Image import Image

_PROTOCOLS = ("axbn", "xbm")


class DeepFashion2(ImageDataset):
    """DeepFashion2: finding what somebody wears on a photo of their own in the photos of shops.

    Every image of this dataset is the ground-truth bounding box of one item, a superclass is one of the 13
    categories. Splits, with the counts of the AXBN paper (§5.2):

    * ``"train"``: the items of the training set that have a style, from consumers and shops (217,778).
    * ``"query"``: consumers' items of the validation set that have a style (12,377).
    * ``"gallery"``: all shops' items of the validation set (36,961).

    Style 0 stands for items without a counterpart. They are neither trained on nor searched for, but those
    of the shops stay in the gallery, where a search can wrongly find them, as in the dataset's own
    evaluation. The test set is not offered, since its annotations are not public.

    What a class is depends on the protocol:

    * ``"axbn"``: what agrees in ``pair_id``, ``category_id`` and ``style``, as in the AXBN paper (§5.2) and
      the thesis (§5.1.3): 31,517 classes in training, 3,128 among the queries, 7,059 in the gallery. A query
      whose counterparts were all given another category has no match. It is to count as a miss.
    * ``"xbm"``: what agrees in ``pair_id`` and ``style``, whatever its category (of several, the first one
      is the superclass). It is the dataset's own evaluation, which the XBM paper follows (supplementary,
      §1).

    The XBM paper has 32,550 queries on 10,990 images, and a gallery of 37,183. The dataset's page (Table 1)
    has that gallery too, but 12,550 queries, and 54,910 boxes in the whole validation set, which are fewer
    than 32,550 and 37,183: we read 32,550 as a misprint. Those are figures of the set before its release,
    which holds less, so that neither can be had from its files.

    An item whose box holds no pixel and the ``._*.json`` files that macOS leaves in archives are skipped; a
    warning says how many.

    Needs ``train/annos/*.json``, ``train/image/*.jpg``, ``validation/annos/*.json`` and
    ``validation/image/*.jpg``. There is one file of annotations per image, so the training set takes
    minutes to read; where tqdm is installed, a bar shows how far it is. Queries and gallery made after each
    other read theirs once.

    Source: Ge et al., DeepFashion2: A Versatile Benchmark for Detection, Pose Estimation, Segmentation and
    Re-Identification of Clothing Images, CVPR 2019, https://github.com/switchablenorms/DeepFashion2.

    Args:
        protocol: ``"axbn"`` or ``"xbm"``.

    Other Args, Raises: as `ImageDataset`.

    Attributes:
        boxes: (N, 4) int64 tensor: left, upper, right and lower edge of the items in pixels.

    Other Attributes: as `ImageDataset`.

    Example:
        >>> import json
        >>> from pathlib import Path
        >>> from tempfile import TemporaryDirectory
        >>> from pml_xbn.datasets import DeepFashion2
        >>> item = {"category_id": 9, "style": 1, "bounding_box": [10, 20, 110, 180]}
        >>> with TemporaryDirectory() as root:
        ...     for folder in ("annos", "image"):
        ...         Path(root, "train", folder).mkdir(parents=True)
        ...     Path(root, "train", "image", "000001.jpg").touch()
        ...     _ = Path(root, "train", "annos", "000001.json").write_text(
        ...         json.dumps({"source": "user", "pair_id": 3, "item1": item})
        ...     )
        ...     dataset = DeepFashion2(root, "train")
        >>> dataset.label_names, dataset.boxes
        (['pair 3, skirt, style 1'], tensor([[ 10,  20, 110, 180]]))
    """

    title = "DeepFashion2"
    homepage = "https://github.com/switchablenorms/DeepFashion2"
    splits = ("train", "query", "gallery")
    evaluation = ("query", "gallery")
    official_counts = (217_778, 12_377, 36_961)

    def __init__(
        self,
        root: str | Path,
        split: str = "train",
        transform: Callable[[Image], Any] | None = None,
        target_transform: Callable[[int], Any] | None = None,
        download: bool = False,
        *,
        protocol: str = "axbn",
    ) -> None:
        if protocol not in _PROTOCOLS:
            raise ValueError(f"protocol is {protocol!r}; choose one of {', '.join(map(repr, _PROTOCOLS))}")
        self.protocol = protocol
        super().__init__(root, split, transform, target_transform, download)

    def _read(self) -> Annotation:
        folder = self.root / ("train" if self.split == "train" else "validation")
        found = sorted(self._existing(folder / "annos").glob("*.json"))
        files = [file for file in found if not file.name.startswith("._")]
        if not files:
            raise self._missing(folder / "annos" / "000001.json")
        read = read_items if self.split == "train" else read_items_once
        everything = read(files, f"annotations of {self.title}")

        if self.split == "train":
            shares_labels = listed = [item for item in everything if item.style > 0]
        else:
            shares_labels = [item for item in everything if item.from_shop or item.style > 0]
            listed = [item for item in shares_labels if item.from_shop == (self.split == "gallery")]
        shares_labels = [item for item in shares_labels if item.has_area]
        chosen = [item for item in listed if item.has_area]
        self._warn_of_skipped(len(found) - len(files), len(listed) - len(chosen))
        self.boxes: Tensor = torch.tensor([item.box for item in chosen], dtype=torch.int64, device="cpu")
        return Annotation(
            classes=[self._identity(item) for item in chosen],
            class_names={self._identity(item): self._name(item) for item in shares_labels},
            paths=[folder / "image" / item.image for item in chosen],
            # Of a class in several categories the first one counts, so read from the end.
            superclasses={self._identity(item): item.category - 1 for item in reversed(shares_labels)},
            superclass_names=CATEGORIES,
            skipped=len(listed) - len(chosen),
        )

    def _identity(self, item: Item) -> tuple[int, ...]:
        """Returns what makes two items the same piece of clothing."""
        if self.protocol == "xbm":
            return item.pair, item.style
        return item.pair, item.category, item.style

    def _name(self, item: Item) -> str:
        category = "" if self.protocol == "xbm" else f", {CATEGORIES[item.category - 1]}"
        return f"pair {item.pair}{category}, style {item.style}"

    def _warn_of_skipped(self, files: int, items: int) -> None:
        if files or items:
            warnings.warn(
                f"split {self.split!r} of {self.title} is read without {items} items whose box holds no "
                f"pixel and without {files} files that macOS left there (._*.json)",
                stacklevel=5,
            )

    def _image(self, index: int) -> Image:
        return super()._image(index).crop(tuple(self.boxes[index].tolist()))
