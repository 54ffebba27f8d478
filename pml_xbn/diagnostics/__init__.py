"""Why a cross-batch memory helps or hurts: drift, staleness, batch noise, valid pairs and the common push.

Usable in any training loop, with PML's ``CrossBatchMemory`` and its subclasses:

    >>> import torch
    >>> from pytorch_metric_learning.losses import ContrastiveLoss, CrossBatchMemory
    >>> from pml_xbn.diagnostics import FeatureDrift, RowTracker, WatchedLoss, scalars
    >>> images, labels = torch.randn(64, 8), torch.arange(64) % 8
    >>> model = torch.nn.Linear(8, 4)
    >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    >>> loss_fn = CrossBatchMemory(ContrastiveLoss(), embedding_size=4, memory_size=32)

    >>> drift = FeatureDrift(lambda: model(images[:16]), deltas=(1, 2), every=4)
    >>> tracker = RowTracker(loss_fn)
    >>> for step, batch in enumerate(torch.randperm(64).split(8)):
    ...     numbers = scalars("drift", drift.update(step))
    ...     stored = loss_fn.embedding_memory.clone()
    ...     with WatchedLoss(loss_fn) as seen:
    ...         loss = loss_fn(model(images[batch]), labels[batch])
    ...     tracker.update(step, batch)
    ...     numbers |= scalars("staleness", tracker.staleness(stored, lambda indices: model(images[indices])))
    ...     numbers |= scalars("pairs", seen.valid_pairs())
    ...     numbers |= scalars("push", seen.common_mode_push())
    ...     optimizer.zero_grad()
    ...     loss.backward()
    ...     optimizer.step()
    >>> sorted(numbers)[:4]
    ['pairs_negatives_from_batch', 'pairs_negatives_from_memory', 'pairs_positives_from_batch', \
'pairs_positives_from_memory']
"""

from .batch_noise import BatchNoise, batch_noise
from .class_separability import ClassSeparability, class_separability
from .common_mode_push import CommonModePush, common_mode_push
from .embedding_distances import EmbeddingDistances, embedding_distances
from .feature_drift import Drift, FeatureDrift, feature_drift
from .memory_rows import MemoryRows, memory_rows
from .plots import (
    plot_class_separability,
    plot_common_mode_push,
    plot_embedding_distances,
    plot_feature_drift,
    plot_staleness,
    plot_superclass_neighbours,
    plot_valid_pairs,
)
from .row_tracker import RowTracker
from .scalars import scalars
from .staleness import AdaptedStaleness, Staleness, staleness
from .superclass_neighbours import superclass_neighbours
from .valid_pairs import ValidPairs, valid_pairs
from .watched_loss import WatchedLoss

__all__ = [
    "AdaptedStaleness",
    "BatchNoise",
    "ClassSeparability",
    "CommonModePush",
    "Drift",
    "EmbeddingDistances",
    "FeatureDrift",
    "MemoryRows",
    "RowTracker",
    "Staleness",
    "ValidPairs",
    "WatchedLoss",
    "batch_noise",
    "class_separability",
    "common_mode_push",
    "embedding_distances",
    "feature_drift",
    "memory_rows",
    "plot_class_separability",
    "plot_common_mode_push",
    "plot_embedding_distances",
    "plot_feature_drift",
    "plot_staleness",
    "plot_superclass_neighbours",
    "plot_valid_pairs",
    "scalars",
    "staleness",
    "superclass_neighbours",
    "valid_pairs",
]
