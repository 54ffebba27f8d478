"""One memory shared by many processes: trains on Glyphs under torchrun, on CPUs or GPUs.

Every process embeds its own part of the global batch; the memory of each holds the rows of all. Loss and
gradients are those of one process with the global batch, and so is batch normalization, which sees the batch
of all (``--no-sync-bn``: every process normalizes by its own part).

    torchrun --nproc_per_node=2 -m benchmarks.demo.distributed
    torchrun --nproc_per_node=2 -m benchmarks.demo.distributed --epochs 1 --classes 100
"""

from __future__ import annotations

import argparse
import hashlib
import os
from datetime import timedelta

import torch
from pytorch_metric_learning.losses import SupConLoss
from pytorch_metric_learning.miners import PairMarginMiner
from torch import distributed, nn
from torch.nn.parallel import DistributedDataParallel
from tqdm import tqdm

from benchmarks.demo.settings import Settings
from benchmarks.demo.task import GlyphsData
from benchmarks.engine.accuracy import embed, retrieval_accuracy
from benchmarks.engine.distortion import distort
from benchmarks.engine.glyph_net import GlyphNet
from benchmarks.engine.randomness import generator_for, seed_for
from benchmarks.engine.ranks import leave_process_group
from benchmarks.engine.sync_batch_norm import synchronise_batch_norm
from pml_xbn import XBNWrapper


def main() -> None:
    arguments = _parse()
    device = _join()
    _train(arguments, device)
    leave_process_group()


def _train(arguments: argparse.Namespace, device: torch.device) -> None:
    rank, world_size = distributed.get_rank(), distributed.get_world_size()
    settings = Settings(
        batch_size=arguments.batch_size * world_size, classes=arguments.classes, seed=arguments.seed
    )
    data = GlyphsData(settings, device)

    torch.manual_seed(seed_for(settings.seed, "weights"))
    network: nn.Module = GlyphNet(settings.embedding_size).to(device)
    if arguments.sync_bn:
        network = synchronise_batch_norm(network, device)
    model = DistributedDataParallel(network)
    loss_fn = XBNWrapper(
        SupConLoss(temperature=0.1),
        settings.embedding_size,
        max(data.memory_setup.memory_size, settings.batch_size),
        PairMarginMiner(pos_margin=0.2, neg_margin=0.8),
        gather_distributed=True,
        warmup=len(data.batches),  # an epoch without memory
    ).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=settings.learning_rate)

    for epoch in range(arguments.epochs + 1):
        batches = data.batches.epoch(epoch)
        for step, batch in enumerate(tqdm(batches, desc=f"epoch {epoch + 1}", disable=rank > 0)):
            mine = batch.chunk(world_size)[rank].to(device)
            images = distort(data.train.images[mine], generator_for(settings.seed, epoch, step, rank))
            optimizer.zero_grad()
            loss_fn(model(images), data.train.labels[mine]).backward()
            optimizer.step()
        if rank == 0:
            # Not the model: a forward through DistributedDataParallel would wait for the others.
            accuracy = retrieval_accuracy(embed(network, data.test.images), data.test.labels)
            print(f"epoch {epoch + 1}: Recall@1 {accuracy['recall_at_1']:.1f}, rows {loss_fn.num_rows}")

    checksum = hashlib.sha256(loss_fn.embedding_memory.cpu().numpy().tobytes()).hexdigest()[:16]
    checksums: list[str] = [""] * world_size
    distributed.all_gather_object(checksums, checksum)
    if rank == 0:
        print(f"memory of every rank: {', '.join(checksums)}")


def _join() -> torch.device:
    """Joins the processes that torchrun started, and returns this one's device."""
    timeout = timedelta(minutes=5)
    if torch.cuda.is_available():
        device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
        torch.cuda.set_device(device)
        distributed.init_process_group("nccl", timeout=timeout)
        return device
    torch.set_num_threads(1)
    distributed.init_process_group("gloo", timeout=timeout)
    return torch.device("cpu")


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--epochs", type=int, default=3, help="epochs with memory, after one without (default: 3)")
    add("--batch-size", type=int, default=16, help="per process, a multiple of 4 (default: 16)")
    add("--seed", type=int, default=0)
    add("--classes", type=int, help="train and test on so many classes each (default: all)")
    add(
        "--sync-bn",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="batch normalization sees the batch of all processes (default: yes)",
    )
    return parser.parse_args()


if __name__ == "__main__":
    main()
