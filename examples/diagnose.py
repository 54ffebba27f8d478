"""What a memory does in training, and whether adapting its rows helps: the loop of docs/diagnostics.md.

Trains a small network on a part of Glyphs, which matplotlib draws, for 150 steps without a memory. From
there it goes on twice with the same batches: with PML's CrossBatchMemory (XBM), which leaves its rows as
they are, and with XBNWrapper (XBN), which adapts them. Prints what the table of good and bad on that page
judges, and Recall@1; pictures go into --output. Lines with a comment are what a training loop of yours needs.

    python examples/diagnose.py
    python examples/diagnose.py --steps 400
"""

from __future__ import annotations

import argparse
import copy
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
import torch
from pytorch_metric_learning.losses import CrossBatchMemory, SupConLoss
from pytorch_metric_learning.samplers import MPerClassSampler
from torch import Tensor, nn
from torch.nn.functional import normalize as unit

from pml_xbn import XBNWrapper, diagnostics
from pml_xbn.datasets import Glyphs

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
parser.add_argument("--steps", type=int, default=150, help="with each memory (default: 150; at least 80)")
parser.add_argument("--output", type=Path, default=Path("runs/diagnose"))
args = parser.parse_args()
if args.steps < 80:
    parser.error(f"--steps {args.steps} are too few to measure: pass 80 or more")
if find_spec("matplotlib") is None:  # behind the flags, so that --help does not need it
    raise SystemExit('matplotlib is missing: pip install ".[examples]"')

torch.manual_seed(0)
np.random.seed(0)  # PML's samplers draw from it
torch.set_num_threads(1)
dataset, test = Glyphs("train"), Glyphs("test")
images, labels = dataset.images[:6000, None] / 255, dataset.labels[:6000]
test_images, test_labels = test.images[:4000, None] / 255, test.labels[:4000]
network = nn.Sequential(
    nn.Conv2d(1, 16, 3, stride=2),
    nn.BatchNorm2d(16),
    nn.ReLU(),
    nn.Conv2d(16, 32, 3, stride=2),
    nn.BatchNorm2d(32),
    nn.ReLU(),
    nn.Flatten(),
    nn.Linear(32 * 7 * 7, 64),
)


def batches(steps: int) -> Any:
    sampler = MPerClassSampler(labels, m=4, batch_size=16, length_before_new_iter=16 * steps)
    return torch.tensor(list(sampler)).split(16)


def evaluated(model: nn.Module, images: Tensor) -> Tensor:
    with torch.no_grad():
        return unit(copy.deepcopy(model).eval()(images))


def as_in_training(model: nn.Module) -> Callable[[Tensor], Tensor]:
    copied = copy.deepcopy(model)  # in train() mode BatchNorm updates its statistics
    return lambda indices: copied(images[indices])


def train(loss_fn: CrossBatchMemory, steps: int = 150) -> tuple[nn.Module, dict[str, Any]]:
    torch.manual_seed(1)
    np.random.seed(1)
    model = copy.deepcopy(start)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    names = "drift", "staleness", "pairs", "push", "distances", "separability"
    measured: dict[str, Any] = {name: {} for name in names}
    probe = images[::100]
    drift = diagnostics.FeatureDrift(  # drift: in a step, and while a row is in memory
        lambda: evaluated(model, probe), deltas=(1, 32), every=10
    )
    tracker = diagnostics.RowTracker(loss_fn)  # staleness
    for step, batch in enumerate(batches(steps)):
        measured["drift"][step] = drift.update(step)  # drift
        if step == steps - 1:
            stored = loss_fn.embedding_memory.clone()  # staleness
        embeddings = model(images[batch])
        with diagnostics.WatchedLoss(loss_fn) as seen:  # pairs, push
            loss = loss_fn(embeddings, labels[batch])
        tracker.update(step, batch)  # staleness
        if step % 10 == 0:
            measured["pairs"][step] = seen.valid_pairs()
            measured["push"][step] = seen.common_mode_push(normalize=True)
            some = evaluated(model, images[:500]), labels[:500]
            measured["distances"][step] = diagnostics.embedding_distances(*some)
            measured["separability"][step] = diagnostics.class_separability(*some)
        if step == steps - 1:
            measured["staleness"] = tracker.staleness(stored, as_in_training(model), normalize=True)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return model, measured


def recall_at_1(model: nn.Module) -> float:
    embeddings = evaluated(model, test_images)
    nearest = (embeddings @ embeddings.T).fill_diagonal_(-1).argmax(dim=1)
    return 100 * (test_labels[nearest] == test_labels).float().mean().item()


def report(name: str, model: nn.Module, measured: dict[str, Any]) -> None:
    late = sorted(measured["push"])[len(measured["push"]) // 2 :]  # steps

    def mean(of: str, value: Callable[[Any], Tensor]) -> float:
        return fmean(float(value(measured[of][step])) for step in late)

    in_a_step, in_32 = mean("drift", lambda x: x[1].mean), mean("drift", lambda x: x[32].mean)
    between = mean("distances", lambda x: x.between_embeddings)
    rows = measured["staleness"].after  # as the loss saw them
    (young, *_, old), (youngest, *_, oldest) = rows.mean_by_age, rows.ages
    negatives = mean("pairs", lambda x: x.negatives_from_memory)
    negatives_of_batch = mean("pairs", lambda x: x.negatives_from_batch)
    positives = mean("pairs", lambda x: x.positives_from_memory)
    positives_of_batch = mean("pairs", lambda x: x.positives_from_batch)
    displacement = mean("push", lambda x: x.displacement)
    away = mean("push", lambda x: x.share * x.cosine)
    to_class_mean = mean("distances", lambda x: x.to_class_mean)
    separability = mean("separability", lambda x: x.criterion)
    print(f"{name}: Recall@1 {recall_at_1(model):.1f} on classes that were not trained")
    print(f"  drift {in_a_step:.2f} in a step, {in_32:.2f} in 32 steps")
    print(f"  staleness {young:.2f} at age {youngest}, {old:.2f} at age {oldest}")
    print(f"  negatives {negatives:.0f} from memory, {negatives_of_batch:.0f} from batch")
    print(f"  positives {positives:.0f} from memory, {positives_of_batch:.0f} from batch")
    print(f"  push: displacement {displacement:.2f}, share * cosine {away:+.2f}")
    print(f"  distances {between:.2f} between embeddings, {to_class_mean:.2f} to class mean")
    print(f"  separability {separability:.2f}")


start = copy.deepcopy(network)
optimizer = torch.optim.AdamW(start.parameters(), lr=1e-3)
for batch in batches(150):
    optimizer.zero_grad()
    SupConLoss(temperature=0.1)(start(images[batch]), labels[batch]).backward()
    optimizer.step()

model_xbm, xbm = train(CrossBatchMemory(SupConLoss(temperature=0.1), 64, 512), args.steps)
model_xbn, xbn = train(XBNWrapper(SupConLoss(temperature=0.1), 64, 512), args.steps)
report("XBM", model_xbm, xbm)
report("XBN", model_xbn, xbn)
print(
    "Does adapting help? Compare the two runs: staleness at the oldest age, and Recall@1. Before and after\n"
    "adaptation of one run do not tell it, as earlier calls have adapted XBN's rows."
)

args.output.mkdir(parents=True, exist_ok=True)
figures = {
    "drift": diagnostics.plot_feature_drift({"XBM": xbm["drift"], "XBN": xbn["drift"]}),
    "staleness": diagnostics.plot_staleness({"XBM": xbm["staleness"], "XBN": xbn["staleness"]}),
    "valid_pairs": diagnostics.plot_valid_pairs({"XBM": xbm["pairs"], "XBN": xbn["pairs"]}),
    "push": diagnostics.plot_common_mode_push({"XBM": xbm["push"], "XBN": xbn["push"]}),
    "distances": diagnostics.plot_embedding_distances({"XBM": xbm["distances"], "XBN": xbn["distances"]}),
    "separability": diagnostics.plot_class_separability(
        {"XBM": xbm["separability"], "XBN": xbn["separability"]}
    ),
}
for name, figure in figures.items():
    figure.savefig(args.output / f"{name}.png")
print(f"pictures are in {args.output}")
