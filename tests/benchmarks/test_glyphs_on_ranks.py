"""The demo's task on two ranks, with group normalization, is the demo's task on one process."""

from __future__ import annotations

import os
from functools import cache

import pytest
import torch
from across_ranks import from_first_rank
from pytorch_metric_learning.losses import SupConLoss
from pytorch_metric_learning.miners import PairMarginMiner
from ranks import on_ranks
from torch import Tensor, distributed, nn
from torch.nn.parallel import DistributedDataParallel

from benchmarks.demo.settings import Settings
from benchmarks.demo.task import GlyphsData
from benchmarks.engine.distortion import distort
from benchmarks.engine.glyph_net import GlyphNet
from benchmarks.engine.randomness import generator_for
from pml_xbn import AXBNWrapper, PerClassXBN, XBNWrapper
from pml_xbn.losses import AdaptiveCrossBatchMemory, BatchLoss

STEPS = int(os.environ.get("PML_XBN_RANK_STEPS", "12"))
# The memory is full after 7 steps.
SETTINGS = Settings(classes=50, memory_ratio=0.5, batch_size=32, norm="group")
MEMORIES: dict[str, type[AdaptiveCrossBatchMemory] | None] = {
    "no-xbm": None,
    "xbm": AdaptiveCrossBatchMemory,
    "xbn": XBNWrapper,
    "axbn": AXBNWrapper,
    "per-class": PerClassXBN,
}


@cache
def data() -> GlyphsData:
    return GlyphsData(SETTINGS)


def build_loss(method: str, is_many: bool) -> nn.Module:
    loss, miner = SupConLoss(temperature=0.1), PairMarginMiner(pos_margin=0.2, neg_margin=0.8)
    memory, setup = MEMORIES[method], data().memory_setup
    if memory is None:
        return BatchLoss(loss, miner, gather_distributed=is_many)
    options = {"memory_dtype": torch.float64, "gather_distributed": is_many}
    return memory(loss, setup.embedding_size, setup.memory_size, miner, **options)


def train(method: str, rank: int, ranks: int) -> dict[str, Tensor]:
    """The weights after all steps, in float64.

    In float32 rounding grows in training: one process, too, ends elsewhere by 0.07 when its batches are in
    another order.
    """
    torch.manual_seed(0)
    network = GlyphNet(SETTINGS.embedding_size, SETTINGS.norm).double()
    model = DistributedDataParallel(network) if ranks > 1 else network
    loss_fn = build_loss(method, is_many=ranks > 1)
    optimizer = torch.optim.AdamW(model.parameters(), lr=SETTINGS.learning_rate)
    for step in range(STEPS):
        epoch, number = divmod(step, len(data().batches))
        batch = data().batches.epoch(epoch)[number]
        images = distort(data().train.images[batch], generator_for(0, 0, step)).double()
        labels = data().train.labels[batch]
        optimizer.zero_grad()
        loss_fn(model(images.chunk(ranks)[rank]), labels.chunk(ranks)[rank]).backward()
        optimizer.step()
    return network.state_dict()


@pytest.mark.parametrize("method", MEMORIES)
@on_ranks(2, timeout=400)
def test_two_ranks_end_with_the_weights_of_one_process(method: str) -> None:
    found = train(method, distributed.get_rank(), distributed.get_world_size())
    expected = from_first_rank(lambda: train(method, 0, 1))
    torch.testing.assert_close(dict(found), dict(expected), rtol=1e-8, atol=1e-8)
