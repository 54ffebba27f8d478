"""Trains with one memory on many ranks, and goes on from its checkpoint where there is one."""

import argparse
import gc
import os
from pathlib import Path

import torch
from pytorch_metric_learning.losses import SupConLoss
from torch import distributed
from torch.nn.parallel import DistributedDataParallel

from pml_xbn import XBNWrapper
from pml_xbn.datasets import Glyphs

BATCH_SIZE = 16  # per rank


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument(
        "--checkpoint", type=Path, default=Path("runs/resume_on_many.pt")
    )
    arguments = parser.parse_args()

    device = join()
    train(device, arguments.steps, arguments.checkpoint)
    gc.collect()  # the model holds the process group in a cycle
    distributed.destroy_process_group()


def join() -> torch.device:
    if torch.cuda.is_available():
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
        distributed.init_process_group("nccl")
        return torch.device("cuda", torch.cuda.current_device())
    distributed.init_process_group("gloo")
    return torch.device("cpu")


def train(device: torch.device, steps: int, checkpoint: Path) -> None:
    rank = distributed.get_rank()
    dataset = Glyphs("train")
    torch.manual_seed(0)
    network = torch.nn.Sequential(
        torch.nn.Flatten(),
        torch.nn.Linear(32 * 32, 128),
        torch.nn.ReLU(),
        torch.nn.Linear(128, 64),
    )
    model = DistributedDataParallel(network.to(device))
    loss_fn = XBNWrapper(
        SupConLoss(), embedding_size=64, memory_size=512, gather_distributed=True
    )
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)

    first = 0
    if checkpoint.exists():
        state = torch.load(checkpoint, map_location=device, weights_only=True)
        first = state["step"]
        if first >= steps:
            return
        network.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        loss_fn.load_state_dict(state["loss_fn"])

    for step in range(first, steps):
        # Batches depend on step and rank alone, so that a resumed run draws the same ones.
        generator = torch.Generator().manual_seed(1000 * step + rank)
        batch = torch.randint(len(dataset), (BATCH_SIZE,), generator=generator)
        images, labels = (
            dataset.images[batch].to(device) / 255,
            dataset.labels[batch].to(device),
        )
        optimizer.zero_grad()
        loss = loss_fn(model(images), labels)
        loss.backward()
        optimizer.step()

    if rank == 0:
        checkpoint.parent.mkdir(parents=True, exist_ok=True)
        state = {
            "step": steps,
            "model": network.state_dict(),
            "optimizer": optimizer.state_dict(),
            "loss_fn": loss_fn.state_dict(),
        }
        unfinished = checkpoint.with_suffix(".unfinished")
        torch.save(state, unfinished)
        os.replace(unfinished, checkpoint)  # at all times a whole file
        print(
            f"step {steps}: loss {loss.item():.4f}, {loss_fn.num_rows} rows in memory"
        )


if __name__ == "__main__":
    main()
