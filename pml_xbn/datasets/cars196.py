"""Cars196."""

from __future__ import annotations

from pathlib import Path

from .annotation_files import Columns, number_up_to, read_rows, relative_path
from .cars196_devkit import devkit_files, read_devkit
from .image_dataset import Annotation, ImageDataset
from .pml_datasets import download, import_pml_datasets, read_by_pml


class Cars196(ImageDataset):
    """Cars196: photos of 196 models of cars.

    Splits ``"train"`` (8,054 images of the first 98 models) and ``"test"`` (8,131 of the other 98), which
    are not those of its authors: both take from their training and test images alike. Labels are renumbered
    from 0. There are no superclasses. Read is what ``root`` holds:

    * The layout of the copy that `pytorch_metric_learning.datasets.Cars196` downloads and reads:
      ``names.csv``, ``anno_train.csv``, ``anno_test.csv`` and ``car_data``.
    * Otherwise that of the authors: ``cars_meta.mat``, ``cars_train_annos.mat`` and
      ``cars_test_annos_withlabels.mat`` in ``devkit`` or in ``root``, and the images in ``cars_train`` and
      ``cars_test``. SciPy reads it. The list ``cars_test_annos.mat`` of the devkit has no labels.

    Source: Krause et al., 3D Object Representations for Fine-Grained Categorization, 2013; the copy that
    PML downloads: https://www.kaggle.com/datasets/jutrera/stanford-car-dataset-by-classes-folder.

    Args, Attributes: as `ImageDataset`; ``label_names`` are the models.

    Raises:
        ValueError, FileNotFoundError: as `ImageDataset`.
        ImportError: pytorch-metric-learning is older than 2.8 (the copy), SciPy is missing (the devkit).

    Example:
        >>> from pml_xbn.datasets import Cars196
        >>> Cars196.get_available_splits(), Cars196.evaluation
        (['train', 'test'], ('test',))
    """

    title = "Cars196"
    homepage = "https://www.kaggle.com/datasets/jutrera/stanford-car-dataset-by-classes-folder"
    official_counts = (8_054, 8_131)

    def _read(self) -> Annotation:
        if not (self.root / "names.csv").exists() and any(file.exists() for file in devkit_files(self.root)):
            return self._read_devkit()
        reader = import_pml_datasets(self.title).Cars196
        names, files = self._check_files()
        dataset = read_by_pml(reader, self.root, self.split, files)
        return Annotation(
            classes=dataset.labels,
            class_names={number: names[number - 1] for number in dataset.labels},
            paths=[Path(path) for path in dataset.paths],
        )

    def _read_devkit(self) -> Annotation:
        for file in devkit_files(self.root):
            self._existing(file)
        names, images = read_devkit(self.root)
        chosen = [(path, number) for path, number in images if (number <= 98) == (self.split == "train")]
        return Annotation(
            classes=[number for _, number in chosen],
            class_names={number: names[number - 1] for _, number in chosen},
            paths=[path for path, _ in chosen],
        )

    def _check_files(self) -> tuple[list[str], list[Path]]:
        """Returns the names of all models, and the files, checked: PML takes class 0 for the last model."""
        files = [self.root / name for name in ("names.csv", "anno_train.csv", "anno_test.csv")]
        names = [name for (name,) in read_rows(self._existing(files[0]), {"name": _model}, separator="\n")]
        box = dict.fromkeys(("x1", "y1", "x2", "y2"), int)
        columns: Columns = {"image": relative_path, **box, "class": number_up_to(len(names))}
        for file in files[1:]:
            read_rows(self._existing(file), columns, separator=",")
        return names, files

    def _download(self) -> None:
        download(self.title, "Cars196", self.root, "names.csv")


def _model(text: str) -> str:
    """Reads a column that is a model's name. Its folder has the same name, but for slashes."""
    relative_path(text.strip().replace("/", "-"))
    return text.strip()
