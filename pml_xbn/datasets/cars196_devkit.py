"""Reads the annotations of Cars196 as its authors publish them, in MATLAB's format."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import Any

from .annotation_files import relative_path

_PARTS = {"cars_train": "cars_train_annos.mat", "cars_test": "cars_test_annos_withlabels.mat"}


def devkit_files(root: Path) -> list[Path]:
    """Returns the files of annotations, names of the models first, where they are or should be."""
    return [_place(root, name) for name in ("cars_meta.mat", *_PARTS.values())]


def _place(root: Path, name: str) -> Path:
    return root / name if (root / name).exists() else root / "devkit" / name


def read_devkit(root: Path) -> tuple[list[str], list[tuple[Path, int]]]:
    """Returns the names of all models, and every image with the number of its model, which counts from 1.

    Both parts of the authors' own split are read, training first: they share all models.

    Args:
        root: holds ``devkit``, ``cars_train`` and ``cars_test``.

    Raises:
        ValueError: a file is not of MATLAB, lacks what it should hold, or an image is of no model.
        ImportError: SciPy is not installed.
    """
    meta, *lists = devkit_files(root)
    names = [str(name) for name in _load(meta, "class_names")]
    images = []
    for folder, path in zip(_PARTS, lists, strict=True):
        rows = _load(path, "annotations")
        fields = rows.dtype.names or ()
        if not {"fname", "class"} <= set(fields):
            raise ValueError(
                f"{path}: its annotations have the fields {', '.join(fields) or 'none'}, not 'fname' and "
                "'class'; take the list with labels"
            )
        for place, (name, number) in enumerate(zip(rows["fname"], rows["class"], strict=True), 1):
            try:
                images.append((root / folder / _file_name(name), _model(number, len(names), name)))
            except (ValueError, TypeError, OverflowError) as error:
                raise ValueError(f"{path}, annotation {place}: {error}; unpack it again") from error
    return names, images


def _file_name(name: Any) -> str:
    if not isinstance(name, str):
        raise TypeError(f"fname is a {type(name).__name__}, not a string")
    return relative_path(name)


def _model(number: Any, num_models: int, image: str) -> int:
    """Returns the number, which MATLAB may have written as a floating-point one, as an integer."""
    if int(number) != number or not 1 <= number <= num_models:
        raise ValueError(f"{image} is of model {number}, not one from 1 to {num_models}")
    return int(number)


def _load(path: Path, key: str) -> Any:
    """Returns a variable in a file, as a one-dimensional array."""
    try:
        numpy, scipy_io = import_module("numpy"), import_module("scipy.io")
    except ImportError as error:
        raise ImportError(
            f'{path} is read by SciPy ({error}); install it with: pip install "pml_xbn[examples]"'
        ) from error
    try:
        content = scipy_io.loadmat(path, squeeze_me=True)
    except Exception as error:  # SciPy has a class of error for every way in which a file is broken
        raise ValueError(f"{path} is no file of MATLAB ({error}); unpack the dataset again") from error
    if key not in content:
        raise ValueError(f"{path} lacks {key!r}; unpack the dataset again")
    return numpy.asarray(content[key]).ravel()  # squeezing leaves a single row, or a number, no dimension
