"""CIFAR-100."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

from .image_dataset import Annotation
from .torchvision_cifar import TorchvisionCIFAR


class CIFAR100(TorchvisionCIFAR):
    """CIFAR-100: 32x32 photos of 100 classes, 50,000 for ``"train"`` and 10,000 for ``"test"``.

    The classes of training and test are the same; five each make one of 20 superclasses, such as the
    aquatic mammals. Torchvision downloads it and reads it from ``cifar-100-python`` in ``root``.

    Source: Krizhevsky, Learning Multiple Layers of Features from Tiny Images, 2009,
    https://www.cs.toronto.edu/~kriz/cifar.html.

    Args, Attributes: as `ImageDataset`; there are no ``paths``.

    Raises:
        ValueError, FileNotFoundError: as `ImageDataset`.
        ImportError: torchvision is not installed or does not fit the installed torch.

    Example:
        >>> from pml_xbn.datasets import CIFAR100
        >>> CIFAR100.get_available_splits(), CIFAR100.evaluation
        (['train', 'test'], ('test',))
    """

    title = "CIFAR-100"
    reader = "CIFAR100"

    def _read(self) -> Annotation:
        annotation = super()._read()
        # Torchvision has checked these files and leaves the superclasses out. The smaller one is enough.
        test = self._unpickle("test")
        return annotation._replace(
            superclasses=dict(zip(test["fine_labels"], test["coarse_labels"], strict=True)),
            superclass_names=self._unpickle("meta")["coarse_label_names"],
        )

    def _unpickle(self, name: str) -> dict[str, Any]:
        with Path(self.root, "cifar-100-python", name).open("rb") as file:
            content: dict[str, Any] = pickle.load(file, encoding="latin1")
        return content
