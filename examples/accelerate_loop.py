"""accelerate: register_for_checkpointing keeps the memory, and gather_distributed makes one of all ranks'.

A plain loop with accelerate's checkpoints, accumulation and mixed precision. --resume goes on from the last
epoch bit for bit. The images are Glyphs, which matplotlib draws.

    python examples/accelerate_loop.py --epochs 4
    python examples/accelerate_loop.py --epochs 8 --resume
    torchrun --nproc_per_node=2 examples/accelerate_loop.py
"""

from __future__ import annotations

import argparse
from importlib.util import find_spec
from pathlib import Path

import torch
from pytorch_metric_learning.losses import SupConLoss
from pytorch_metric_learning.testers import BaseTester
from pytorch_metric_learning.utils.accuracy_calculator import AccuracyCalculator
from torch import nn
from torch.utils.data import DataLoader

from pml_xbn import XBNWrapper
from pml_xbn.datasets import Glyphs
from pml_xbn.training import ClassBatches

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
parser.add_argument("--epochs", type=int, default=4)
parser.add_argument("--output", type=Path, default=Path("runs/accelerate"))
parser.add_argument("--accumulate", type=int, default=1, help="batches per optimizer step (default: 1)")
parser.add_argument("--bf16", action="store_true", help="mixed precision")
parser.add_argument("--resume", action="store_true", help="from the last checkpoint")
args = parser.parse_args()
# Behind the flags, so that --help needs none of them.
for package in ("faiss", "matplotlib", "accelerate"):
    if find_spec(package) is None:
        raise SystemExit(f'{package} is missing: pip install accelerate ".[examples]"')

from accelerate import Accelerator
from accelerate.utils import set_seed

BATCH_SIZE = 32  # of a rank


def main(args: argparse.Namespace) -> None:
    accelerator = Accelerator(
        gradient_accumulation_steps=args.accumulate,
        mixed_precision="bf16" if args.bf16 else "no",
        cpu=not torch.cuda.is_available(),
    )
    if not torch.cuda.is_available():
        torch.set_num_threads(1)  # a network this small gains nothing from more
    set_seed(0)
    dataset = Glyphs("train", transform=lambda image: image / 255)
    layers = [nn.Flatten(), nn.Linear(32 * 32, 256), nn.LayerNorm(256), nn.ReLU(), nn.Linear(256, 64)]
    network = nn.Sequential(*layers)
    loss_fn = XBNWrapper(SupConLoss(temperature=0.1), 64, memory_size=1024, gather_distributed=True)
    loss_fn = loss_fn.to(accelerator.device)
    model, optimizer, loader = accelerator.prepare(
        network,
        torch.optim.AdamW(network.parameters(), lr=1e-3),
        DataLoader(dataset, batch_sampler=ClassBatches(dataset.labels, m=4, batch_size=BATCH_SIZE)),
    )
    accelerator.register_for_checkpointing(loss_fn)  # save_state and load_state know it now
    saved = sorted(args.output.glob("epoch_*"))
    if saved and not args.resume:
        raise SystemExit(f"{args.output} holds an earlier run: pass --resume, or another --output")
    if saved:
        accelerator.load_state(str(saved[-1]))

    for epoch in range(len(saved), args.epochs):
        loader.set_epoch(epoch)
        for images, labels in loader:
            with accelerator.accumulate(model):
                with accelerator.autocast():
                    loss = loss_fn(model(images), labels)
                accelerator.backward(loss)
                optimizer.step()
                optimizer.zero_grad()
        accelerator.save_state(str(args.output / "unfinished"))
        accelerator.wait_for_everyone()
        if accelerator.is_main_process:
            folder = args.output / f"epoch_{epoch:03d}"
            (args.output / "unfinished").rename(folder)  # whole, if it has this name
            print(f"epoch {epoch + 1}: Recall@1 {evaluate(network):.1f}, {loss_fn.num_rows} rows in memory")
        model.train()
    accelerator.end_training()


def evaluate(network: nn.Module) -> float:
    """Returns Recall@1 in percent, every test image searched for among all others."""
    device = next(network.parameters()).device
    tester = BaseTester(batch_size=256, dataloader_num_workers=0, data_device=device)
    test = Glyphs("test", transform=lambda image: image / 255)
    embeddings, labels = tester.get_all_embeddings(test, network)
    calculator = AccuracyCalculator(include=("precision_at_1",), k=1, device=torch.device("cpu"))
    return 100 * float(calculator.get_accuracy(embeddings, labels.squeeze(1))["precision_at_1"])


if __name__ == "__main__":
    main(args)
