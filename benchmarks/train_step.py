"""How much of a training step is spent in the loss.

On CUDA a ResNet-50 (timm, 224 × 224, batch 64) under mixed precision; on a CPU the small network of the
demo. Methods take their steps in turn; figures are medians.

    python -m benchmarks.train_step

Writes ``train_step_<device>.csv`` and ``.md`` to ``benchmarks/results``.
"""

from __future__ import annotations

from contextlib import nullcontext
from statistics import median

import torch
import tyro
from torch import nn
from tqdm import tqdm

from benchmarks.engine.cost import DEVICE, LOSSES, NUM_CLASSES, Subject, environment, write_report
from benchmarks.engine.glyph_net import GlyphNet
from benchmarks.engine.measuring import now
from benchmarks.engine.methods import MemorySetup, build_loss
from benchmarks.engine.results import RESULTS
from benchmarks.engine.trial import at_most

DIM = 512
METHODS = ("no-xbm", "xbm", "xbn", "axbn", "per-class", "super-class")
COLUMNS = {
    "method": "method",
    "step_ms": "step (ms)",
    "loss_ms": "loss (ms)",
    "share_of_step": "share of the step",
    "step_against_xbm": "step / XBM's step",
}


class Training:
    """A network, an optimizer and a loss whose memory is full."""

    def __init__(self, method: str, rows: int, batch_size: int, device: torch.device) -> None:
        self.device = device
        self.model, self.image_shape = _network(device)
        setup = MemorySetup(DIM, rows, superclasses=torch.arange(NUM_CLASSES) % 20)
        has_memory, loss = method != "no-xbm", LOSSES["supcon"]()
        memory = build_loss(method if has_memory else "xbm", setup, loss)
        self.subject = Subject(memory if has_memory else loss, memory, rows, batch_size, device)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-4)
        self.scaler = torch.amp.GradScaler("cuda", enabled=device.type == "cuda")

    def step(self) -> tuple[float, float]:
        """Milliseconds of the whole step, and of the loss's forward and backward down to the embeddings."""
        images = torch.randn(self.subject.size, *self.image_shape, device=self.device)
        _, labels = self.subject.batch()
        began = now(self.device)
        with torch.autocast("cuda") if self.device.type == "cuda" else nullcontext():
            embeddings = self.model(images)
        leaf = embeddings.detach().requires_grad_()
        before_loss = now(self.device)
        self.scaler.scale(self.subject.loss_fn(leaf, labels)).backward()
        after_loss = now(self.device)
        embeddings.backward(leaf.grad)
        self.scaler.step(self.optimizer)
        self.scaler.update()
        self.optimizer.zero_grad()
        return 1000 * (now(self.device) - began), 1000 * (after_loss - before_loss)


def _network(device: torch.device) -> tuple[nn.Module, tuple[int, int, int]]:
    if device.type != "cuda":
        return GlyphNet(DIM), (1, 32, 32)
    import timm

    return timm.create_model("resnet50", num_classes=DIM).to(device), (3, 224, 224)


def main(rows: int = 30_000, batch_size: int = 64, steps: int = 20, device: str = DEVICE) -> None:
    """Measures all methods.

    Args:
        rows: in memory.
        batch_size: images of a step.
        steps: of each method, after warm-up.
        device: where they take place.
    """
    place, steps = torch.device(device), at_most(steps)
    runs = {name: Training(name, rows, batch_size, place) for name in METHODS}
    times: dict[str, list[tuple[float, float]]] = {name: [] for name in runs}
    for step in tqdm(range(3 + steps), unit="round"):
        for name, run in runs.items():
            taken = run.step()
            if step >= 3:
                times[name].append(taken)
    results = [
        {
            "method": name,
            "step_ms": median(step for step, _ in taken),
            "loss_ms": median(loss for _, loss in taken),
            "share_of_step": median(loss / step for step, loss in taken),
            "step_against_xbm": median(a / b for (a, _), (b, _) in zip(taken, times["xbm"], strict=True)),
        }
        for name, taken in times.items()
    ]
    on_gpu = place.type == "cuda"
    network = "ResNet-50, 224 × 224, mixed precision" if on_gpu else "the demo's small network, 32 × 32"
    text = write_report(
        results,
        COLUMNS,
        RESULTS / f"train_step_{place.type}.csv",
        "Share of a training step that is spent in the loss",
        f"{network}; batch {batch_size}, {rows} rows of {DIM}, SupCon. {environment(place)}; medians of "
        f"{steps} interleaved steps. Written by `benchmarks.train_step`.",
    )
    print(text)


if __name__ == "__main__":
    tyro.cli(main, prog="python -m benchmarks.train_step")
