"""What measurements of a step have in common: subjects, random embeddings and reports."""

from __future__ import annotations

import platform
from collections.abc import Callable, Mapping
from concurrent.futures import ProcessPoolExecutor
from importlib.metadata import version
from multiprocessing import get_context
from pathlib import Path
from typing import Any, Literal, TypeVar, get_args

import torch
from pytorch_metric_learning import losses, miners
from torch import Tensor, nn

from benchmarks.engine.measuring import milliseconds
from benchmarks.engine.results import markdown, write_csv

T = TypeVar("T")
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
NUM_CLASSES, IMAGES_PER_CLASS = 12_000, 4
LossName = Literal["supcon", "contrastive", "multi-similarity"]
MinerName = Literal["none", "pair-margin"]
LOSSES: dict[str, Callable[[], nn.Module]] = {
    "supcon": lambda: losses.SupConLoss(temperature=0.1),
    "contrastive": losses.ContrastiveLoss,
    "multi-similarity": losses.MultiSimilarityLoss,
    "nca": losses.NCALoss,
}
MINERS: dict[str, Callable[[], nn.Module | None]] = {
    "none": lambda: None,
    "pair-margin": lambda: miners.PairMarginMiner(0.2, 0.8),
}
LOSS_NAMES, MINER_NAMES = get_args(LossName), get_args(MinerName)


class Subject:
    """A loss whose memory is filled with ``rows``, and which takes steps on random batches of ``size``.

    Without a seed the batches go on from the rows.
    """

    def __init__(
        self,
        loss_fn: nn.Module,
        memory: Any,
        rows: int,
        size: int,
        device: torch.device,
        seed: int | None = None,
    ) -> None:
        self.loss_fn: Any = loss_fn.to(device)
        self.size, self.dim, self.device = size, memory.embedding_size, device
        self.generator = torch.Generator(device).manual_seed(0)
        for first in range(0, rows, size):  # in parts that take no more than a step does
            part = self._embeddings(min(size, rows - first))
            memory.add_to_memory(part, self._labels(len(part)), len(part))
        if seed is not None:
            self.generator.manual_seed(seed)

    def batch(self) -> tuple[Tensor, Tensor]:
        embeddings, classes = self._embeddings(self.size), self._labels(self.size // IMAGES_PER_CLASS)
        return embeddings.requires_grad_(), classes.repeat_interleave(IMAGES_PER_CLASS)

    def step(self) -> float:
        """Returns milliseconds of one forward and backward."""
        batch = self.batch()
        return milliseconds(lambda: self.loss_fn(*batch).backward(), self.device)

    def _embeddings(self, number: int) -> Tensor:
        """Returns unit vectors 0.8 apart on average: PairMarginMiner(0.2, 0.8) takes about half the pairs."""
        rows = torch.empty(number, self.dim, device=self.device)
        rows.normal_(std=(0.5 / self.dim) ** 0.5, generator=self.generator)
        rows[:, 0] += 1
        rows /= rows.norm(dim=1, keepdim=True)
        return rows

    def _labels(self, number: int) -> Tensor:
        return torch.randint(NUM_CLASSES, (number,), device=self.device, generator=self.generator)


def in_fresh_process(call: Callable[..., T], *arguments: Any) -> T:
    """Returns the result of a call in a process whose peak of memory is its own."""
    with ProcessPoolExecutor(1, get_context("spawn")) as pool:
        return pool.submit(call, *arguments).result()


def write_report(
    rows: list[dict[str, Any]], columns: Mapping[str, str], path: Path, title: str, measured: str
) -> str:
    """Writes a CSV file, and beside it a page with a table of some columns, whose text is returned."""
    write_csv(rows, path)
    words = [title for name, title in columns.items() if not str(rows[0][name]).lstrip("-")[:1].isdigit()]
    table = markdown(columns.values(), ([cell(name, row[name]) for name in columns] for row in rows), words)
    text = "\n\n".join([f"# {title}", measured, table]) + "\n"
    path.with_suffix(".md").write_text(text)
    return text


def cell(name: str, value: Any) -> str:
    """Returns a figure as it is printed, by what it is called."""
    if name.startswith("share"):
        return f"{100 * float(value):.0f} %"
    if "." not in str(value):
        return str(value)
    step_times = "pml_ms", "ours_ms", "step_ms", "loss_ms", "quarter_ms"
    return f"{float(value):.{1 if name in step_times else 2}f}"


def environment(device: torch.device, threads: int | None = None) -> str:
    """Returns what a measurement was made on, and with; by default with the threads of this process."""
    is_cuda = device.type == "cuda"
    name = torch.cuda.get_device_name(device) if is_cuda else f"{platform.machine()} CPU"
    return (
        f"{name}, {threads or torch.get_num_threads()} threads, torch {torch.__version__}, "
        f"pytorch-metric-learning {version('pytorch-metric-learning')}, Python {platform.python_version()}"
    )
