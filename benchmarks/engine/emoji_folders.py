"""Writes the emoji packages' pictures as a folder of images, one subfolder a class.

    python -m benchmarks.engine.emoji_folders data/emoji data/emoji_folders
    python examples/fine_tune.py --data data/emoji_folders --size 64

The classes that are kept back for a last test are left out.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from tqdm import tqdm

from benchmarks.engine.command_line import errors_in_one_line
from benchmarks.engine.emoji import emoji_entries, pictures_of
from benchmarks.engine.ink import on_white


def write_folders(root: Path, output: Path) -> int:
    """Writes ``output / CODE_POINTS / VENDOR.png``, on a white ground; returns how many classes."""
    entries = [entry for split in ("train", "test") for entry in emoji_entries(root, split)]
    for entry in tqdm(entries, "classes", leave=False):
        folder = output / entry["unified"]
        folder.mkdir(parents=True, exist_ok=True)
        for vendor, file in pictures_of(root, entry).items():
            on_white(file).save(folder / f"{vendor}.png")
    return len(entries)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("root", type=Path, help="folder of the unpacked packages emoji-datasource-VENDOR")
    parser.add_argument("output", type=Path, help="folder to write")
    args = parser.parse_args()
    with errors_in_one_line():
        print(f"{write_folders(args.root, args.output)} classes in {args.output}")


if __name__ == "__main__":
    main()
