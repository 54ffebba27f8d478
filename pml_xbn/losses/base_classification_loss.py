"""What the classification losses share: a vector per class, the checks, and PML's reducers and miners."""

from __future__ import annotations

from typing import Any

import torch
from pytorch_metric_learning.losses import BaseMetricLossFunction
from pytorch_metric_learning.losses.mixins import WeightRegularizerMixin
from pytorch_metric_learning.utils import common_functions as c_f
from pytorch_metric_learning.utils import loss_and_miner_utils as lmu
from torch import Tensor, nn

from .._arithmetic import without_autocast
from .._checks import check_indices, check_integer, check_integers, check_rows
from ..pairwise._pairs import IndicesTuple


class BaseClassificationLoss(WeightRegularizerMixin, BaseMetricLossFunction):
    """A loss between embeddings and one weight vector per class.

    A subclass implements :meth:`element_losses`, and :meth:`similarities` where it is not the distance.

    The weights W ``(embedding_size, num_classes)`` start as those of ``nn.Linear``, uniform between ±1/√d,
    where PML's start standard normal and so, at d = 512, about 40 times as long. They follow the batch to its
    device and keep their dtype: the loss is computed in float32 or better, under autocast too.

    Args:
        num_classes: number of classes C of the training set, 2 or more.
        embedding_size: number of dimensions d.
        **kwargs: what PML's losses take: ``distance``, ``reducer``, ``weight_init_func``,
            ``weight_regularizer``, ``embedding_regularizer``, ``collect_stats``.

    Raises:
        ValueError: a number out of range.
    """

    def __init__(self, num_classes: int, embedding_size: int, **kwargs: Any) -> None:
        check_integer("num_classes", num_classes, at_least=2)
        check_integer("embedding_size", embedding_size, at_least=1)
        super().__init__(**kwargs)
        self.num_classes, self.embedding_size = num_classes, embedding_size
        self.W = nn.Parameter(torch.empty(embedding_size, num_classes))
        self.weight_init_func(self.W)
        self.add_to_recordable_attributes(list_of_names=["num_classes", "embedding_size"], is_stat=False)

    def forward(
        self,
        embeddings: Tensor,
        labels: Tensor,
        indices_tuple: IndicesTuple | None = None,
        ref_emb: Tensor | None = None,
        ref_labels: Tensor | None = None,
    ) -> Tensor:
        """Returns the reduced loss, a scalar.

        Args:
            embeddings: ``(b, d)``, any floating dtype.
            labels: ``(b,)``, integers from 0 to C - 1.
            indices_tuple: pairs or triplets of a miner, among which more frequent rows weigh more, as in PML.
            ref_emb, ref_labels: not supported; there for PML's signature.

        Raises:
            ValueError, TypeError: input that does not fit, or a label that is no class.
        """
        check_rows("embeddings", embeddings, width=self.embedding_size)
        check_integers("labels", labels, len(embeddings), "one label per embedding")
        if indices_tuple is not None:
            check_indices(indices_tuple, len(embeddings))
        labels = labels.long()  # before it is compared with a number that may not fit its dtype
        is_outside = (labels < 0) | (labels >= self.num_classes)
        if is_outside.any():
            raise ValueError(
                f"labels {labels[is_outside].unique().tolist()} are no class of "
                f"num_classes={self.num_classes}: pass labels from 0 to {self.num_classes - 1}"
            )
        with without_autocast(embeddings.device.type):
            embeddings, _ = self._in_one_dtype(embeddings)
            loss: Tensor = super().forward(embeddings, labels, indices_tuple, ref_emb, ref_labels)
        return loss

    def compute_loss(
        self, embeddings: Tensor, labels: Tensor, indices_tuple: IndicesTuple | None, *refs: Tensor
    ) -> dict[str, dict[str, Any]]:
        """PML's method for subclasses: the losses of the rows, for the reducer."""
        c_f.ref_not_supported(embeddings, labels, *refs)
        losses = self.element_losses(*self._in_one_dtype(embeddings), labels)
        row_weights = lmu.convert_to_weights(indices_tuple, labels, dtype=embeddings.dtype)
        rows = {"indices": c_f.torch_arange_from_size(embeddings), "reduction_type": "element"}
        loss_dict = {name: {"losses": losses[name] * row_weights, **rows} for name in losses}
        self.add_weight_regularization_to_loss_dict(loss_dict, self.W.t())
        return loss_dict

    def get_logits(self, embeddings: Tensor) -> Tensor:
        """Returns the logits ``(b, C)`` of embeddings ``(b, d)``, for all classes."""
        with without_autocast(embeddings.device.type):
            return self.similarities(*self._in_one_dtype(embeddings))

    def similarities(self, embeddings: Tensor, weights: Tensor) -> Tensor:
        """Logits ``(b, c)`` of embeddings ``(b, d)`` for the classes whose weights ``(d, c)`` are given."""
        logits: Tensor = self.distance(embeddings, weights.t())
        return logits

    def element_losses(self, embeddings: Tensor, weights: Tensor, labels: Tensor) -> dict[str, Tensor]:
        """Losses ``(b,)`` of the rows, one for every name in PML's ``sub_loss_names``."""
        raise NotImplementedError

    def get_default_weight_init_func(self) -> c_f.TorchInitWrapper:
        # nn.Linear's weights lie the other way round, hence fan_out.
        return c_f.TorchInitWrapper(nn.init.kaiming_uniform_, a=5**0.5, mode="fan_out")

    def _in_one_dtype(self, embeddings: Tensor) -> tuple[Tensor, Tensor]:
        self.W.data = self.W.data.to(embeddings.device)
        dtype = torch.promote_types(embeddings.dtype, torch.promote_types(self.W.dtype, torch.float32))
        return embeddings.to(dtype), self.W.to(dtype)
