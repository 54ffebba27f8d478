"""How much of a training step is spent in the loss.

On CUDA a ResNet-50 (timm, 224 × 224, batch 64) under mixed precision; on a CPU the small network of the
demo. Methods take their steps in turn; figures are medians.

    python -m benchmarks.train_step

Writes ``train_step_<device>.csv`` and ``.md`` to ``benchmarks/results``.
"""

from __future__ import annotations

import argparse
import csv
import platform
import time
from contextlib import nullcontext
from pathlib import Path
from statistics import median

import torch
from pytorch_metric_learning.losses import CrossBatchMemory, SupConLoss
from torch import nn
from tqdm import tqdm

from benchmarks.engine.glyph_net import GlyphNet
from pml_xbn import AXBNWrapper, PerClassXBN, SuperClassXBN, XBNWrapper

RESULTS = Path(__file__).parent / "results"
NUM_CLASSES, IMAGES_PER_CLASS, DIM = 12_000, 4, 512
METHODS = {
    "no-xbm": None,
    "xbm": CrossBatchMemory,
    "xbn": XBNWrapper,
    "axbn": AXBNWrapper,
    "per-class": PerClassXBN,
    "super-class": lambda *a: SuperClassXBN(*a, superclasses=torch.arange(NUM_CLASSES) % 20),
}


class Training:
    """A network, an optimizer and a loss whose memory is full."""

    def __init__(self, method: str, rows: int, batch_size: int, device: torch.device) -> None:
        self.device, self.batch_size = device, batch_size
        self.model, self.image_shape = _network(device)
        loss, make = SupConLoss(temperature=0.1), METHODS[method]
        self.loss_fn: nn.Module = loss if make is None else make(loss, DIM, rows)
        self.loss_fn.to(device)
        if make is not None:
            labels = torch.randint(NUM_CLASSES, (rows,), device=device)
            self.loss_fn.add_to_memory(torch.randn(rows, DIM, device=device) / DIM**0.5, labels, rows)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-4)
        self.scaler = torch.amp.GradScaler("cuda", enabled=device.type == "cuda")

    def step(self) -> tuple[float, float]:
        """Milliseconds of the whole step, and of the loss's forward and backward down to the embeddings."""
        images = torch.randn(self.batch_size, *self.image_shape, device=self.device)
        labels = torch.randint(NUM_CLASSES, (self.batch_size // IMAGES_PER_CLASS,), device=self.device)
        labels = labels.repeat_interleave(IMAGES_PER_CLASS)
        began = self._now()
        with torch.autocast("cuda") if self.device.type == "cuda" else nullcontext():
            embeddings = self.model(images)
        leaf = embeddings.detach().requires_grad_()
        before_loss = self._now()
        loss = self.loss_fn(leaf, labels)
        self.scaler.scale(loss).backward()
        after_loss = self._now()
        embeddings.backward(leaf.grad)
        self.scaler.step(self.optimizer)
        self.scaler.update()
        self.optimizer.zero_grad()
        return 1000 * (self._now() - began), 1000 * (after_loss - before_loss)

    def _now(self) -> float:
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
        return time.perf_counter()


def _network(device: torch.device) -> tuple[nn.Module, tuple[int, int, int]]:
    if device.type != "cuda":
        return GlyphNet(DIM), (1, 32, 32)
    try:
        import timm
    except ImportError as error:
        raise SystemExit("error: the ResNet-50 comes from timm: pip install timm") from error
    return timm.create_model("resnet50", num_classes=DIM).to(device), (3, 224, 224)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rows", type=int, default=30_000)
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--steps", type=int, default=20, help="of each method, after warm-up (default: 20)")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    arguments = parser.parse_args()
    device = torch.device(arguments.device)

    runs = {name: Training(name, arguments.rows, arguments.batch_size, device) for name in METHODS}
    times: dict[str, list[tuple[float, float]]] = {name: [] for name in runs}
    for step in tqdm(range(3 + arguments.steps), unit="round"):
        for name, run in runs.items():
            taken = run.step()
            if step >= 3:
                times[name].append(taken)

    rows = [_summary(name, taken, times["xbm"]) for name, taken in times.items()]
    path = RESULTS / f"train_step_{device.type}.csv"
    path.parent.mkdir(exist_ok=True)
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, fieldnames=list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    text = _table(rows, arguments, device)
    path.with_suffix(".md").write_text(text)
    print(text)


def _summary(
    name: str, taken: list[tuple[float, float]], xbm: list[tuple[float, float]]
) -> dict[str, object]:
    return {
        "method": name,
        "step_ms": median(step for step, _ in taken),
        "loss_ms": median(loss for _, loss in taken),
        "share_of_step": median(loss / step for step, loss in taken),
        "step_against_xbm": median(a / b for (a, _), (b, _) in zip(taken, xbm, strict=True)),
    }


def _table(rows: list[dict[str, object]], arguments: argparse.Namespace, device: torch.device) -> str:
    is_cuda = device.type == "cuda"
    name = torch.cuda.get_device_name(device) if is_cuda else f"{platform.machine()} CPU"
    network = "ResNet-50, 224 × 224, mixed precision" if is_cuda else "the demo's small network, 32 × 32"
    lines = [
        "# Share of a training step that is spent in the loss",
        "",
        f"{network}; batch {arguments.batch_size}, {arguments.rows} rows of {DIM}, SupCon. {name}, "
        f"{torch.get_num_threads()} threads, torch {torch.__version__}; medians of {arguments.steps} "
        "interleaved steps. Written by `benchmarks.train_step`.",
        "",
        "| method | step (ms) | loss (ms) | share of the step | step / XBM's step |",
        "|:--|--:|--:|--:|--:|",
    ]
    for row in rows:
        lines.append(
            f"| {row['method']} | {row['step_ms']:.1f} | {row['loss_ms']:.1f} | "
            f"{100 * float(str(row['share_of_step'])):.0f} % | {row['step_against_xbm']:.2f} |"
        )
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    main()
