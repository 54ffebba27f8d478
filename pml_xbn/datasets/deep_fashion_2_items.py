"""Reads the annotations of DeepFashion2, a JSON file per image."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import lru_cache
from pathlib import Path
from reprlib import repr as shortened
from typing import Any, NamedTuple

CATEGORIES = (
    "short sleeve top",
    "long sleeve top",
    "short sleeve outwear",
    "long sleeve outwear",
    "vest",
    "sling",
    "shorts",
    "trousers",
    "skirt",
    "short sleeve dress",
    "long sleeve dress",
    "vest dress",
    "sling dress",
)


_LARGEST_EDGE = 65_535  # of a JPEG file


class Item(NamedTuple):
    """A piece of clothing in an image.

    Attributes:
        image: the name of the image's file.
        from_shop: whether a shop took the photo, and not a consumer.
        pair: images of the same clothes, by a shop and by consumers, share it.
        category: 1 for the first of `CATEGORIES`.
        style: tells the items of a pair apart; 0 for an item without a counterpart.
        box: left, upper, right and lower edge in pixels.
    """

    image: str
    from_shop: bool
    pair: int
    category: int
    style: int
    box: tuple[int, int, int, int]

    @property
    def has_area(self) -> bool:
        """Whether the box holds a pixel."""
        left, upper, right, lower = self.box
        return left < right and upper < lower


def read_items(files: Sequence[Path], title: str) -> list[Item]:
    """Returns all items of all files in their order, under a progress bar where tqdm is installed.

    Raises:
        ValueError: a file is no JSON, or a key is missing or has a value that it cannot have.
    """
    return [item for file in _progress(files, title) for item in _read_file(file)]


def read_items_once(files: Sequence[Path], title: str) -> list[Item]:
    """Returns the items of the last call, unless a file has changed: splits share files."""
    stats = [file.stat() for file in files]
    return _read_and_keep(tuple(files), title, tuple((stat.st_size, stat.st_mtime_ns) for stat in stats))


@lru_cache(maxsize=1)
def _read_and_keep(files: tuple[Path, ...], title: str, versions: tuple[tuple[int, int], ...]) -> list[Item]:
    return read_items(files, title)


def _progress(files: Sequence[Path], title: str) -> Iterable[Path]:
    try:
        from tqdm import tqdm
    except ImportError:
        return files
    bar: Iterable[Path] = tqdm(files, desc=title, unit="file")
    return bar


def _read_file(path: Path) -> Iterator[Item]:
    try:
        image = json.loads(path.read_bytes())
    except (ValueError, RecursionError) as error:  # the latter of lists in lists in lists
        raise ValueError(f"{path} is no JSON ({error}); unpack the dataset again") from error
    if not isinstance(image, dict):
        raise ValueError(f"{path} holds no JSON object; unpack the dataset again")
    from_shop = _value(path, image, "source", lambda source: source in ("user", "shop")) == "shop"
    pair = _value(path, image, "pair_id", _is_whole)
    # The keys item1, item2, ... come in any order.
    for key in sorted((key for key in image if key.startswith("item")), key=lambda key: (len(key), key)):
        item = _value(path, image, key, lambda item: isinstance(item, dict))
        category = _value(path, item, "category_id", _is_category, key)
        style = _value(path, item, "style", _is_whole, key)
        left, upper, right, lower = map(round, _value(path, item, "bounding_box", _is_box, key))
        yield Item(f"{path.stem}.jpg", from_shop, pair, category, style, (left, upper, right, lower))


def _value(
    path: Path, values: dict[str, Any], key: str, valid: Callable[[Any], bool], parent: str = ""
) -> Any:
    name = f"{key!r} of {parent!r}" if parent else repr(key)
    if key not in values:
        raise ValueError(f"{path} lacks {name}; unpack the dataset again")
    if not valid(values[key]):
        raise ValueError(f"{path}: {name} cannot be {shortened(values[key])}; unpack the dataset again")
    return values[key]


def _is_whole(value: Any) -> bool:
    return type(value) is int and value >= 0


def _is_category(value: Any) -> bool:
    return type(value) is int and 1 <= value <= len(CATEGORIES)


def _is_box(value: Any) -> bool:
    if not (isinstance(value, list) and len(value) == 4):
        return False
    return all(type(edge) in (int, float) and abs(edge) <= _LARGEST_EDGE for edge in value)
