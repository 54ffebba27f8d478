"""An adapter of your own: which map takes the stored rows to where the model of now would put them.

This one moves the memory's mean a share of the way to the batch's. It goes through check_adapter, which tests
any adapter in a memory of drifting data, and trains a small network on Glyphs, which matplotlib draws.

    python examples/own_adapter.py --share 0.8
"""

from __future__ import annotations

import argparse
from importlib.util import find_spec

import numpy as np
import torch
from pytorch_metric_learning.losses import SupConLoss
from pytorch_metric_learning.miners import PairMarginMiner
from pytorch_metric_learning.samplers import MPerClassSampler
from pytorch_metric_learning.testers import BaseTester
from pytorch_metric_learning.utils.accuracy_calculator import AccuracyCalculator
from torch import nn
from tqdm import tqdm

from pml_xbn.adapters import Affine, BaseAdapter, Moments, check_adapter
from pml_xbn.datasets import Glyphs
from pml_xbn.losses import AdaptiveCrossBatchMemory

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
parser.add_argument("--share", type=float, default=0.8, help="of the way (default: 0.8)")
parser.add_argument("--epochs", type=int, default=2)
parser.add_argument("--steps", type=int, default=1000, help="per epoch (default: 1000)")
args = parser.parse_args()
# Behind the flags, so that --help needs none of them.
for package in ("faiss", "matplotlib"):
    if find_spec(package) is None:
        raise SystemExit(f'{package} is missing: pip install ".[examples]"')

BATCH_SIZE = 16


class PartialShift(BaseAdapter):
    def __init__(self, share: float) -> None:
        super().__init__()
        self.share = share

    def map(self, memory: Moments, target: Moments) -> Affine:
        return Affine(scale=torch.ones_like(memory.std), shift=self.share * (target.mean - memory.mean))


def main(args: argparse.Namespace) -> None:
    torch.set_num_threads(1)  # a network this small gains nothing from more
    torch.manual_seed(0)
    np.random.seed(0)  # PML's sampler draws from it

    adapter = PartialShift(args.share)

    def promised(memory: Moments, target: Moments) -> Moments:
        return Moments(torch.lerp(memory.mean, target.mean, args.share), memory.std)

    check_adapter(adapter, moments_after=promised)
    print("PartialShift does what it says, step by step, and resumes bit for bit")

    train, test = Glyphs("train"), Glyphs("test", transform=lambda image: image / 255)
    model = nn.Sequential(
        *(nn.Conv2d(1, 16, 3, stride=2), nn.BatchNorm2d(16), nn.ReLU()),
        *(nn.Conv2d(16, 32, 3, stride=2), nn.BatchNorm2d(32), nn.ReLU()),
        *(nn.Flatten(), nn.Linear(32 * 7 * 7, 64)),
    )
    loss, miner = SupConLoss(temperature=0.1), PairMarginMiner(pos_margin=0.2, neg_margin=0.8)
    loss_fn = AdaptiveCrossBatchMemory(loss, embedding_size=64, memory_size=512, miner=miner)
    loss_fn.register_memory_hook(adapter)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    sampler = MPerClassSampler(train.labels, 4, BATCH_SIZE, args.steps * BATCH_SIZE)
    tester = BaseTester(batch_size=256, dataloader_num_workers=0, data_device=torch.device("cpu"))
    calculator = AccuracyCalculator(include=("precision_at_1",), k=1, device=torch.device("cpu"))

    for epoch in range(1, args.epochs + 1):
        for batch in tqdm(torch.tensor(list(sampler)).view(args.steps, BATCH_SIZE), f"epoch {epoch}"):
            optimizer.zero_grad()
            loss_fn(model(train.images[batch, None] / 255), train.labels[batch]).backward()
            optimizer.step()
        embeddings, labels = tester.get_all_embeddings(test, model)
        model.train()
        accuracy = calculator.get_accuracy(embeddings, labels.squeeze(1))
        print(f"epoch {epoch}: Recall@1 {100 * accuracy['precision_at_1']:.1f}")


if __name__ == "__main__":
    main(args)
