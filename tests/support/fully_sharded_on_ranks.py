"""One of four ranks of examples/fully_sharded.py, which resumes without tensor parallelism.

python fully_sharded_on_ranks.py EXAMPLES OUTPUT
"""

from __future__ import annotations

import runpy
import sys
from pathlib import Path

import torch
from script_on_few_glyphs import FewGlyphs
from torch import distributed

import pml_xbn.datasets

if __name__ == "__main__":
    script, folder = Path(sys.argv[1], "fully_sharded.py"), sys.argv[2]
    torch.set_num_threads(1)
    pml_xbn.datasets.Glyphs = FewGlyphs  # type: ignore[misc]
    distributed.init_process_group("gloo")
    # The ranks stay together from one run to the next.
    distributed.init_process_group = distributed.destroy_process_group = lambda *_: None
    shared = ["--batch-size", "8", "--memory-size", "100", "--folder", folder]
    for own in (["--steps", "2"], ["--steps", "1", "--tensor-parallel", "1", "--resume"]):
        sys.argv = [script.name, *own, *shared]
        runpy.run_path(str(script), run_name="__main__")
