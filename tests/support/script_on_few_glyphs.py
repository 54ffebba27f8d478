"""Runs a script on the first classes of Glyphs, and sends it a signal in the middle if that is wished.

python script_on_few_glyphs.py SCRIPT ARGUMENTS...

The variable SIGNAL_AT holds what to send, the rank that sends it to itself, or ALL, and the optimizer's step:
SIGKILL:ALL:7.
"""

from __future__ import annotations

import os
import runpy
import signal
import sys
from typing import Any

from torch.optim.optimizer import register_optimizer_step_post_hook

import pml_xbn.datasets
from pml_xbn.datasets import Glyphs

CLASSES = 24


class FewGlyphs(Glyphs):
    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        size = int((self.labels < CLASSES).sum())
        self.images, self.labels = self.images[:size], self.labels[:size]


def send_signal(wanted: str) -> None:
    name, rank, at = wanted.split(":")
    if rank not in ("ALL", os.environ.get("RANK", "0")):
        return
    steps = 0

    def count_and_send(*_: Any) -> None:
        nonlocal steps
        steps += 1
        if steps == int(at):
            os.kill(os.getpid(), signal.Signals[name])

    register_optimizer_step_post_hook(count_and_send)


if __name__ == "__main__":
    pml_xbn.datasets.Glyphs = FewGlyphs  # type: ignore[misc]
    if "SIGNAL_AT" in os.environ:
        send_signal(os.environ["SIGNAL_AT"])
    sys.argv = sys.argv[1:]
    runpy.run_path(sys.argv[0], run_name="__main__")
