"""The base of all datasets of image files."""

from __future__ import annotations

import errno
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import torch
from torch import Tensor
from torch.utils.data import Dataset

from .._pillow import import_pillow

if TYPE_CHECKING:
    from PIL.Image import Image


class Annotation(NamedTuple):
    """The annotations of one split, as a dataset's files give them. Classes can be any sortable values.

    Attributes:
        classes: the class of every image of the split.
        class_names: every class of all splits that share their labels, with its name.
        paths: the image files, or None if images are not files.
        superclasses: from class to the number of its superclass, or None without superclasses.
        superclass_names: from that number to its name.
        skipped: how many images of the split are listed and left out.
    """

    classes: Sequence[Any]
    class_names: Mapping[Any, str]
    paths: Sequence[Path] | None = None
    superclasses: Mapping[Any, int] | None = None
    superclass_names: Sequence[str] | None = None
    skipped: int = 0


class ImageDataset(Dataset[tuple[Any, Any]], ABC):
    """Images with labels, with the interface of pytorch-metric-learning's datasets.

    A subclass reads its annotation files (`_read`). This class numbers the classes and opens the images. All
    annotations are read and checked before the constructor returns; images are opened on access.

    Args:
        root: the folder of the dataset.
        split: one of `get_available_splits`.
        transform: applied to the PIL image (RGB) on access.
        target_transform: applied to the integer label on access.
        download: whether to download the dataset into ``root`` first, unless it is there (default False).

    Attributes:
        split: the argument.
        paths: the image files, or None for a dataset that holds its images in memory.
        labels: (N,) int64 tensor, contiguous from 0 over the splits that share their labels (the
            queries and the gallery they are searched in).
        label_names: label -> what the dataset calls the class.
        superclasses: (number of classes,) int64 tensor, label -> superclass, or None;
            `pml_xbn.SuperClassXBN` takes it as it is. A superclass has the same number in all splits.
        superclass_names: superclass -> name, or None.
        evaluation: the splits of the test protocol: one, in which every image is searched for among
            all others, or the queries and the gallery.
        official_counts: for each of the splits, the number of images in the official release. A list that
            was cut at the end of a line can be read all the same: fewer images are told in a warning.

    Raises:
        ValueError: there is no such split, the dataset cannot be downloaded, or an annotation is
            broken (the message names file and line or key).
        FileNotFoundError: a file is missing; the message names it and the official page.
    """

    title: ClassVar[str]
    homepage: ClassVar[str]
    splits: ClassVar[tuple[str, ...]] = ("train", "test")
    evaluation: ClassVar[tuple[str, ...]] = ("test",)
    official_counts: ClassVar[tuple[int, ...]]

    def __init__(
        self,
        root: str | Path,
        split: str = "train",
        transform: Callable[[Image], Any] | None = None,
        target_transform: Callable[[int], Any] | None = None,
        download: bool = False,
    ) -> None:
        if split not in self.splits:
            raise ValueError(f"split is {split!r}; choose one of {', '.join(map(repr, self.splits))}")
        self.root = Path(root).expanduser()
        self.split = split
        self.transform = transform
        self.target_transform = target_transform
        if download:
            self._download()

        annotation = self._read()
        if not annotation.classes:
            raise ValueError(f"the files in {self.root} list no image of split {split!r} of {self.title}")
        self._check_count(len(annotation.classes) + annotation.skipped)
        if annotation.paths is not None:
            self._existing(annotation.paths[0])  # folders that are not where they should be
        classes = sorted(annotation.class_names)
        labels = {name: label for label, name in enumerate(classes)}
        self.paths = None if annotation.paths is None else [str(path) for path in annotation.paths]
        self.labels: Tensor = torch.tensor(
            [labels[c] for c in annotation.classes], dtype=torch.int64, device="cpu"
        )
        self.label_names = [annotation.class_names[c] for c in classes]
        self.superclasses: Tensor | None = None
        self.superclass_names: list[str] | None = None
        if annotation.superclasses is not None and annotation.superclass_names is not None:
            numbers = [annotation.superclasses[c] for c in classes]
            self.superclasses = torch.tensor(numbers, dtype=torch.int64, device="cpu")
            self.superclass_names = list(annotation.superclass_names)

    @classmethod
    def get_available_splits(cls) -> list[str]:
        """Returns the values that ``split`` can have."""
        return list(cls.splits)

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> tuple[Any, Any]:
        image, label = self._image(index), int(self.labels[index])
        return (
            self.transform(image) if self.transform else image,
            self.target_transform(label) if self.target_transform else label,
        )

    @abstractmethod
    def _read(self) -> Annotation:
        """Reads and checks all annotations of the split."""

    def _check_count(self, count: int) -> None:
        official = self.official_counts[self.splits.index(self.split)]
        if count < official:
            warnings.warn(
                f"{self.root} lists {count:,} images of split {self.split!r} of {self.title}, the official "
                f"release {official:,}; a list may have been cut, so unpack it again ({self.homepage})",
                stacklevel=3,
            )

    def _download(self) -> None:
        raise ValueError(
            f"{self.title} has no direct download; its official page says how to get it: "
            f"{self.homepage}. Unpack it into {self.root} and leave out download=True"
        )

    def _image(self, index: int) -> Image:
        """Returns one image in RGB.

        Raises:
            FileNotFoundError: its file is missing.
            ValueError: its file is no image, or not a whole one.
        """
        assert self.paths is not None, "a dataset without files has its own _image"
        pillow, path = import_pillow(), Path(self.paths[index])
        try:
            with pillow.open(path) as image:
                return image.convert("RGB")  # type: ignore[no-any-return]
        except FileNotFoundError as error:
            raise self._missing(path) from error
        except OSError as error:
            if error.errno is not None:  # the file system's own, such as a lack of permission
                raise
            raise ValueError(
                f"{path} is no whole image ({error}); unpack {self.title} again ({self.homepage})"
            ) from error

    def _existing(self, *candidates: Path) -> Path:
        """Returns the first of the paths that exists.

        Raises:
            FileNotFoundError: none does.
        """
        for path in candidates:
            if _exists(path):
                return path
        raise self._missing(candidates[0])

    def _missing(self, path: Path) -> FileNotFoundError:
        return FileNotFoundError(
            f"{path} is missing; {self.root} does not hold all of {self.title} "
            f"(official page: {self.homepage})"
        )


def _exists(path: Path) -> bool:
    try:
        return path.exists()
    except OSError as error:
        if error.errno != errno.ENAMETOOLONG:
            raise
        return False  # no file has such a name
