"""What it costs to evaluate as many embeddings as Stanford Online Products has, against PML's calculator.

Recall@1, 10, 100 and 1000, and MAP@R, of which PML's has the first and the last. A fresh process each.

    python -m benchmarks.retrieval_cost
    python -m benchmarks.retrieval_cost --images 5000

Writes ``retrieval_cost_<device>.csv`` and ``.md`` to ``benchmarks/results``.
"""

from __future__ import annotations

import torch
import tyro
from pytorch_metric_learning.utils.accuracy_calculator import AccuracyCalculator
from torch import Tensor
from torch.nn.functional import normalize

from benchmarks.engine.accuracy import retrieval_accuracy
from benchmarks.engine.cost import DEVICE, environment, in_fresh_process, write_report
from benchmarks.engine.measuring import milliseconds, peak_rss
from benchmarks.engine.results import RESULTS
from benchmarks.engine.trial import at_most

COLUMNS = {
    "search": "search",
    "images": "images",
    "dim": "d",
    "seconds": "seconds",
    "peak_gb": "peak (GB)",
    "recall_at_1": "Recall@1",
    "map_at_r": "MAP@R",
}


def measure(search: str, images: int, dim: int, device: torch.device, threads: int) -> dict[str, object]:
    """One line of the results."""
    torch.set_num_threads(threads)
    generator = torch.Generator().manual_seed(0)
    labels = torch.arange(images) * 11_316 // 60_502  # as many images a class as there, on average
    centres = torch.randn(int(labels.max()) + 1, dim, generator=generator)
    noise = 3 * torch.randn(images, dim, generator=generator)
    embeddings, labels = normalize(centres[labels] + noise).to(device), labels.to(device)
    before, found = peak_rss(), {}
    evaluate = _ours if search == "ours" else _pmls
    taken = milliseconds(lambda: found.update(evaluate(embeddings, labels)), device)
    on_gpu = device.type == "cuda"
    peak = torch.cuda.max_memory_allocated() / 1e9 if on_gpu else (peak_rss() - before) / 1e3
    measured = {"seconds": taken / 1000, "peak_gb": peak}
    return {"search": search, "images": images, "dim": dim, **measured, **found}


def _ours(embeddings: Tensor, labels: Tensor) -> dict[str, float]:
    return retrieval_accuracy(embeddings, labels, recall_at=(1, 10, 100, 1000))


def _pmls(embeddings: Tensor, labels: Tensor) -> dict[str, float]:
    include = ("precision_at_1", "mean_average_precision_at_r")
    found = AccuracyCalculator(include, k=1000, device=embeddings.device).get_accuracy(embeddings, labels)
    return {name: 100 * found[of] for name, of in zip(("recall_at_1", "map_at_r"), include, strict=True)}


def main(images: int = 60_502, dim: int = 512, device: str = DEVICE, threads: int = 2) -> None:
    """Measures both.

    Args:
        images: test images.
        dim: of their embeddings.
        device: where the search takes place.
        threads: of a CPU.
    """
    place, images = torch.device(device), at_most(images, 2_000)
    rows = [in_fresh_process(measure, search, images, dim, place, threads) for search in ("PML's", "ours")]
    text = write_report(
        rows,
        COLUMNS,
        RESULTS / f"retrieval_cost_{place.type}.csv",
        "Cost of an evaluation, against PML's AccuracyCalculator",
        f"{environment(place)}, of which the search has {threads}. Peak memory is that over the embeddings' "
        "own. Ours also has Recall@10, 100 and 1000. Written by `benchmarks.retrieval_cost`.",
    )
    print(text)


if __name__ == "__main__":
    tyro.cli(main, prog="python -m benchmarks.retrieval_cost")
