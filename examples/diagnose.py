"""What a memory does in training: feature drift, staleness of its rows, and where the valid pairs come from.

Trains a small network on Glyphs, which matplotlib draws, with PML's CrossBatchMemory (xbm) or XBNWrapper
(xbn). Every epoch prints what pml_xbn.diagnostics measured, and pictures of it go into --output. The numbered
comments mark what a training loop needs for each of the three.

    python examples/diagnose.py --memory xbm
    python examples/diagnose.py --memory xbn
"""

from __future__ import annotations

import argparse
import copy
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import torch
from pytorch_metric_learning.losses import CrossBatchMemory, SupConLoss
from pytorch_metric_learning.samplers import MPerClassSampler
from torch import Tensor, nn
from tqdm import tqdm

from pml_xbn import XBNWrapper, diagnostics
from pml_xbn.datasets import Glyphs

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
parser.add_argument("--memory", choices=("xbm", "xbn"), default="xbm")
parser.add_argument("--epochs", type=int, default=2)
parser.add_argument("--steps", type=int, default=400, help="per epoch (default: 400)")
parser.add_argument("--output", type=Path, default=Path("runs/diagnose"))
args = parser.parse_args()
if find_spec("matplotlib") is None:  # behind the flags, so that --help does not need it
    raise SystemExit('matplotlib is missing: pip install ".[examples]"')

BATCH_SIZE = 16
EVERY = 20  # steps from one measurement to the next


def main(args: argparse.Namespace) -> None:
    torch.set_num_threads(1)  # a network this small gains nothing from more
    torch.manual_seed(0)
    np.random.seed(0)  # PML's sampler draws from it

    dataset = Glyphs("train")
    model = nn.Sequential(
        *(nn.Conv2d(1, 16, 3, stride=2), nn.BatchNorm2d(16), nn.ReLU()),
        *(nn.Conv2d(16, 32, 3, stride=2), nn.BatchNorm2d(32), nn.ReLU()),
        *(nn.Flatten(), nn.Linear(32 * 7 * 7, 64)),
    )
    memory_class = CrossBatchMemory if args.memory == "xbm" else XBNWrapper
    loss_fn = memory_class(SupConLoss(temperature=0.1), embedding_size=64, memory_size=512)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    sampler = MPerClassSampler(dataset.labels, 4, BATCH_SIZE, args.steps * BATCH_SIZE)

    def embed(indices: Tensor) -> Tensor:
        """Embeds images as in training, without a trace in BatchNorm's statistics."""
        embeddings: Tensor = copy.deepcopy(model)(dataset.images[indices, None] / 255)
        return embeddings

    fixed = torch.linspace(0, len(dataset) - 1, 64).long()
    drift = diagnostics.FeatureDrift(lambda: embed(fixed), deltas=(1, 10), every=EVERY)  # 1
    tracker = diagnostics.RowTracker(loss_fn)  # 2
    drifts: dict[int, Any] = {}
    pairs: dict[int, Any] = {}
    pushes: dict[int, Any] = {}

    for epoch in range(args.epochs):
        batches = torch.tensor(list(sampler)).view(args.steps, BATCH_SIZE)
        for step, batch in enumerate(tqdm(batches, f"epoch {epoch + 1}"), epoch * args.steps):
            drifts[step] = drift.update(step)  # 1
            stored = loss_fn.embedding_memory.clone()  # 2: the rows before they are adapted
            embeddings = model(dataset.images[batch, None] / 255)
            with diagnostics.WatchedLoss(loss_fn) as seen:  # 3
                loss = loss_fn(embeddings, dataset.labels[batch])
            tracker.update(step, batch)  # 2
            if step % EVERY == 0:
                pairs[step], pushes[step] = seen.valid_pairs(), seen.common_mode_push()  # 3
            if step + 1 == (epoch + 1) * args.steps:
                # 2: of the rows of 8 steps, and of unit vectors, as SupCon compares cosines
                stale = tracker.staleness(stored, embed, num_steps=8, normalize=True)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        last = max(pairs)
        print(
            f"epoch {epoch + 1}: loss {loss:.3f}, drift over 10 steps {latest(drifts):.2f}, "
            f"staleness {stale.before.mean:.2f} before and {stale.after.mean:.2f} after adaptation, "
            f"negatives from memory {pairs[last].negatives_from_memory}, push {pushes[last].share:.2f}"
        )

    args.output.mkdir(parents=True, exist_ok=True)
    figures = {
        "drift": diagnostics.plot_feature_drift(drifts),
        "staleness": diagnostics.plot_staleness(stale),
        "valid_pairs": diagnostics.plot_valid_pairs(pairs),
        "push": diagnostics.plot_common_mode_push(pushes),
    }
    for name, figure in figures.items():
        figure.savefig(args.output / f"{args.memory}_{name}.png")
    print(f"pictures are in {args.output}")


def latest(history: dict[int, Any]) -> float:
    """Returns the mean of the last measurement over 10 steps, NaN before the first."""
    means = [measured[10].mean for measured in history.values() if 10 in measured]
    return float(means[-1]) if means else float("nan")


if __name__ == "__main__":
    main(args)
