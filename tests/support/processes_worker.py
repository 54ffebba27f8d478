"""Three calls in two processes, of which one ends at once and two do not.

python processes_worker.py FOLDER
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

from benchmarks.engine.processes import in_processes


def call(folder: Path, seconds: float) -> float:
    (folder / f"pid-{os.getpid()}").touch()
    time.sleep(seconds)
    return seconds


if __name__ == "__main__":
    to = Path(sys.argv[1])
    for (_, seconds), _ in in_processes(2, call, [(to, 0.0), (to, 300.0), (to, 301.0)], "calls"):
        (to / f"kept-{seconds:g}").touch()
