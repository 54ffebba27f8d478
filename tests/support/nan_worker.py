"""Asserts, in every eleventh case, that all ranks are told of NaN in the batch of one, and in stored rows."""

from __future__ import annotations

import itertools

import torch
from pytorch_metric_learning import losses, miners
from torch import Tensor, distributed

from pml_xbn import XBNWrapper

B, D, M = 6, 4, 30
LOSSES = losses.ContrastiveLoss, losses.SupConLoss, losses.CircleLoss, losses.NTXentLoss
MINERS = (lambda: None), miners.MultiSimilarityMiner, miners.DistanceWeightedMiner
# Whether rows are on all ranks or spread, what a memory does with NaN, and its other options.
OPTIONS = [
    {way: True, "nonfinite": nonfinite, **more}
    for way in ("gather_distributed", "shard_distributed")
    for nonfinite in ("skip", "ignore")
    for more in ({}, {"batch_loss_weight": 0.5}, {"warmup": 9})
]


def batch(step: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(100 * step + distributed.get_rank())
    return torch.randn(B, D, generator=generator), torch.arange(B) % 3


def of_any(flag: Tensor) -> bool:
    number = flag.int()
    distributed.all_reduce(number)
    return bool(number)


def check_step(memory: XBNWrapper, step: int, is_bad: bool, mask: Tensor | None) -> None:
    embeddings, labels = batch(step)
    if is_bad and distributed.get_rank() == 1:
        embeddings[3, 1] = torch.nan  # which is stored where there is a mask
    value = memory(embeddings.requires_grad_(), labels, None, mask)
    value.backward()
    assert value.isnan()
    assert of_any(embeddings.grad.isnan().any())


def check() -> None:
    mask = torch.arange(B) % 2 == 1
    for loss, make, options in itertools.islice(itertools.product(LOSSES, MINERS, OPTIONS), 0, None, 11):
        miner = make()
        if "shard_distributed" in options and isinstance(miner, miners.DistanceWeightedMiner):
            continue
        for own_mask in (None, mask):
            memory = XBNWrapper(loss(), D, M, miner, **options)
            assert memory(*batch(0), None, own_mask).isfinite()
            check_step(memory, 1, True, own_mask)
            if options["nonfinite"] == "ignore" and "warmup" not in options:
                check_step(memory, 2, False, own_mask)
            elif "warmup" not in options:
                assert memory(*batch(2), None, own_mask).isfinite()
