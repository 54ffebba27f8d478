"""A loss without memory, of the batch of all ranks."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from .._checks import check_rows
from ..distributed import _ranks as ranks
from ..distributed._group import Group
from ..memory._batch import Batch, split
from ..pairwise._batch_loss import loss_of_batch
from ..pairwise._miners import Miner
from ..pairwise._pairs import IndicesTuple
from ..pairwise._supported import check_divisors
from ._options import suggest_keywords

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup
    from torch.distributed.device_mesh import DeviceMesh


@suggest_keywords
class BatchLoss(nn.Module):
    """A loss and a miner of PML without a memory: what memories are compared with.

    It is ``loss(embeddings, labels, miner(embeddings, labels))``.

    Args:
        loss: takes ``(embeddings, labels, indices_tuple)``; any loss of PML. Its distance and
            its reducer are used.
        miner: takes ``(embeddings, labels)``; default all pairs.
        gather_distributed: in training, every rank has one process's loss of the batch of all; its gradient,
            of embeddings and of the loss's parameters, is the mean over ranks (docs/distributed.md).
        process_group: the ranks that share a batch: a ``ProcessGroup`` or a mesh of one dimension, such as
            ``mesh["dp"]``; default all ranks.

    Raises:
        ValueError: a ``process_group`` that this rank is not in, or without ``gather_distributed``.

    Example:
        >>> from pytorch_metric_learning.losses import ContrastiveLoss
        >>> loss_fn = BatchLoss(ContrastiveLoss())
        >>> loss_fn(torch.eye(4), torch.tensor([0, 0, 1, 1]))
        tensor(1.4142)
    """

    def __init__(
        self,
        loss: nn.Module,
        miner: Miner | None = None,
        *,
        gather_distributed: bool = False,
        process_group: ProcessGroup | DeviceMesh | None = None,
    ) -> None:
        super().__init__()
        check_divisors(loss)
        if process_group is not None and not gather_distributed:
            raise ValueError("process_group has no effect without gather_distributed=True: pass that too")
        self._group = Group(process_group)
        self.loss, self.miner = loss, miner
        self.gather_distributed = gather_distributed

    @property
    def process_group(self) -> ProcessGroup | None:
        """The process group of the ranks that share a batch; None: all. It has to be set after unpickling."""
        return self._group.process_group

    @process_group.setter
    def process_group(self, process_group: ProcessGroup | DeviceMesh | None) -> None:
        self._group.assign(process_group)

    def forward(
        self, embeddings: Tensor, labels: Tensor, indices_tuple: IndicesTuple | None = None
    ) -> Tensor:
        """Returns the loss, a scalar if the loss's reducer returns one.

        Args:
            embeddings: ``(b, d)``, any floating dtype.
            labels: ``(b,)``, integers.
            indices_tuple: pairs or triplets within the batch, added to the miner's.

        Raises:
            ValueError: input that does not fit; of many ranks all raise, also what a loss or miner raises.
        """

        def own_batch() -> Batch:
            check_rows("embeddings", embeddings)
            return split(embeddings, labels, indices_tuple)

        group = self._group
        is_alone = not (self.gather_distributed and group.has_others)
        if is_alone or not (self.training and torch.is_grad_enabled()):
            return loss_of_batch(self.loss, self.miner, own_batch(), ())
        batch, reports = ranks.gather_reports(group, "BatchLoss.forward", own_batch)
        batch = ranks.with_all_anchors(group, ranks.with_all_refs(group, batch, reports), reports)
        with ranks.Exchange(group), ranks.same_draws(reports[0].seed, batch.refs.device):
            return loss_of_batch(self.loss, self.miner, batch, ())
