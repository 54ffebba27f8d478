"""Batches of whole classes that depend on the epoch alone."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Literal

import torch
from torch import Tensor
from torch.utils.data import Sampler

from .._checks import check_integer, check_integers
from ..distributed._group import Group

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup
    from torch.distributed.device_mesh import DeviceMesh


class ClassBatches(Sampler[list[int]]):
    """Batches of ``m`` images of each of ``batch_size / m`` classes, for ``DataLoader(batch_sampler=...)``.

    They are a function of the seed and the epoch, so a resumed run draws the batches of the run that stopped.
    PML's ``MPerClassSampler`` draws from NumPy's generator and depends on all epochs before. Call
    :meth:`set_epoch` before each epoch; accelerate and the Hugging Face Trainer do.

    With ``cover="classes"`` every batch draws its classes anew, and of each class its images. All classes
    come equally often, however many images they have. Therefore an epoch does not see all images: of classes
    of one size about 63 %, the others twice or more; of a class of 200 images among classes of 4 few, as it
    comes no more often than they do. A memory of half of the images then holds fewer different ones, too
    (pass ``sample_ids`` to the memory, and an image has one row). With ``cover="images"`` an epoch sees every
    image: once, or more often where it fills up the last ``m`` of its class or the last batch. A large class
    then comes more often, and in some batches with a multiple of ``m`` images if it holds more than its share
    of all.

    Args:
        labels: of all images, ``(n,)``.
        m: images of a class in a batch. A class with fewer images repeats some.
        batch_size: of all ranks.
        cover: what an epoch goes through equally: ``"classes"``, or ``"images"``.
        num_batches: of an epoch; default ``n // batch_size``, at least 1. With ``cover="images"`` there are
            as many as all images take.
        num_ranks: among which each batch is divided.
        rank: whose part of the batches is drawn.
        process_group: the ranks among which each batch is divided, instead of the two numbers: a
            ``ProcessGroup`` or a mesh of one dimension. Two groups draw two batches if their seeds differ.
        seed: of the draws.

    Raises:
        ValueError: a batch that is no multiple of ``m`` or ``num_ranks``, or that holds
            more classes than there are; a ``process_group`` that this rank is not in; ``num_batches`` with
            ``cover="images"``.

    Example:
        >>> batches = ClassBatches([0, 0, 0, 1, 1, 1, 2, 2, 2], m=2, batch_size=4)
        >>> batches.set_epoch(1)
        >>> list(batches) == list(batches), len(batches)
        (True, 2)
        >>> all_images = ClassBatches([0, 0, 0, 1, 1, 1, 2, 2, 2], m=2, batch_size=4, cover="images")
        >>> sorted({image for batch in all_images for image in batch})
        [0, 1, 2, 3, 4, 5, 6, 7, 8]
    """

    drop_last = True  # accelerate asks for it, and for batch_size

    def __init__(
        self,
        labels: Tensor | Sequence[int],
        m: int,
        batch_size: int,
        *,
        cover: Literal["classes", "images"] = "classes",
        num_batches: int | None = None,
        num_ranks: int = 1,
        rank: int = 0,
        process_group: ProcessGroup | DeviceMesh | None = None,
        seed: int = 0,
    ) -> None:
        labels = torch.as_tensor(labels)
        check_integers("labels", labels, len(labels), "one label per image")
        check_integer("m", m, at_least=1)
        check_integer("batch_size", batch_size, at_least=1)
        if process_group is not None:
            if (num_ranks, rank) != (1, 0):
                raise ValueError(
                    f"num_ranks={num_ranks} and rank={rank} with a process_group, which has numbers of its "
                    "own: pass either"
                )
            group = Group(process_group)
            num_ranks, rank = group.size, group.rank
        check_integer("num_ranks", num_ranks, at_least=1)
        check_integer("rank", rank, at_least=0)
        if rank >= num_ranks:
            raise ValueError(f"rank={rank}: pass a number below num_ranks={num_ranks}")
        _, classes, counts = labels.unique(return_inverse=True, return_counts=True)
        self.classes = classes.argsort(stable=True).split(counts.tolist())
        if batch_size % m or batch_size % num_ranks:
            raise ValueError(
                f"batch_size {batch_size}: pass a multiple of m={m} and of num_ranks={num_ranks}"
            )
        if batch_size // m > len(self.classes):
            raise ValueError(
                f"batch_size {batch_size} with m={m} takes {batch_size // m} classes, but labels hold "
                f"{len(self.classes)}: pass a larger m or a smaller batch_size"
            )
        if cover not in ("classes", "images"):
            raise ValueError(f'cover={cover!r}: pass "classes" or "images"')
        if cover == "images":
            if num_batches is not None:
                raise ValueError(
                    f'num_batches={num_batches} with cover="images", whose epochs have as many batches as '
                    'all images take: leave it out, or pass cover="classes"'
                )
            num_groups = sum(-(-len(images) // m) for images in self.classes)
            num_batches = -(-num_groups // (batch_size // m))
        self.m = m
        self.cover = cover
        self.batch_size = batch_size // num_ranks
        self.num_batches = max(1, len(labels) // batch_size) if num_batches is None else num_batches
        check_integer("num_batches", self.num_batches, at_least=1)
        self.rank = rank
        self.seed = seed
        self.epoch = 0
        self._classes_per_batch = batch_size // m

    @property
    def sampler(self) -> ClassBatches:
        """Itself: among ranks accelerate sets the epoch of a batch sampler's sampler alone."""
        return self

    def set_epoch(self, epoch: int) -> None:
        """Draws the batches of this epoch from now on."""
        self.epoch = epoch

    def __len__(self) -> int:
        return self.num_batches

    def __iter__(self) -> Iterator[list[int]]:
        # A generator on a CPU knows 32 bits of its seed; the factor keeps seeds apart.
        generator = torch.Generator().manual_seed((int(self.seed) * 0x9E3779B1 + self.epoch) % 2**32)
        own = slice(self.rank * self.batch_size, (self.rank + 1) * self.batch_size)
        batches = self._of_classes if self.cover == "classes" else self._of_all_images
        for groups in batches(generator):
            yield torch.cat(groups)[own].tolist()

    def _of_classes(self, generator: torch.Generator) -> Iterator[list[Tensor]]:
        """Yields batches of classes that are drawn anew for each, as ``m`` images of every class."""
        for _ in range(self.num_batches):
            order = torch.randperm(len(self.classes), generator=generator, device="cpu")
            numbers = order[: self._classes_per_batch].tolist()
            yield [self._drawn(self.classes[number], generator) for number in numbers]

    def _of_all_images(self, generator: torch.Generator) -> Iterator[list[Tensor]]:
        """Yields batches that hold every image, as groups of ``m`` images of a class."""
        order = torch.randperm(len(self.classes), generator=generator, device="cpu").tolist()
        num_groups = [-(-len(self.classes[number]) // self.m) for number in order]
        num_fills = self.num_batches * self._classes_per_batch - sum(num_groups)  # of the last batch
        groups = []
        for place, (number, count) in enumerate(zip(order, num_groups, strict=True)):
            groups += self._dealt(self.classes[number], count, generator)
            if place < num_fills:
                groups.append(self._drawn(self.classes[number], generator))
        # The groups of a class follow each other, so dealing them out in turn spreads them over the batches.
        for first in torch.randperm(self.num_batches, generator=generator, device="cpu").tolist():
            yield groups[first :: self.num_batches]

    def _dealt(self, images: Tensor, num_groups: int, generator: torch.Generator) -> list[Tensor]:
        """Returns all images in groups of ``m``, of which the last is filled up with others of the class."""
        if len(images) < self.m:
            rest = self._drawn(images, generator)[len(images) :]
            return [torch.cat([images, rest])]
        shuffled = images[torch.randperm(len(images), generator=generator, device="cpu")]
        return [*shuffled.split(self.m)[: num_groups - 1], shuffled[-self.m :]]

    def _drawn(self, images: Tensor, generator: torch.Generator) -> Tensor:
        """Returns ``m`` of the images, without repetition where there are enough."""
        if len(images) < self.m:
            return images[torch.randint(len(images), (self.m,), generator=generator, device="cpu")]
        return images[torch.randperm(len(images), generator=generator, device="cpu")[: self.m]]
