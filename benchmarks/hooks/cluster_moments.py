"""Cross batch normalization of clusters of the memory."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from pml_xbn.adapters import GroupMomentMatching, Moments, moments


class ClusterMatching(nn.Module):
    r"""Gives the rows of every cluster of the memory the moments of the batch's rows that are nearest to it.

    The map is that of :class:`~pml_xbn.adapters.GroupMomentMatching` (thesis A Study of Cross Batch Memory,
    Eq. 4.3). But the groups are found by k-means on the rows of the memory as they are now, every so many
    steps (§6.1.1 of the thesis, which proposes it): a row of memory or batch belongs to the nearest centroid.
    Labels play no part.

    Distances are between rows less their mean, over their σ, :math:`(z - E[R]) / \sigma[R]` in the memory and
    :math:`(z - E[B]) / \sigma[B]` in the batch. In these coordinates a drift that is a scale and a shift per
    dimension moves nothing, so that the centroids hold until the next clustering.

    k-means is faiss's, on the CPU, and takes 256 rows for each centroid where there are more. The first
    clustering takes place as soon as the memory holds k rows, with a start that the seed draws; every later
    one starts from the centroids that there are. Until then all rows are one group.

    Args:
        embedding_size: d.
        num_clusters: k.
        cluster_every: steps from one clustering to the next.
        mean_lambda, std_lambda: as in :class:`~pml_xbn.adapters.GroupMomentMatching`.
        seed: of the first clustering.

    Attributes:
        centroids: ``(k, d)``, float64; zeros before the first clustering.
        num_steps: ``()``, how many have been taken since the first clustering, itself included.
    """

    centroids: Tensor
    num_steps: Tensor

    def __init__(
        self,
        embedding_size: int,
        num_clusters: int = 8,
        cluster_every: int = 100,
        mean_lambda: float = 0.5,
        std_lambda: float = 1.0,
        seed: int = 0,
    ) -> None:
        super().__init__()
        self.cluster_every = cluster_every
        self.seed = seed
        self.group_matching = GroupMomentMatching(mean_lambda, std_lambda)
        self.register_buffer("centroids", torch.zeros(num_clusters, embedding_size, dtype=torch.float64))
        self.register_buffer("num_steps", torch.tensor(0))

    def forward(
        self, memory: Tensor, memory_labels: Tensor, batch: Tensor, batch_labels: Tensor
    ) -> Tensor | None:
        """Returns the adapted rows ``(n, d)``; None with fewer than two rows in memory or batch."""
        if min(len(memory), len(batch)) < 2:
            return None
        if not self.num_steps and len(memory) < len(self.centroids):
            groups, batch_groups = (torch.zeros(len(x), dtype=torch.int64) for x in (memory, batch))
        else:
            rows, batch_rows = _standardized(memory), _standardized(batch)
            if self.num_steps % self.cluster_every == 0 and len(rows) >= len(self.centroids):
                self._find_centroids(rows)
            self.num_steps += 1
            groups, batch_groups = self._nearest(rows), self._nearest(batch_rows)
        return self.group_matching(memory, groups.to(memory.device), batch, batch_groups.to(batch.device))

    def _find_centroids(self, rows: Tensor) -> None:
        """Clusters standardized rows; the old centroids stay where a row is NaN."""
        import faiss

        points = rows.float().cpu()
        if not torch.isfinite(points).all():
            return
        k, d = self.centroids.shape
        kmeans: Any = faiss.Kmeans(d, k, seed=self.seed, min_points_per_centroid=1)
        start = self.centroids.float().cpu().numpy() if self.num_steps else None
        kmeans.train(points.numpy(), init_centroids=start)
        self.centroids.copy_(torch.from_numpy(kmeans.centroids))

    def _nearest(self, rows: Tensor) -> Tensor:
        """Returns numbers ``(n,)`` of the centroids that are nearest to standardized rows ``(n, d)``."""
        return (rows @ self.centroids.T - self.centroids.square().sum(dim=1) / 2).argmax(dim=1)


def _standardized(rows: Tensor) -> Tensor:
    precise = rows.double()
    row_moments = moments(precise)
    standard = Moments(torch.zeros_like(row_moments.mean), torch.ones_like(row_moments.std))
    return row_moments.affine_to(standard).map(precise)
