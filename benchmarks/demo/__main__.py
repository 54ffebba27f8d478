"""Stale memory hurts, adapted memory repairs it: a comparison on Glyphs in a few minutes.

Trains every method from one shared warm start (an epoch without memory), with the same seed and
the same batches; prints a table and writes a picture, CSV files and logs under ``runs/``.

    python -m benchmarks.demo
    python -m benchmarks.demo --methods no-xbm xbm xbn super-class --seed 1
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterable
from pathlib import Path

import torch
from tqdm import tqdm

from benchmarks.demo.comparison import Comparison, Plan
from benchmarks.demo.figures import draw_comparison
from benchmarks.demo.methods import METHODS
from benchmarks.demo.results import summary, table, write_csv
from benchmarks.demo.training import Settings, Task
from benchmarks.engine.flag_values import flag_value, natural, positive
from benchmarks.engine.run_log import RunLog

# A network this small gains little from more, and where other programs keep a core busy, threads
# that wait for each other lose far more than that.
_THREADS = 1


def main() -> None:
    arguments = _parse()
    torch.set_num_threads(_THREADS)
    output: Path = arguments.output
    output.mkdir(parents=True, exist_ok=True)
    try:
        comparison = _prepare(arguments)
    except (ValueError, FileNotFoundError) as error:
        raise SystemExit(f"error: {error}") from error
    task, plan = comparison.task, comparison.plan

    print(
        f"Glyphs {task.checksum} (matplotlib {task.matplotlib_version}): "
        f"{len(task.images)} training and {len(task.test_images)} test images, "
        f"{task.memory_setup.memory_size} rows of memory, {len(task.batches)} steps per epoch"
    )
    log = RunLog(output / "logs")
    start = time.perf_counter()
    comparison.run(_progress_bar, lambda: log.update(comparison.histories))
    log.update(comparison.histories)  # a run that was resumed after its end has no epoch left
    log.close()

    histories = comparison.histories
    results = {name: summary(history, plan.warmup_epochs) for name, history in histories.items()}
    write_csv([{"method": name, **row} for name, row in results.items()], output / "results.csv")
    write_csv(
        [{"method": name, **row} for name, history in histories.items() for row in history.epochs],
        output / "epochs.csv",
    )
    draw_comparison(histories, plan.warmup_epochs, output / "comparison.png")
    print(table(results))
    print(f"{time.perf_counter() - start:.0f} s; picture, CSV files and logs are in {output}")


def _prepare(arguments: argparse.Namespace) -> Comparison:
    settings = Settings(
        batch_size=arguments.batch_size,
        memory_ratio=arguments.memory_ratio,
        seed=arguments.seed,
        classes=arguments.classes,
        diagnostics_every=arguments.diagnostics_every,
    )
    comparison = Comparison(
        Task(settings, torch.device(arguments.device)),
        Plan(arguments.methods, arguments.warmup_epochs, arguments.epochs),
        arguments.output / "checkpoint.pt",
        arguments.checkpoint,
    )
    if arguments.resume:
        comparison.resume()
    return comparison


def _progress_bar(steps: Iterable[int], title: str) -> Iterable[int]:
    return tqdm(steps, desc=title, unit="step")


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--methods", nargs="+", choices=METHODS, default=["no-xbm", "xbm", "xbn", "axbn"])
    add("--epochs", type=flag_value(positive), default=3, help="epochs with memory (default: 3)")
    add(
        "--warmup-epochs",
        type=flag_value(positive),
        default=1,
        help="shared epochs without memory (default: 1)",
    )
    add("--batch-size", type=int, default=16, help="a multiple of 4 (default: 16)")
    add(
        "--memory-ratio",
        type=float,
        default=0.03,
        help="rows in memory as a share of the training images (default: 0.03)",
    )
    add("--seed", type=int, default=0)
    add("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    add("--classes", type=int, help="train and test on so many classes each (default: all)")
    add(
        "--diagnostics-every",
        type=flag_value(natural),
        default=200,
        metavar="STEPS",
        help="steps between entries of the logs on staleness, push, valid pairs and drift "
        "(default: 200; 0: none)",
    )
    add("--output", type=Path, default=Path("runs/glyphs_demo"))
    add(
        "--checkpoint",
        type=flag_value(natural),
        default=0,
        metavar="STEPS",
        help="save the whole state every so many steps (default: 0, never)",
    )
    add("--resume", action="store_true", help="go on from the last checkpoint in --output")
    return parser.parse_args()


if __name__ == "__main__":
    main()
