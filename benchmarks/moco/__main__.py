"""MoCo with a queue that keeps up: Adaptive Cross Batch Normalization, Appendix B.

Two views of every image: the query's encoder learns, the key's follows it with momentum, and the keys of
past batches wait in a queue as negatives. XBN moves them to where the encoder of today would put them.

    python -m benchmarks.moco
    python -m benchmarks.moco --methods moco xbn axbn centre --epochs 20
    python -m benchmarks.moco --methods moco xbn --momentum 0 --epochs 2  # a key encoder without momentum
    python -m benchmarks.moco --dataset cifar10 --root data --download

Prints a table of kNN accuracy, and writes a picture of it over the epochs, CSV files, logs and a
checkpoint per epoch into --output. The settings are the paper's (batch size 128, momentum 0.99) and, as in
the paper, otherwise those of PML's notebook "MoCo on CIFAR10": queue 4,096, temperature 0.1, 200 epochs,
8 groups for shuffling BN, SGD 0.03 on half a cosine, and a weighted kNN of k = 200 at temperature 0.1.
The paper finds XBN ahead early in training, by about 4 points at epoch 15 on both CIFARs, and by less at
the end. On CIFAR the training images classify the test images. On Glyphs, whose training and test classes are
disjoint, every test image is classified by all others; k = 200 is then far more than the 3 to 16 images of
a class, so that the weights decide.
"""

from __future__ import annotations

import argparse
import time
from dataclasses import fields
from pathlib import Path
from statistics import fmean, median

import torch
from tqdm import tqdm

from benchmarks.demo.results import table, write_csv
from benchmarks.engine.run_log import RunLog
from benchmarks.moco.comparison import Comparison
from benchmarks.moco.data import load_data
from benchmarks.moco.figures import draw_accuracy
from benchmarks.moco.methods import METHODS
from benchmarks.moco.settings import DATASETS, DEFAULT_EPOCHS, Settings
from benchmarks.moco.training import History, Pairs

COLUMNS = {
    "weighted_knn": "kNN",
    "best_weighted_knn": "best kNN",
    "recall_at_1": "Recall@1",
    "loss": "loss",
    "step_ms": "step (ms)",
}


def main() -> None:
    arguments = _parse()
    output: Path = arguments.output
    try:
        comparison = _prepare(arguments)
    except (ValueError, FileNotFoundError, ImportError) as error:
        raise SystemExit(f"error: {error}") from error
    print(comparison.data.summary)
    log = RunLog(output / "logs")
    start = time.perf_counter()
    try:
        comparison.run(_progress_bar, lambda: log.update(comparison.histories))
    except KeyboardInterrupt:
        raise SystemExit("stopped; --resume goes on from the last whole epoch") from None
    log.update(comparison.histories)  # a run that was resumed after its end has no epoch left
    log.close()
    _report(comparison, output)
    print(f"{time.perf_counter() - start:.0f} s; picture, CSV files and logs are in {output}")


def _prepare(arguments: argparse.Namespace) -> Comparison:
    given = {field.name: getattr(arguments, field.name, None) for field in fields(Settings)}
    given["epochs"] = given["epochs"] or DEFAULT_EPOCHS[arguments.dataset]
    settings = Settings(**{name: value for name, value in given.items() if value is not None})
    device = torch.device(arguments.device)
    if settings.dataset == "glyphs":
        # A network this small gains little from more, and where other programs keep a core busy, threads
        # that wait for each other lose far more than that.
        torch.set_num_threads(1)
    data = load_data(settings, arguments.root, device, arguments.workers, arguments.download)
    arguments.output.mkdir(parents=True, exist_ok=True)
    comparison = Comparison(settings, data, arguments.methods, device, arguments.output / "checkpoint.pt")
    if arguments.resume:
        comparison.resume()
    return comparison


def _report(comparison: Comparison, output: Path) -> None:
    histories = comparison.histories
    results = {method: _summary(history) for method, history in histories.items()}
    write_csv([{"method": name, **row} for name, row in results.items()], output / "results.csv")
    write_csv(
        [{"method": name, **row} for name, history in histories.items() for row in history.epochs],
        output / "epochs.csv",
    )
    settings = comparison.settings
    title = f"MoCo on {DATASETS[settings.dataset]}: batch {settings.batch_size}, queue {settings.queue}"
    draw_accuracy(histories, title, output / "accuracy.png")
    untrained = next(iter(histories.values())).epochs[0]
    print(f"kNN accuracy before training: {untrained['weighted_knn']:.1f} %")
    print(table(results, COLUMNS))


def _summary(history: History) -> dict[str, float]:
    """Accuracy after the last epoch and its best; the last epoch's mean loss; median step time."""
    last = history.epochs[-1]
    first_step = (last["epoch"] - 1) * len(history.step_times) / last["epoch"]
    return {
        "weighted_knn": last["weighted_knn"],
        "best_weighted_knn": max(row["weighted_knn"] for row in history.epochs),
        "recall_at_1": last["recall_at_1"],
        "loss": fmean(row["loss"] for row in history.steps if row["step"] >= first_step),
        "step_ms": 1000 * median(history.step_times),
    }


def _progress_bar(pairs: Pairs, title: str, steps: int) -> Pairs:
    return tqdm(pairs, desc=title, total=steps, unit="step")


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--methods", "--method", nargs="+", choices=METHODS, default=["moco", "xbn", "axbn"])
    add("--dataset", choices=DATASETS, default="glyphs")
    add("--root", type=Path, default=Path("data"), help="folder of CIFAR (default: data)")
    add("--download", action="store_true", help="download CIFAR into --root unless it is there")
    add("--epochs", type=int, help="(default: 5 on Glyphs, 200 on CIFAR)")
    add("--batch-size", type=int, help="(default: 128)")
    add("--queue", type=int, help="keys in memory (default: 4096)")
    add("--momentum", type=float, help="of the key encoder (default: 0.99)")
    add("--temperature", type=float, help="of InfoNCE (default: 0.1)")
    add("--bn-splits", type=int, help="groups of a batch with BN statistics of their own (default: 8)")
    add("--seed", type=int, help="(default: 0)")
    add("--classes", type=int, help="train and test on so many classes (default: all)")
    add(
        "--diagnostics-every",
        type=int,
        metavar="STEPS",
        help="steps between entries of the logs on staleness, push, valid pairs and drift "
        "(default: 200; 0: none)",
    )
    add("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    add("--workers", type=int, default=2, help="processes that load CIFAR (default: 2)")
    add("--output", type=Path, default=Path("runs/moco"))
    add("--resume", action="store_true", help="go on from the last checkpoint in --output")
    return parser.parse_args()


if __name__ == "__main__":
    main()
