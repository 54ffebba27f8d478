"""Trains the demo's task for some steps, as one of many ranks or alone, and saves the weights."""

from __future__ import annotations

import os
from pathlib import Path

import torch
from pytorch_metric_learning.losses import SupConLoss
from pytorch_metric_learning.miners import PairMarginMiner
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


def train(data: GlyphsData, method: str) -> dict[str, Tensor]:
    """The weights after all steps, in float64.

    In float32 rounding grows in training: one process, too, ends elsewhere by 0.07 when its batches are in
    another order.
    """
    is_many = distributed.is_initialized()
    rank, ranks = (distributed.get_rank(), distributed.get_world_size()) if is_many else (0, 1)
    torch.manual_seed(0)
    network = GlyphNet(data.settings.embedding_size, data.settings.norm).double()
    model = DistributedDataParallel(network) if is_many else network
    loss_fn = build_loss(data, method, is_many)
    optimizer = torch.optim.AdamW(model.parameters(), lr=data.settings.learning_rate)
    for step in range(STEPS):
        epoch, number = divmod(step, len(data.batches))
        batch = data.batches.epoch(epoch)[number]
        images = distort(data.train.images[batch], generator_for(0, 0, step)).double()
        labels = data.train.labels[batch]
        optimizer.zero_grad()
        loss_fn(model(images.chunk(ranks)[rank]), labels.chunk(ranks)[rank]).backward()
        optimizer.step()
    return network.state_dict()


def build_loss(data: GlyphsData, method: str, is_many: bool) -> nn.Module:
    loss, miner = SupConLoss(temperature=0.1), PairMarginMiner(pos_margin=0.2, neg_margin=0.8)
    memory, setup = MEMORIES[method], data.memory_setup
    if memory is None:
        return BatchLoss(loss, miner, gather_distributed=is_many)
    options = {"memory_dtype": torch.float64, "gather_distributed": is_many}
    return memory(loss, setup.embedding_size, setup.memory_size, miner, **options)


def main(folder: Path) -> None:
    data = GlyphsData(SETTINGS)
    torch.save({method: train(data, method) for method in MEMORIES}, folder / f"{distributed.get_rank()}.pt")
