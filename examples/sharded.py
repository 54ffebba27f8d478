"""A memory that is spread over the processes, and its checkpoint: shard_distributed=True.

Each process embeds its own part of the batch and stores its own part of the memory. Loss and gradient are
those of one process with all of it. The checkpoint may be loaded by another number of processes. The images
are Glyphs, which matplotlib draws.

    torchrun --nproc_per_node=2 examples/sharded.py
    torchrun --nproc_per_node=3 examples/sharded.py --resume
"""

from __future__ import annotations

import argparse
import gc
import os
from importlib.util import find_spec

import torch
from pytorch_metric_learning.losses import SupConLoss
from torch import distributed, nn
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save
from torch.nn.parallel import DistributedDataParallel

from pml_xbn import XBNWrapper
from pml_xbn.datasets import Glyphs

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
parser.add_argument("--steps", type=int, default=200)
parser.add_argument("--batch-size", type=int, default=32, help="of a process (default: 32)")
parser.add_argument("--memory-size", type=int, default=10_000, help="of all together (default: 10,000)")
parser.add_argument("--folder", default="runs/sharded_checkpoint", help="of the checkpoint")
parser.add_argument("--resume", action="store_true")
args = parser.parse_args()
if find_spec("matplotlib") is None:  # behind the flags, so that --help does not need it
    raise SystemExit('matplotlib is missing: pip install ".[examples]"')
if "RANK" not in os.environ:
    raise SystemExit("torchrun starts it: torchrun --nproc_per_node=2 examples/sharded.py")


def main(args: argparse.Namespace) -> None:
    on_gpu = torch.cuda.is_available()
    device = torch.device(f"cuda:{os.environ['LOCAL_RANK']}" if on_gpu else "cpu")
    if on_gpu:
        torch.cuda.set_device(device)
    else:
        torch.set_num_threads(1)  # a network this small gains nothing from more
    distributed.init_process_group("nccl" if on_gpu else "gloo")
    train(args, device)
    gc.collect()  # the model holds the process group in a cycle
    distributed.barrier()  # nobody leaves while another still listens
    distributed.destroy_process_group()


def train(args: argparse.Namespace, device: torch.device) -> None:
    torch.manual_seed(distributed.get_rank())  # other images in every process
    dataset = Glyphs("train")
    layers = [nn.Flatten(), nn.Linear(32 * 32, 256), nn.LayerNorm(256), nn.ReLU(), nn.Linear(256, 64)]
    model = DistributedDataParallel(nn.Sequential(*layers).to(device))
    loss_fn = XBNWrapper(
        SupConLoss(temperature=0.1), embedding_size=64, memory_size=args.memory_size, shard_distributed=True
    ).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    if args.resume:
        state = {"model": model.module.state_dict(), "loss": loss_fn.state_dict()}
        load(state, checkpoint_id=args.folder)  # into the tensors of the state
        model.module.load_state_dict(state["model"])
        loss_fn.load_state_dict(state["loss"])

    total = torch.zeros((), device=device)
    for _ in range(args.steps):
        batch = torch.randint(len(dataset.labels), (args.batch_size,))
        images, labels = dataset.images[batch].to(device) / 255, dataset.labels[batch].to(device)
        optimizer.zero_grad()
        loss = loss_fn(model(images), labels)
        loss.backward()
        optimizer.step()
        total += loss.detach()
    state = {"model": model.module.state_dict(), "loss": loss_fn.state_dict()}
    save(state, checkpoint_id=args.folder)
    own = len(loss_fn.label_memory)
    print(f"loss {total / args.steps:.3f}; {loss_fn.num_rows} rows, room for {own} of them here", flush=True)


if __name__ == "__main__":
    main(args)
