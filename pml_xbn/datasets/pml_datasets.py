"""The datasets of pytorch-metric-learning itself."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

import pytorch_metric_learning

from .._pillow import import_pillow


def import_pml_datasets(title: str) -> Any:
    """Returns the module `pytorch_metric_learning.datasets`.

    Args:
        title: what it is needed for.

    Raises:
        ImportError: the installed version is older than 2.8, or Pillow is missing.
    """
    import_pillow()  # that module needs it as it loads
    try:
        return import_module("pytorch_metric_learning.datasets")
    except ImportError as error:
        raise ImportError(
            f"{title} is loaded by pytorch-metric-learning 2.8 or newer, and "
            f"{pytorch_metric_learning.__version__} is installed ({error}); update it with: "
            'pip install "pytorch-metric-learning>=2.8,<3"'
        ) from error


def read_by_pml(reader: Any, root: Path, split: str, files: Sequence[Path]) -> Any:
    """Returns a dataset of PML's, which reads these files.

    Raises:
        ValueError: PML cannot make sense of them. Its own errors name no file.
    """
    try:
        return reader(root, split)
    except (ValueError, LookupError) as error:
        names = ", ".join(map(str, files))
        raise ValueError(f"one of {names} is broken ({error}); unpack the dataset again") from error


def download(title: str, name: str, root: Path, mark: str) -> None:
    """Downloads a dataset unless ``mark`` is in ``root``. PML itself downloads only into an empty folder.

    Raises:
        ImportError: as `import_pml_datasets`.
    """
    cls = getattr(import_pml_datasets(title), name)
    if not (root / mark).exists():
        dataset = object.__new__(cls)
        dataset.root = str(root)
        dataset.download_and_remove()
