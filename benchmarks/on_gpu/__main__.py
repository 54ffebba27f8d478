"""All that is measured on a GPU, in one command that ends by itself.

    python -m benchmarks.on_gpu --output DIR                       (eight minutes on the first GPU)
    python -m benchmarks.on_gpu --output DIR --device cpu --tiny   (every line of it in a minute, without one)

It needs torch and pytorch-metric-learning, and nothing else. Every row is written as soon as it is measured
and names device, driver, torch and dtype. The same line goes on where it stopped: rows that a file holds are
not measured again.
"""

from __future__ import annotations

import argparse
import faulthandler
import os
from collections.abc import Callable
from pathlib import Path

# Has to be set before CUDA begins: without it matrix products may differ from one run to the next.
os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")

import torch

from benchmarks.on_gpu.contract import run as contract
from benchmarks.on_gpu.deadline import Deadline

# Parts in the order of what is worth most per second. Each returns how many of its rows have failed.
PARTS: dict[str, Callable[[Path, torch.device, Deadline, bool], int]] = {"contract": contract.run}
_AT_THE_END = 20.0  # seconds that a part is given to come to its end by itself


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.on_gpu",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--output", type=Path, required=True, help="folder of the CSV files")
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=list(PARTS))
    parser.add_argument("--minutes", type=float, default=8.0, help="after which it is over; default 8")
    parser.add_argument("--device", default="cuda", help="default cuda")
    parser.add_argument("--tiny", action="store_true", help="small cases, to try it without a GPU")
    settings = parser.parse_args()
    if settings.minutes <= 0:
        parser.error(f"--minutes is {settings.minutes:g}; it must be above 0")
    device = torch.device(settings.device)
    if device.type == "cuda" and not torch.cuda.is_available():
        parser.error("there is no GPU that this torch can use: pass --device cpu --tiny to try the command")
    settings.output.mkdir(parents=True, exist_ok=True)
    # Ends the process where a device does not answer; finished rows are on the disk.
    faulthandler.dump_traceback_later(60 * settings.minutes + _AT_THE_END, exit=True)
    deadline, failed = Deadline(settings.minutes), 0
    for part in settings.parts:
        failed += PARTS[part](settings.output, device, deadline, settings.tiny)
    faulthandler.cancel_dump_traceback_later()
    print(f"the rows are in {settings.output}")
    if failed:
        raise SystemExit(f"{failed} rows have failed")


if __name__ == "__main__":
    main()
