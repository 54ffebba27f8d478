"""The swap: a plain training loop with PML's CrossBatchMemory, and the same with XBNWrapper in its place.

One line differs. Both runs train the same small network with the same batches on Glyphs, characters that
matplotlib draws, and print Recall@1 on characters that training has not seen; a minute or two on a CPU.

    python examples/swap.py
"""

from __future__ import annotations

import argparse
from importlib.util import find_spec

import numpy as np
import torch
from pytorch_metric_learning.losses import CrossBatchMemory, SupConLoss
from pytorch_metric_learning.miners import PairMarginMiner
from pytorch_metric_learning.samplers import MPerClassSampler
from pytorch_metric_learning.testers import BaseTester
from pytorch_metric_learning.utils.accuracy_calculator import AccuracyCalculator
from torch import nn
from tqdm import tqdm

from pml_xbn import XBNWrapper
from pml_xbn.datasets import Glyphs

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
parser.add_argument("--epochs", type=int, default=2)
parser.add_argument("--steps", type=int, default=1000, help="per epoch (default: 1000)")
args = parser.parse_args()
# Behind the flags, so that --help needs none of them.
for package in ("faiss", "matplotlib"):
    if find_spec(package) is None:
        raise SystemExit(f'{package} is missing: pip install ".[examples]"')

BATCH_SIZE = 16
EMBEDDING_SIZE = 64
MEMORY_SIZE = 512


def main(args: argparse.Namespace) -> None:
    torch.set_num_threads(1)  # a network this small gains nothing from more

    loss, miner = SupConLoss(temperature=0.1), PairMarginMiner(pos_margin=0.2, neg_margin=0.8)
    before = train(CrossBatchMemory(loss, EMBEDDING_SIZE, MEMORY_SIZE, miner), args.epochs, args.steps)
    after = train(XBNWrapper(loss, EMBEDDING_SIZE, MEMORY_SIZE, miner), args.epochs, args.steps)  # the swap
    print(f"Recall@1: {before:.1f} with CrossBatchMemory, {after:.1f} with XBNWrapper")


def train(loss_fn: CrossBatchMemory, epochs: int, steps: int) -> float:
    """Returns Recall@1 in percent after the last epoch."""
    torch.manual_seed(0)
    np.random.seed(0)  # PML's sampler draws from it
    dataset = Glyphs("train")
    sampler = MPerClassSampler(dataset.labels, 4, BATCH_SIZE, steps * BATCH_SIZE)
    layers = [*block(1, 16), *block(16, 32), *block(32, 64)]
    model = nn.Sequential(*layers, nn.Flatten(), nn.Linear(64 * 4 * 4, EMBEDDING_SIZE))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)

    name, recall_at_1 = type(loss_fn).__name__, 0.0
    for epoch in range(1, epochs + 1):
        losses = []
        for batch in tqdm(torch.tensor(list(sampler)).view(steps, BATCH_SIZE), f"{name}, epoch {epoch}"):
            optimizer.zero_grad()
            loss = loss_fn(model(dataset.images[batch, None] / 255), dataset.labels[batch])
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        recall_at_1 = evaluate(model)
        print(f"{name}, epoch {epoch}: loss {np.mean(losses):.3f}, Recall@1 {recall_at_1:.1f}")
    return recall_at_1


def block(channels_in: int, channels_out: int) -> list[nn.Module]:
    convolution = nn.Conv2d(channels_in, channels_out, 3, padding=1, bias=False)
    return [convolution, nn.BatchNorm2d(channels_out), nn.ReLU(), nn.MaxPool2d(2)]


def evaluate(model: nn.Module) -> float:
    """Returns Recall@1 in percent, every test image searched for among all others."""
    tester = BaseTester(batch_size=256, dataloader_num_workers=0, data_device=torch.device("cpu"))
    test = Glyphs("test", transform=lambda image: image / 255)
    embeddings, labels = tester.get_all_embeddings(test, model)
    model.train()
    calculator = AccuracyCalculator(include=("precision_at_1",), k=1, device=torch.device("cpu"))
    return 100 * float(calculator.get_accuracy(embeddings, labels.squeeze(1))["precision_at_1"])


if __name__ == "__main__":
    main(args)
