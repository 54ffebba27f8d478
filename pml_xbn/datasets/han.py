"""Han: as many classes as Stanford Online Products, drawn from fonts."""

from __future__ import annotations

import hashlib
import math
import unicodedata
from bisect import bisect_right
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import Dataset

from .._checks import check_integer
from .han_distortion import distort
from .han_fonts import FONTS, digest_of, find_fonts, font_files
from .han_rendering import load_or_draw

# Of 65,536 values of a character's hash, those below which a split ends.
_SPLITS = {"train": 32_768, "validation": 35_904, "test": 65_536}
_RADICALS = [ord(unicodedata.normalize("NFKC", chr(0x2F00 + number))) for number in range(214)]


class Han(Dataset[tuple[Any, Any]]):
    """Chinese and Japanese characters, each a class, drawn with fonts of Debian, each an image.

    It has the shape of Stanford Online Products: about half of 20,900 characters train, with five or six
    images of each, and there is nothing to agree to. Every character from U+4E00 to U+9FA5 that the
    fonts draw at least 4 times is a class. At most 6 fonts draw it, which a hash of character and font
    chooses, so that designs mix. Repeated images within a class are left out.

    Half of the characters are to train on, about a thousand to choose settings with (``"validation"``),
    and the others to confirm them. The split of a character depends on nothing but the character. The
    superclass is its radical: the part that dictionaries sort characters by, one of 214.

    The clean images are drawn once, which takes a minute or two, and kept in ``root``. They are easy: small
    networks soon find nearly all. So every image has a distortion of its own, always the same, before
    anybody sees it.

    Args:
        split: ``"train"``, ``"validation"`` or ``"test"``.
        root: the folder below which the fonts lie, wherever, and in which images are kept. Once they are, no
            font is needed for the same ``side`` and version of FreeType in Pillow.
        distortion: strength of the distortion, 0 for clean images.
        side: of the images, in pixels.
        fonts: a folder of fonts (``.ttf``, ``.otf``, ``.ttc``, of which the first is taken, in order of
            their paths), or a list of files, to use in place of the packages', at least 4.
        transform: applied to the (1, side, side) uint8 image on access.
        target_transform: applied to the integer label on access.
        download: whether to fetch the packages whose fonts are missing or damaged with ``apt-get``. It takes
            400 MB, unpacks without installing anything, and needs Debian 12 (other releases have other
            versions of some fonts). It has no effect where ``fonts`` are given.

    Attributes:
        images: (N, side, side) uint8 tensor of all images; ink is 255 where it is clean.
        labels: (N,) int64 tensor, contiguous from 0 within the split.
        superclasses: (number of classes,) int64 tensor, label -> superclass, the same in all splits;
            `pml_xbn.SuperClassXBN` takes it as it is.
        label_names: label -> the character.
        superclass_names: superclass -> Unicode name of the radical.
        fonts: (N,) int64 tensor, which font drew an image.
        font_names: that number -> file of the font.
        paths, evaluation: see :class:`~pml_xbn.datasets.image_dataset.ImageDataset`.
        checksum: identifies the clean images of all splits together (shortened SHA-256).

    Raises:
        ValueError: there is no such split, ``distortion`` or ``side`` is out of range, a file is not that of
            its package, or no font, or the fonts draw no character often enough.
        FileNotFoundError: fonts are missing; the message names their packages.
        ImportError: Pillow or fontTools is not installed.
    """

    paths = None  # what lies in memory has none
    evaluation = ("test",)

    def __init__(
        self,
        split: str = "train",
        root: str | Path = "data/han",
        *,
        distortion: float = 1.0,
        side: int = 32,
        fonts: str | Path | Sequence[str | Path] | None = None,
        transform: Callable[[Tensor], Any] | None = None,
        target_transform: Callable[[int], Any] | None = None,
        download: bool = False,
    ) -> None:
        if split not in list(_SPLITS):  # which need not be hashable
            raise ValueError(f"split is {split!r}; choose one of {', '.join(map(repr, _SPLITS))}")
        if not (isinstance(distortion, (int, float)) and 0 <= distortion < math.inf):
            raise ValueError(f"distortion is {distortion!r}; pass a finite number from 0 up")
        check_integer("side", side, at_least=16)
        self.split, self.root = split, Path(root).expanduser()
        self.transform, self.target_transform = transform, target_transform
        if fonts is None:
            self.font_names = [font.file for font in FONTS]
            digests = [(font.digest, font.number) for font in FONTS]
            rendering = load_or_draw(
                digests, side, self.root, partial(find_fonts, self.root, download=download)
            )
        else:
            files = _files_of(fonts)
            self.font_names = [path.name for path in files]
            rendering = load_or_draw([(digest_of(path), 0) for path in files], side, self.root, lambda: files)
        self.checksum = rendering.checksum

        classes, numbers = rendering.code_points.unique(return_inverse=True)
        in_split = torch.tensor([_split_of(x) == split for x in classes.tolist()], device="cpu")
        chosen = in_split[numbers]
        self.images: Tensor = rendering.images[chosen]
        self.fonts: Tensor = rendering.fonts[chosen]
        self.labels: Tensor = (in_split.cumsum(0) - 1)[numbers[chosen]]
        self.label_names = [chr(code_point) for code_point in classes[in_split].tolist()]
        self.superclass_names = [unicodedata.name(chr(0x2F00 + number)) for number in range(len(_RADICALS))]
        radicals = [bisect_right(_RADICALS, ord(character)) - 1 for character in self.label_names]
        self.superclasses: Tensor = torch.tensor(radicals, dtype=torch.int64, device="cpu")
        if distortion:
            generator = torch.Generator().manual_seed(list(_SPLITS).index(split))
            self.images = distort(self.images, generator, distortion)

    @staticmethod
    def get_available_splits() -> list[str]:
        return list(_SPLITS)

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> tuple[Any, Any]:
        image, label = self.images[index].unsqueeze(0), int(self.labels[index])
        return (
            self.transform(image) if self.transform else image,
            self.target_transform(label) if self.target_transform else label,
        )


def _files_of(fonts: str | Path | Sequence[str | Path]) -> list[Path]:
    """Returns the files of a list, or those of a folder in order of their paths."""
    if not isinstance(fonts, (str, Path)):
        return [Path(font).expanduser() for font in fonts]
    files = font_files(Path(fonts).expanduser())
    if not files:
        raise FileNotFoundError(
            f"fonts={str(fonts)!r} has no font: pass a folder with .ttf, .otf or .ttc files below it, or a "
            "list of files"
        )
    return files


def _split_of(code_point: int) -> str:
    value = int.from_bytes(
        hashlib.md5(f"split {code_point}".encode(), usedforsecurity=False).digest()[:2], "big"
    )
    return next(split for split, end in _SPLITS.items() if value < end)
