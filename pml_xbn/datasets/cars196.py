"""Cars196."""

from __future__ import annotations

from pathlib import Path

from .annotation_files import Columns, number_up_to, read_lines, read_rows
from .image_dataset import Annotation, ImageDataset
from .pml_datasets import import_pml_datasets


class Cars196(ImageDataset):
    """Cars196: photos of 196 models of cars.

    Splits ``"train"`` (the first 98 models) and ``"test"`` (the other 98), 16,185 images together.
    There are no superclasses. `pytorch_metric_learning.datasets.Cars196` downloads and reads it, in the
    layout of its source: ``names.csv``, ``anno_train.csv``, ``anno_test.csv`` and ``car_data`` in
    ``root``; labels are renumbered from 0.

    Source: Krause et al., 3D Object Representations for Fine-Grained Categorization, 2013; the copy that
    PML downloads: https://www.kaggle.com/datasets/jutrera/stanford-car-dataset-by-classes-folder.

    Args, Attributes: as `ImageDataset`; ``label_names`` are the models.

    Raises:
        ValueError, FileNotFoundError: as `ImageDataset`.
        ImportError: pytorch-metric-learning is older than 2.8.

    Example:
        >>> from pml_xbn.datasets import Cars196
        >>> Cars196.get_available_splits(), Cars196.evaluation
        (['train', 'test'], ('test',))
    """

    title = "Cars196"
    homepage = "https://www.kaggle.com/datasets/jutrera/stanford-car-dataset-by-classes-folder"
    official_counts = (8_054, 8_131)

    def _read(self) -> Annotation:
        reader = import_pml_datasets(self.title).Cars196
        names = self._check_files()
        dataset = reader(self.root, self.split)
        return Annotation(
            classes=dataset.labels,
            class_names={number: names[number - 1] for number in dataset.labels},
            paths=[Path(path) for path in dataset.paths],
        )

    def _check_files(self) -> list[str]:
        """The names of all models; PML would take a class of 0 for the last of them."""
        names = read_lines(self._existing(self.root / "names.csv"))
        box = dict.fromkeys(("x1", "y1", "x2", "y2"), int)
        columns: Columns = {"image": str, **box, "class": number_up_to(len(names))}
        for name in ("anno_train.csv", "anno_test.csv"):
            read_rows(self._existing(self.root / name), columns, separator=",")
        return [name.strip() for name in names]

    def _download(self) -> None:
        import_pml_datasets(self.title).Cars196(self.root, self.split, download=True)
