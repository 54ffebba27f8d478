"""One memory for two processes, in as few lines as it takes: gather_distributed=True.

Each process embeds its own half of the batch. The memory of each holds the rows of both, adapted to the
moments of the whole batch; loss and gradient are those of one process with that batch. The images are
Glyphs, which matplotlib draws.

    torchrun --nproc_per_node=2 examples/distributed.py
"""

from __future__ import annotations

import argparse
import gc
import os
from importlib.util import find_spec

import torch
from pytorch_metric_learning.losses import SupConLoss
from torch import Tensor, distributed, nn
from torch.nn.parallel import DistributedDataParallel
from tqdm import tqdm

from pml_xbn import XBNWrapper
from pml_xbn.datasets import Glyphs

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
parser.add_argument("--epochs", type=int, default=3)
parser.add_argument("--steps", type=int, default=200, help="per epoch (default: 200)")
args = parser.parse_args()
if find_spec("matplotlib") is None:  # behind the flags, so that --help does not need it
    raise SystemExit('matplotlib is missing: pip install ".[examples]"')
if "RANK" not in os.environ:
    raise SystemExit("torchrun starts it: torchrun --nproc_per_node=2 examples/distributed.py")

CLASSES, IMAGES_PER_CLASS = 8, 2  # in the part of a batch that is a process's own


def main(args: argparse.Namespace) -> None:
    on_gpu = torch.cuda.is_available()
    device = torch.device(f"cuda:{os.environ['LOCAL_RANK']}" if on_gpu else "cpu")
    if not on_gpu:
        torch.set_num_threads(1)  # a network this small gains nothing from more
    if on_gpu:
        torch.cuda.set_device(device)
    distributed.init_process_group("nccl" if on_gpu else "gloo")
    train(args.epochs, args.steps, device)
    gc.collect()  # the model holds the process group in a cycle
    distributed.barrier()  # nobody leaves while another still listens
    distributed.destroy_process_group()


def train(epochs: int, steps: int, device: torch.device) -> None:
    rank = distributed.get_rank()
    torch.manual_seed(rank)  # other images in every process
    dataset = Glyphs("train")
    layers = [nn.Flatten(), nn.Linear(32 * 32, 256), nn.LayerNorm(256), nn.ReLU(), nn.Linear(256, 64)]
    model = DistributedDataParallel(nn.Sequential(*layers).to(device))
    loss_fn = XBNWrapper(
        SupConLoss(temperature=0.1), embedding_size=64, memory_size=512, gather_distributed=True
    ).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)

    for epoch in range(1, epochs + 1):
        total = torch.zeros((), device=device)
        for _ in tqdm(range(steps), f"epoch {epoch}", disable=rank > 0):
            batch = draw(dataset.labels)
            images, labels = dataset.images[batch].to(device) / 255, dataset.labels[batch].to(device)
            optimizer.zero_grad()
            loss = loss_fn(model(images), labels)
            loss.backward()
            optimizer.step()
            total += loss.detach()
        memories = [torch.empty_like(loss_fn.embedding_memory) for _ in range(distributed.get_world_size())]
        distributed.all_gather(memories, loss_fn.embedding_memory)
        if rank == 0:
            same = all(torch.equal(memory, memories[0]) for memory in memories)
            print(f"epoch {epoch}: loss {total / steps:.3f}, {'equal' if same else 'different'} memories")


def draw(labels: Tensor) -> Tensor:
    """Returns some images of some classes."""
    classes = torch.randperm(int(labels.max()) + 1)[:CLASSES].tolist()
    class_images = [(labels == label).nonzero().flatten() for label in classes]
    return torch.cat([images[torch.randperm(len(images))[:IMAGES_PER_CLASS]] for images in class_images])


if __name__ == "__main__":
    main(args)
