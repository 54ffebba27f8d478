"""Fetches the fonts of Han and draws its images: 400 MB and a minute, on Debian 12, without root.

    python -m benchmarks.han.build    (into data/han)

Elsewhere unpack the packages that the error names into the folder, and run it again.
"""

from __future__ import annotations

from pathlib import Path

import tyro

from benchmarks.engine.command_line import errors_in_one_line
from pml_xbn.datasets import Han


def build(root: Path = Path("data/han")) -> None:
    """Writes fonts and images to the folder, and says what there is."""
    with errors_in_one_line():
        for split in Han.get_available_splits():
            han = Han(split, root, download=True)
            print(f"{split}: {len(han.label_names):,} characters, {len(han):,} images, {han.checksum}")


if __name__ == "__main__":
    tyro.cli(build, prog="python -m benchmarks.han.build", description=__doc__)
