"""Runs the script of a rank, and ends the rank at once when the script is through.

Threads of a gloo group can outlive it: taking a group apart was seen to hang with torch 2.1, and the
interpreter's end to abort with torch 2.15, in one of some hundred runs under load.
"""

from __future__ import annotations

import os
import runpy
import sys
from pathlib import Path

from torch import distributed

if __name__ == "__main__":
    sys.argv = sys.argv[1:]
    sys.path[0] = str(Path(sys.argv[0]).parent)
    runpy.run_path(sys.argv[0], run_name="__main__")
    if distributed.is_initialized():
        distributed.barrier()  # nobody leaves while another still listens
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)
