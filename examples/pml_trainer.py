"""PML's MetricLossOnly: HookContainer saves the memory, as it does all of loss_funcs, and loads it again.

With GlobalEmbeddingSpaceTester for Recall@1 and record-keeper's logs. --resume goes on bit for bit from the
last epoch. On many ranks rank 0 saves and tests. The images are Glyphs, which matplotlib draws.

    python examples/pml_trainer.py --epochs 4
    python examples/pml_trainer.py --epochs 8 --resume
    torchrun --nproc_per_node=2 examples/pml_trainer.py
"""

from __future__ import annotations

import argparse
import gc
import os
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import torch
from pytorch_metric_learning.losses import SupConLoss
from pytorch_metric_learning.samplers import MPerClassSampler
from pytorch_metric_learning.testers import GlobalEmbeddingSpaceTester
from pytorch_metric_learning.trainers import MetricLossOnly
from pytorch_metric_learning.utils import logging_presets
from pytorch_metric_learning.utils.accuracy_calculator import AccuracyCalculator
from torch import distributed, nn
from torch.nn.parallel import DistributedDataParallel

from pml_xbn import XBNWrapper
from pml_xbn.datasets import Glyphs

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
parser.add_argument("--epochs", type=int, default=4)
parser.add_argument("--output", type=Path, default=Path("runs/pml"))
parser.add_argument("--resume", action="store_true", help="from the last epoch")
args = parser.parse_args()
# Behind the flags, so that --help needs none of them.
for package in ("faiss", "matplotlib", "record_keeper", "tensorboard"):
    if find_spec(package) is None:
        raise SystemExit(f'{package} is missing: pip install ".[examples]"')

BATCH_SIZE = 32  # of a rank


def main(args: argparse.Namespace) -> None:
    if "RANK" not in os.environ:  # which torchrun sets
        train(args, rank=0, world_size=1)
        return
    distributed.init_process_group("nccl" if torch.cuda.is_available() else "gloo")
    train(args, distributed.get_rank(), distributed.get_world_size())
    gc.collect()  # the model holds the process group in a cycle
    distributed.destroy_process_group()


def train(args: argparse.Namespace, rank: int, world_size: int) -> None:
    on_gpu = torch.cuda.is_available()
    if not on_gpu:
        torch.set_num_threads(1)  # a network this small gains nothing from more
    device = torch.device(f"cuda:{os.environ.get('LOCAL_RANK', 0)}" if on_gpu else "cpu")
    if on_gpu:
        torch.cuda.set_device(device)
    torch.manual_seed(0)
    layers = [nn.Flatten(), nn.Linear(32 * 32, 256), nn.LayerNorm(256), nn.ReLU(), nn.Linear(256, 64)]
    network: nn.Module = nn.Sequential(*layers).to(device)
    if world_size > 1:
        network = DistributedDataParallel(network)
    loss_fn = XBNWrapper(
        SupConLoss(temperature=0.1), 64, memory_size=1024, gather_distributed=True, collect_stats=True
    )
    train_set, test_set = (Glyphs(split, lambda image: image / 255) for split in ("train", "test"))
    steps = len(train_set) // (BATCH_SIZE * world_size)
    sampler = MPerClassSampler(train_set.labels, 4, BATCH_SIZE, steps * BATCH_SIZE)

    logs = (str(args.output / name) for name in ("csv", "tensorboard"))
    keeper = logging_presets.get_record_keeper(*logs)[0] if rank == 0 else None
    hooks = logging_presets.HookContainer(keeper, primary_metric="precision_at_1")
    tester = GlobalEmbeddingSpaceTester(
        end_of_testing_hook=hooks.end_of_testing_hook,
        dataloader_num_workers=0,
        data_device=device,
        accuracy_calculator=AccuracyCalculator(("precision_at_1",), k=1, device=torch.device("cpu")),
    )
    save = hooks.end_of_epoch_hook(tester, {"val": test_set}, str(args.output / "models"))

    def begin(epoch: int) -> None:
        """Batches depend on epoch and rank alone, so that a resumed run draws the same ones."""
        np.random.seed(epoch * world_size + rank)  # the sampler draws from it
        sampler.labels.sort()  # which it shuffles in place

    def end_of_epoch(trainer: MetricLossOnly) -> Any:
        goes_on = rank > 0 or save(trainer)
        if rank == 0:
            accuracy = tester.all_accuracies["val"]["precision_at_1_level0"]
            print(f"epoch {trainer.epoch}: Recall@1 {100 * accuracy:.1f}, {loss_fn.num_rows} rows in memory")
        begin(trainer.epoch + 1)
        return goes_on

    trainer = MetricLossOnly(
        models={"trunk": network},
        optimizers={"trunk_optimizer": torch.optim.AdamW(network.parameters(), lr=1e-3)},
        batch_size=BATCH_SIZE,
        loss_funcs={"metric_loss": loss_fn.to(device)},
        dataset=train_set,
        sampler=sampler,
        dataloader_num_workers=0,
        data_device=device,
        end_of_iteration_hook=hooks.end_of_iteration_hook if rank == 0 else None,
        end_of_epoch_hook=end_of_epoch,
    )
    first_epoch = 1
    if args.resume:
        first_epoch = hooks.load_latest_saved_models(trainer, str(args.output / "models"), device)
    begin(first_epoch)
    trainer.train(first_epoch, args.epochs)


if __name__ == "__main__":
    main(args)
