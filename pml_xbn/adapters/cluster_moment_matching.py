"""Cross batch normalization of clusters of the memory."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from .._dtypes import at_least_float32, widest
from .._number_checks import check_integer
from ._rows import Rows
from .base_adapter import Given
from .group_moment_matching import GroupMomentMatching
from .moments import Moments


class ClusterMomentMatching(GroupMomentMatching):
    r"""Gives the rows of every cluster of the memory the moments of the batch's rows that are nearest to it.

    The map is that of :class:`GroupMomentMatching` (thesis A Study of Cross Batch Memory, Eq. 4.3). But the
    groups are found by k-means on the rows of the memory as they are now, every so many steps (§6.1.1 of the
    thesis, which proposes it): a row of memory or batch belongs to the nearest centroid. Labels play no part.

    Distances are between rows less their mean, over their σ, :math:`(z - E[R]) / \sigma[R]` in the memory and
    :math:`(z - E[B]) / \sigma[B]` in the batch. In these coordinates a drift that is a scale and a shift per
    dimension moves nothing, so that the centroids hold until the next clustering.

    k-means is faiss's, on the CPU, and takes 256 rows for each centroid where there are more. The first
    clustering takes place as soon as the memory holds k rows, with a start that the seed draws; every later
    one starts from the centroids that there are. Until then all rows are one group. A step takes
    O(M · d · k), and rewrites the rows of the clusters that the batch has two rows of.

    Args:
        num_clusters: k.
        cluster_every: steps from one clustering to the next.
        mean_lambda, std_lambda, normalize_absent: as in :class:`GroupMomentMatching`.
        seed: of the first clustering.
        collect_stats: see :class:`GroupMomentMatching`.

    Attributes:
        centroids: ``(k, d)``, float64; zeros before the first clustering.
        num_steps: how many have been taken since the first clustering, itself included.

    Raises:
        ImportError: faiss is not installed.
        ValueError: an integer out of range, or a λ outside [0, 1].

    Example:
        >>> adapter = ClusterMomentMatching(num_clusters=2, mean_lambda=0.0, std_lambda=0.0)
        >>> memory, labels = torch.tensor([[0.0], [1.0], [50.0], [51.0]]), torch.zeros(4)
        >>> batch = torch.tensor([[3.0], [5.0], [70.0], [76.0]])
        >>> adapter(memory, labels, batch, labels).flatten().round(decimals=3)
        tensor([ 3.,  5., 70., 76.])
    """

    def __init__(
        self,
        num_clusters: int = 8,
        cluster_every: int = 100,
        mean_lambda: float = 0.5,
        std_lambda: float = 1.0,
        normalize_absent: bool = True,
        seed: int = 0,
        **kwargs: Any,
    ) -> None:
        check_integer("num_clusters", num_clusters, at_least=1)
        check_integer("cluster_every", cluster_every, at_least=1)
        check_integer("seed", seed, at_least=0)
        _faiss()  # rather now than after an hour of training
        super().__init__(mean_lambda, std_lambda, normalize_absent, superclasses=None, **kwargs)
        self.num_clusters = num_clusters
        self.cluster_every = cluster_every
        self.seed = seed
        self._begin(0)

    def set_embedding_size(self, embedding_size: int) -> None:
        if self.centroids.shape[1] != embedding_size:  # one that is registered again goes on
            self._begin(embedding_size)

    def _begin(self, embedding_size: int) -> None:
        self.centroids, self.num_steps = widest(torch.zeros(self.num_clusters, embedding_size)), 0

    def _adapted(self, rows: Rows, given: Given) -> Rows:
        labels, batch, batch_labels, of_memory, target = given
        standard = Moments(torch.zeros_like(of_memory.mean), torch.ones_like(of_memory.std))
        in_memory, in_batch = of_memory.to(standard), target.to(standard)
        if self.num_steps or len(rows) >= self.num_clusters:
            if self.num_steps % self.cluster_every == 0 and len(rows) >= self.num_clusters:
                self.centroids = self._clustered(in_memory.map(rows.read(rows.dtype)))
            self.num_steps += 1
            labels = torch.cat([self._nearest(in_memory.map(x)) for _, x in rows.parts(rows.dtype)])
            batch_labels = self._nearest(in_batch.map(at_least_float32(batch)))
        else:
            labels, batch_labels = (torch.zeros_like(x, dtype=torch.int64) for x in (labels, batch_labels))
        return super()._adapted(rows, given._replace(labels=labels, batch_labels=batch_labels))

    def _clustered(self, rows: Tensor) -> Tensor:
        """Centroids ``(k, d)`` of standardized rows; the old ones where a row is NaN."""
        points = rows.float().cpu()
        if not torch.isfinite(points).all():
            return self.centroids
        kmeans = _faiss().Kmeans(
            points.shape[1], self.num_clusters, seed=self.seed, min_points_per_centroid=1
        )
        start = self.centroids.float().cpu().numpy() if self.num_steps else None
        kmeans.train(points.numpy(), init_centroids=start)
        return widest(torch.from_numpy(kmeans.centroids)).to(rows.device)

    def _nearest(self, rows: Tensor) -> Tensor:
        """Numbers ``(n,)`` of the centroids that are nearest to standardized rows ``(n, d)``."""
        centroids = self.centroids.to(rows)
        return (rows @ centroids.T - centroids.square().sum(dim=1) / 2).argmax(dim=1)

    def get_extra_state(self) -> Tensor:
        return torch.cat([self.centroids.new_tensor([self.num_steps]), self.centroids.flatten()])

    def set_extra_state(self, state: Tensor) -> None:
        num_steps, centroids = state.tensor_split([1])
        self.num_steps = int(num_steps.item())
        self.centroids = centroids.clone().view(self.num_clusters, -1)


def _faiss() -> Any:
    try:
        import faiss
    except ImportError as error:
        raise ImportError("ClusterMomentMatching finds clusters by faiss: pip install faiss-cpu") from error
    return faiss
