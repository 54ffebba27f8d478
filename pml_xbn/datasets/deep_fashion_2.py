"""DeepFashion2, consumer-to-shop retrieval."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from .deep_fashion_2_items import CATEGORIES, read_items
from .image_dataset import Annotation, ImageDataset

if TYPE_CHECKING:
    from PIL.Image import Image


class DeepFashion2(ImageDataset):
    """DeepFashion2: finding what somebody wears on a photo of their own in the photos of shops.

    Every image of this dataset is the ground-truth bounding box of one item. A class is what agrees in
    ``pair_id``, ``category_id`` and ``style``, a superclass is one of the 13 categories. Splits, with the
    figures of the AXBN paper (§5.2):

    * ``"train"``: the items of the training set that have a style, from consumers and shops (217,778
      items of 31,517 classes).
    * ``"query"``: consumers' items of the validation set that have a style (12,377 of 3,128 classes).
    * ``"gallery"``: all shops' items of the validation set (36,961 of 7,059 classes).

    Style 0 stands for items without a counterpart. They are neither trained on nor searched for, but those
    of the shops stay in the gallery, where a search can wrongly find them, as in the dataset's own
    evaluation. The test set is not offered, since its annotations are not public.

    Needs ``train/annos/*.json``, ``train/image/*.jpg``, ``validation/annos/*.json`` and
    ``validation/image/*.jpg``. There is one file of annotations per image, so the training set takes
    minutes to read; where tqdm is installed, a bar shows how far it is.

    Source: Ge et al., DeepFashion2: A Versatile Benchmark for Detection, Pose Estimation, Segmentation and
    Re-Identification of Clothing Images, CVPR 2019, https://github.com/switchablenorms/DeepFashion2.

    Args, Raises: as `ImageDataset`.

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

    def _read(self) -> Annotation:
        folder = self.root / ("train" if self.split == "train" else "validation")
        files = sorted(self._existing(folder / "annos").glob("*.json"))
        if not files:
            raise self._missing(folder / "annos" / "000001.json")
        everything = read_items(files, f"annotations of {self.title}")

        if self.split == "train":
            shares_labels = chosen = [item for item in everything if item.style > 0]
        else:
            shares_labels = [item for item in everything if item.from_shop or item.style > 0]
            chosen = [item for item in shares_labels if item.from_shop == (self.split == "gallery")]
        self.boxes: Tensor = torch.tensor([item.box for item in chosen], dtype=torch.int64)
        return Annotation(
            classes=[item.identity for item in chosen],
            class_names={item.identity: item.name for item in shares_labels},
            paths=[folder / "image" / item.image for item in chosen],
            superclasses={item.identity: item.category - 1 for item in shares_labels},
            superclass_names=CATEGORIES,
        )

    def _image(self, index: int) -> Image:
        return super()._image(index).crop(tuple(self.boxes[index].tolist()))
