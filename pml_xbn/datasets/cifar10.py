"""CIFAR-10."""

from __future__ import annotations

from .torchvision_cifar import TorchvisionCIFAR


class CIFAR10(TorchvisionCIFAR):
    """CIFAR-10: 32x32 photos of 10 classes, 50,000 for ``"train"`` and 10,000 for ``"test"``.

    The classes of training and test are the same, and there are no superclasses. Torchvision
    downloads it and reads it from ``cifar-10-batches-py`` in ``root``.

    Source: Krizhevsky, Learning Multiple Layers of Features from Tiny Images, 2009,
    https://www.cs.toronto.edu/~kriz/cifar.html.

    Args, Attributes: as `ImageDataset`; there are no ``paths``.

    Raises:
        ValueError, FileNotFoundError: as `ImageDataset`.
        ImportError: torchvision is not installed or does not fit the installed torch.

    Example:
        >>> from pml_xbn.datasets import CIFAR10
        >>> CIFAR10.get_available_splits(), CIFAR10.evaluation
        (['train', 'test'], ('test',))
    """

    title = "CIFAR-10"
    reader = "CIFAR10"
