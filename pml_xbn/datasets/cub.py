"""CUB-200-2011."""

from __future__ import annotations

from pathlib import Path

from .annotation_files import number_up_to, read_rows, relative_path
from .image_dataset import Annotation, ImageDataset
from .pml_datasets import download, import_pml_datasets, read_by_pml


class CUB(ImageDataset):
    """CUB-200-2011: photos of 200 kinds of birds.

    Splits ``"train"`` (5,864 images of the first 100 classes) and ``"test"`` (5,924 of the other 100).
    There are no superclasses. `pytorch_metric_learning.datasets.CUB` downloads and reads it, from
    ``CUB_200_2011`` in ``root``; labels are renumbered from 0.

    Source: https://www.vision.caltech.edu/datasets/cub_200_2011/.

    Args, Attributes: as `ImageDataset`; ``label_names`` are the folders of the classes.

    Raises:
        ValueError, FileNotFoundError: as `ImageDataset`.
        ImportError: pytorch-metric-learning is older than 2.8.

    Example:
        >>> from pml_xbn.datasets import CUB
        >>> CUB.get_available_splits(), CUB.evaluation
        (['train', 'test'], ('test',))
    """

    title = "CUB-200-2011"
    homepage = "https://www.vision.caltech.edu/datasets/cub_200_2011/"
    official_counts = (5_864, 5_924)

    def _read(self) -> Annotation:
        reader = import_pml_datasets(self.title).CUB
        dataset = read_by_pml(reader, self.root, self.split, self._check_files())
        paths = [Path(path) for path in dataset.paths]
        names = {number: path.parent.name for number, path in zip(dataset.labels, paths, strict=True)}
        return Annotation(classes=dataset.labels, class_names=names, paths=paths)

    def _check_files(self) -> tuple[Path, ...]:
        """Returns the lists, checked: PML silently leaves out images that one of them lacks."""
        folder = self.root / "CUB_200_2011"
        images, classes = folder / "images.txt", folder / "image_class_labels.txt"
        image_rows = read_rows(self._existing(images), {"image_id": int, "image_name": relative_path})
        class_rows = read_rows(self._existing(classes), {"image_id": int, "class_id": number_up_to(200)})
        if [image for image, _ in image_rows] != [image for image, _ in class_rows]:
            raise ValueError(f"{images} and {classes} do not list the same image ids in the same order")
        return images, classes

    def _download(self) -> None:
        download(self.title, "CUB", self.root, "CUB_200_2011")
