"""The base of CIFAR-10 and CIFAR-100."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any, ClassVar

from .._pillow import import_pillow
from .image_dataset import Annotation, ImageDataset

if TYPE_CHECKING:
    from PIL.Image import Image


class TorchvisionCIFAR(ImageDataset):
    """A CIFAR dataset, downloaded and read by torchvision, which also checks the checksums.

    Args, Attributes, Raises: as `ImageDataset`, but that there are no ``paths``.
    """

    homepage = "https://www.cs.toronto.edu/~kriz/cifar.html"
    official_counts = (50_000, 10_000)
    reader: ClassVar[str]

    def _read(self) -> Annotation:
        reader = self._import_reader()
        self._check_files(reader)
        try:
            dataset = reader(self.root, train=self.split == "train")
        except RuntimeError as error:
            raise ValueError(
                f"{self.root / reader.base_folder} is not {self.title} as published ({error}); delete it "
                "and get it again, with download=True for example"
            ) from error
        self._pixels = dataset.data  # (N, 32, 32, 3) uint8, NumPy
        return Annotation(classes=dataset.targets, class_names=dict(enumerate(dataset.classes)))

    def _check_files(self, reader: Any) -> None:
        """Torchvision does not tell a missing file from a broken one."""
        folder = self.root / reader.base_folder
        names = [name for name, _ in (*reader.train_list, *reader.test_list)]
        for name in (*names, reader.meta["filename"]):
            self._existing(folder / name)

    def _image(self, index: int) -> Image:
        image: Image = import_pillow().fromarray(self._pixels[index])
        return image

    def _download(self) -> None:
        self._import_reader()(self.root, download=True)

    def _import_reader(self) -> Any:
        try:
            return getattr(import_module("torchvision.datasets"), self.reader)
        # A torchvision that was built for another torch raises RuntimeError.
        except (ImportError, RuntimeError) as error:
            raise ImportError(
                f"{self.title} is read by torchvision, which does not load here ({error}); install the "
                "one that fits your torch, for example with: pip install torchvision"
            ) from error
