"""Glyphs, where the classes of training and test are disjoint."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from benchmarks.engine.distortion import distort
from benchmarks.engine.randomness import generator_for
from benchmarks.moco.data import Labelled, first_classes
from benchmarks.moco.settings import Settings
from pml_xbn.datasets import Glyphs


class GlyphPairs:
    """The `MoCoData` of Glyphs: a view is a random distortion, as in the retrieval task.

    No training image shows a class of the test images, so each of these is searched for among all others,
    under one fixed distortion.

    Args:
        settings: ``classes`` and ``seed``.
        device: where the images lie.
    """

    gallery: Labelled | None = None

    def __init__(self, settings: Settings, device: torch.device) -> None:
        train, test = Glyphs("train"), Glyphs("test")
        chosen = first_classes(train.labels, settings.classes)
        self.images, self.train_labels = train.images[chosen, None].to(device), train.labels[chosen]
        chosen = first_classes(test.labels, settings.classes)
        images = distort(test.images[chosen, None].to(device), generator_for("test"))
        self.queries = Labelled((images,), test.labels[chosen])
        self.seed, self.device = settings.seed, device
        self.identity = train.checksum
        self.summary = (
            f"Glyphs {train.checksum} (matplotlib {train.matplotlib_version}): {len(self.images)} training "
            f"images; {len(images)} test images of other classes, each searched for among all others"
        )

    def pairs(
        self, batches: Tensor, epoch: int, steps: Sequence[int] | None = None
    ) -> Iterator[tuple[Tensor, Tensor]]:
        for step in range(len(batches)) if steps is None else steps:
            images = self.images[batches[step].to(self.device)]
            yield (
                distort(images, generator_for(self.seed, epoch, step, "queries")),
                distort(images, generator_for(self.seed, epoch, step, "keys")),
            )
