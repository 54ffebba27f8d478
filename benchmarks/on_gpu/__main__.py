"""All that is measured on a GPU, in one command that ends by itself.

    python -m benchmarks.on_gpu --output DIR                       (eight minutes on the first GPU)
    python -m benchmarks.on_gpu --output DIR --device cpu --tiny   (every line of it in a minute, without one)
    python -m benchmarks.on_gpu --prepare FILE                     (writes the data of training, anywhere)

It needs torch and pytorch-metric-learning, for the networks of the part "network" timm or torchvision, and
for compiled steps a C compiler. The tests of a device need pytest and hypothesis too, and are another line:

    TEST_DEVICE=cuda pytest -m device --junitxml=DIR/tests.xml     (at most four minutes)

Every row is written as soon as it is measured and names device, driver, torch and dtype. The same line goes
on where it stopped: rows that a file holds are not measured again. Copied to benchmarks/results/gpu, files
are on the page docs/benchmarks.md at its next build.
"""

from __future__ import annotations

import argparse
import faulthandler
import os
from pathlib import Path
from typing import NoReturn

# Has to be set before CUDA begins: without it matrix products may differ from one run to the next.
os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")

import torch

from benchmarks.on_gpu.cost import run as cost
from benchmarks.on_gpu.deadline import Deadline
from benchmarks.on_gpu.network import run as network
from benchmarks.on_gpu.steps import run as steps
from benchmarks.on_gpu.train import run as train

# In the order of what is worth most per second, with the part of the time left that each may take: that of
# one leaves time for the next.
PARTS = {"network": 0.4, "steps": 0.9, "cost": 1.0, "train": 1.0}
DATA, EMOJI_ROOT = Path("runs/on_gpu/data.gz"), Path("data/emoji")
_AT_THE_END = 20.0  # seconds that a part is given to come to its end by itself


class _Parser(argparse.ArgumentParser):
    """Ends with one line that says what is wrong, as the other programs do."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"error: {message}\n")


def main() -> None:
    parser = _Parser(
        prog="python -m benchmarks.on_gpu",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--output", type=Path, help="folder of the CSV files")
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=list(PARTS))
    parser.add_argument("--minutes", type=float, default=8.0, help="after which it is over; default 8")
    parser.add_argument("--device", default="cuda", help="default cuda")
    parser.add_argument("--tiny", action="store_true", help="small cases and made-up data, to try it out")
    parser.add_argument("--data", type=Path, default=DATA, help=f"what --prepare wrote; default {DATA}")
    parser.add_argument("--cases", type=Path, nargs="+", help="lists of runs to train; default the study's")
    parser.add_argument("--prepare", type=Path, metavar="FILE", help="write the data of training, and end")
    parser.add_argument("--emoji", type=Path, default=EMOJI_ROOT, help="for --prepare: unpacked packages")
    settings = parser.parse_args()
    if settings.prepare is not None:
        from benchmarks.on_gpu.train.prepare import prepare  # needs the packages of the data sets

        prepare(settings.prepare, settings.emoji)
        print(f"{settings.prepare} is written")
        return
    if settings.output is None:
        parser.error("--output is missing: pass a folder for the CSV files")
    if settings.minutes <= 0:
        parser.error(f"--minutes is {settings.minutes:g}; it must be above 0")
    device = torch.device(settings.device)
    if device.type == "cuda" and not torch.cuda.is_available():
        parser.error("there is no GPU that this torch can use: pass --device cpu --tiny to try the command")
    settings.output.mkdir(parents=True, exist_ok=True)
    # Ends the process where a device does not answer; finished rows are on the disk.
    faulthandler.dump_traceback_later(60 * settings.minutes + _AT_THE_END, exit=True)
    failed = measure(settings, device, Deadline(settings.minutes))
    faulthandler.cancel_dump_traceback_later()
    print(f"the rows are in {settings.output}")
    if failed:
        raise SystemExit(f"{failed} rows have failed")


def measure(settings: argparse.Namespace, device: torch.device, deadline: Deadline) -> int:
    """Measures the parts that are asked for; returns how many rows have failed."""
    failed = 0
    for part, share in PARTS.items():
        if part not in settings.parts:
            continue
        own = deadline.share(share)
        where: tuple[Path, torch.device, Deadline, bool] = settings.output, device, own, settings.tiny
        if part == "network":
            failed += network.run(*where)
        elif part == "steps":
            failed += steps.run(*where)
        elif part == "cost":
            failed += cost.run(*where)
        elif settings.tiny:
            failed += train.run(*where, None)
        elif not settings.data.is_file():
            print(f"train: there is no {settings.data}: write it by --prepare, where the data sets are")
        else:
            failed += train.run(*where, settings.data, settings.cases or train.LISTS)
    return failed


if __name__ == "__main__":
    main()
