"""One run on Han, with what it measures along the way."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import normalize
from torch.optim.lr_scheduler import OneCycleLR

from benchmarks.engine.accuracy import embed, retrieval_accuracy
from benchmarks.engine.diagnostics import embed_without_trace
from benchmarks.engine.randomness import generator_for, seed_for
from benchmarks.engine.trial import at_most
from benchmarks.han.cases import PROXY_RATES, Case, none
from benchmarks.han.data import Split, as_input, load_split, shifted
from benchmarks.han.memories import DIM, StepLoss
from pml_xbn.training import ClassBatches, fill_from

_MEASUREMENTS = 12  # of a run
_ROWS_MEASURED = 512


class Outcome(NamedTuple):
    """A row of figures, and the rows of the log."""

    result: dict[str, Any]
    log: list[dict[str, Any]]


def network() -> nn.Sequential:
    """Returns four convolutions with batch normalization, and a linear layer."""

    def block(inputs: int, outputs: int) -> list[nn.Module]:
        convolution = nn.Conv2d(inputs, outputs, 3, padding=1, bias=False)
        return [convolution, nn.BatchNorm2d(outputs), nn.ReLU(inplace=True)]

    layers = [nn.Conv2d(1, 24, 5, stride=2, padding=2, bias=False), nn.BatchNorm2d(24), nn.ReLU(inplace=True)]
    layers += [*block(24, 48), nn.MaxPool2d(2), *block(48, 96), nn.MaxPool2d(2), *block(96, 128)]
    model = nn.Sequential(*layers, nn.Flatten(), nn.Linear(128 * 16, DIM))
    return model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]


class Training:
    """Network, loss, optimizer and batches of a case."""

    def __init__(self, case: Case, train: Split, weights: Path | None) -> None:
        self.case, self.train, self.steps = case, train, at_most(case.steps)
        torch.manual_seed(seed_for(case.seed, "weights"))
        self.model = network()
        if weights is not None:
            self.model.load_state_dict(torch.load(weights, weights_only=True))
        memory_size = max(case.batch_size, round(case.memory * len(train.labels)))
        self.loss = StepLoss(case, memory_size, int(train.labels.max()) + 1)
        groups: list[dict[str, Any]] = [{"params": self.model.parameters(), "lr": case.rate}]
        if self.loss.proxies is not None:
            groups.append(
                {"params": self.loss.proxies.parameters(), "lr": PROXY_RATES[case.method] * case.rate}
            )
        self.optimizer = torch.optim.AdamW(groups, weight_decay=1e-4)
        peaks = [group["lr"] for group in groups]
        self.scheduler = OneCycleLR(self.optimizer, peaks, total_steps=case.steps, pct_start=0.1)
        self.generator = generator_for(case.seed, "shifts")
        # Which training image each row of the memory is of.
        self.sources = torch.full((memory_size,), -1)

    def batches(self) -> Iterator[tuple[int, Tensor]]:
        """Yields the number of each step, and which training images it shows.

        A memory that begins after a warm-up is filled before its first step.
        """
        case, labels = self.case, self.train.labels
        batches = ClassBatches(labels, 2, case.batch_size, num_batches=self.steps, seed=case.seed)
        for number, shown in enumerate(batches):
            if number and number == self.loss.first:
                self.fill()
            yield number, torch.tensor(shown)

    def inputs(self, shown: Tensor) -> Tensor:
        return as_input(shifted(self.train.images[shown], self.generator))

    def fill(self) -> None:
        """Fills the memory with random training images, in batches of the size of training."""
        order = torch.randperm(len(self.train.labels), generator=self.generator)[: len(self.sources)]
        parts = order.split(self.case.batch_size)
        fill_from(
            self.loss.memory, ((self.inputs(part), self.train.labels[part]) for part in parts), self.model
        )
        self.sources[: len(order)] = order

    def step(self, number: int, shown: Tensor) -> float:
        embeddings = self.model(self.inputs(shown))
        value = self.loss(embeddings, self.train.labels[shown], number)
        self.optimizer.zero_grad()
        value.backward()
        self.optimizer.step()
        self.scheduler.step()
        if self.uses_memory(number):
            stored = (self.loss.memory.queue_idx - len(shown) + torch.arange(len(shown))) % len(self.sources)
            self.sources[stored] = shown
        return float(value.detach())

    def uses_memory(self, number: int) -> bool:
        return self.loss.memory is not None and number >= self.loss.first


class Watch:
    """How far rows are from fresh ones, before and after the memory adapts them, at some of the steps.

    It embeds a sample of the rows' images anew, in training mode, in batches of the training's size and with
    shifts of their own, before the step; a second time for what shift and batch alone make of them.
    ``before``, ``after`` and ``floor`` are mean squared distances of unit-length rows. The others are of
    embeddings as they are, in units of their total variance: ``shift_before`` and ``shift_after``, the
    squared mean of what rows are away from fresh ones, which they all share; ``gap``, the squared difference
    of the means of batch and memory; ``noise``, the sampling noise of the batch's mean.
    """

    def __init__(self, training: Training, number: int) -> None:
        self.training = training
        memory = training.loss.memory
        known = (training.sources[: memory.num_rows] >= 0).nonzero().squeeze(1)
        # The oldest are replaced by this step.
        size = training.case.batch_size
        oldest = (memory.queue_idx + torch.arange(size)) % len(training.sources)
        known = known[~torch.isin(known, oldest)]
        draw = generator_for(training.case.seed, "watch", number)
        self.rows = known[torch.randperm(len(known), generator=draw)[:_ROWS_MEASURED]]
        self.before = memory.embedding_memory[self.rows].clone()
        self.mean = memory.embedding_memory[: memory.num_rows].mean(dim=0)
        self.fresh, self.again = self._embed(draw), self._embed(draw)

    def _embed(self, draw: torch.Generator) -> Tensor:
        training = self.training
        images = training.train.images[training.sources[self.rows]]
        parts = as_input(shifted(images, draw)).split(training.case.batch_size)
        return torch.cat([embed_without_trace(training.model, part) for part in parts])

    def figures(self, batch: Tensor, labels: Tensor) -> dict[str, float]:
        """Returns them, given the batch as the step embedded it."""
        after = self.training.loss.memory.embedding_memory[self.rows]

        def distance(one: Tensor, other: Tensor) -> float:
            return float((normalize(one) - normalize(other)).square().sum(dim=1).mean())

        def shift(rows: Tensor) -> float:
            return float((rows - self.fresh).mean(dim=0).square().sum() / spread)

        spread = batch.var(dim=0).sum()
        _, numbers, counts = labels.unique(return_inverse=True, return_counts=True)
        means = torch.zeros(len(counts), batch.shape[1]).index_add(0, numbers, batch) / counts[:, None]
        return {
            "before": distance(self.before, self.fresh),
            "after": distance(after, self.fresh),
            "floor": distance(self.again, self.fresh),
            "shift_before": shift(self.before),
            "shift_after": shift(after),
            "gap": float((batch.mean(dim=0) - self.mean).square().sum() / spread),
            "noise": float(means.var(dim=0).sum() / len(counts) / spread),
        }


def run(case: Case, root: Path, weights: Path | None = None) -> Outcome:
    """Trains and scores one case. Training that fails has an ``error`` in place of its figures."""
    train = load_split(root, "train", case.classes)
    try:
        training, log, seconds = trained(case, train, weights)
    except (ArithmeticError, RuntimeError, ValueError) as error:
        return Outcome({"error": f"{type(error).__name__}: {error}".splitlines()[0]}, [])
    result: dict[str, Any] = {}
    for split, ending in (("validation", "_validation"), ("test", "")):
        data = load_split(root, split)
        rows = torch.cat([embed(training.model, as_input(part)) for part in data.images.split(4096)])
        figures = retrieval_accuracy(rows, data.labels, recall_at=(1, 10))
        result |= {f"{name}{ending}": value for name, value in figures.items()}
    if weights is not None:  # as nobody draws them alike to the bit on another machine
        result["weights_checksum"] = hashlib.sha256(weights.read_bytes()).hexdigest()[:12]
    result |= {
        "images": training.steps * case.batch_size,
        "cpu_minutes": seconds / 60,
        "checksum": train.checksum,
        "torch": torch.__version__,
    }
    return Outcome(result, log)


def trained(
    case: Case, train: Split, weights: Path | None = None
) -> tuple[Training, list[dict[str, Any]], float]:
    """Returns the training after its last step, its log, and seconds of the process without measurements."""
    training, log, losses = Training(case, train, weights), [], []
    every, measuring = max(1, training.steps // _MEASUREMENTS), 0.0
    began = time.process_time()
    for number, shown in training.batches():
        is_measured = (number + 1) % every == 0
        watch = None
        if is_measured and training.uses_memory(number) and training.loss.memory.num_rows > case.batch_size:
            before = time.process_time()
            watch = Watch(training, number)
            state = training.generator.get_state()
            batch = embed_without_trace(training.model, training.inputs(shown))  # as the step will embed it
            training.generator.set_state(state)
            measuring += time.process_time() - before
        losses.append(training.step(number, shown))
        if is_measured:
            row: dict[str, Any] = {"step": number + 1, "mean_loss": sum(losses) / len(losses)}
            row["rate_now"] = training.scheduler.get_last_lr()[0]
            if watch is not None:
                row |= watch.figures(batch, train.labels[shown])
            log.append(row)
            losses.clear()
    return training, log, time.process_time() - began - measuring


def train_on_glyphs(root: Path, path: Path) -> None:
    """Writes the weights of a network that has seen other characters: 5,244 steps of Glyphs, no memory."""
    training, _, _ = trained(none(64), load_split(root, "glyphs"))
    path.parent.mkdir(parents=True, exist_ok=True)
    torch.save(training.model.state_dict(), path)
