"""Runs an example with a framework on few data, and saves what its memory and its optimizer end with.

python recorded_run.py FOLDER SCRIPT ARGUMENTS...

Every rank writes ``rank<r>.pt`` into the folder. The variable SIGNAL_AT is that of script_on_few_glyphs.py.
"""

from __future__ import annotations

import os
import runpy
import sys
import warnings
from pathlib import Path
from typing import Any, ClassVar

import torch
from script_on_few_glyphs import FewGlyphs, send_signal
from torch import Tensor
from torch.optim.optimizer import register_optimizer_step_post_hook

import pml_xbn.datasets
from pml_xbn import XBNWrapper

NAMES = 256


class FewNames(FewGlyphs):
    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.label_names = self.label_names[:NAMES]


class Recorded(XBNWrapper):
    """A memory that notes what it is called with.

    Attributes:
        made: the memory of the script.
        calls: of every call in training the labels, how many rows the memory holds after it, and how often
            the optimizer had stepped before it.
        optimizer: the one that stepped last.
        num_steps: of the optimizer.
    """

    made: ClassVar[Recorded]
    calls: ClassVar[list[dict[str, Any]]] = []
    optimizer: ClassVar[torch.optim.Optimizer]
    num_steps: ClassVar[int] = 0

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        Recorded.made = self

    def forward(self, embeddings: Tensor, labels: Tensor, *args: Any) -> Tensor:
        loss: Tensor = super().forward(embeddings, labels, *args)
        if not torch.is_grad_enabled():  # an evaluation, which stores nothing
            return loss
        numbers = {"num_rows": self.num_rows, "steps_before": Recorded.num_steps}
        self.calls.append({"labels": labels, "is_finite": bool(loss.isfinite()), **numbers})
        return loss


class RecordedLinear(torch.nn.Linear):
    """Notes the dtypes in which it works in training."""

    dtypes: ClassVar[set[torch.dtype]] = set()

    def forward(self, vectors: Tensor) -> Tensor:
        out = super().forward(vectors)
        if torch.is_grad_enabled():
            self.dtypes.add(out.dtype)
        return out


def note_step(optimizer: torch.optim.Optimizer, *_: Any) -> None:
    Recorded.optimizer = optimizer
    Recorded.num_steps += 1


def main(folder: Path, script: str) -> None:
    warnings.filterwarnings("error", module="pml_xbn")
    torch.set_num_threads(1)
    pml_xbn.datasets.Glyphs = FewNames  # type: ignore[misc]
    pml_xbn.XBNWrapper = Recorded  # type: ignore[misc]
    torch.nn.Linear = RecordedLinear  # type: ignore[misc]
    register_optimizer_step_post_hook(note_step)
    if "SIGNAL_AT" in os.environ:
        send_signal(os.environ["SIGNAL_AT"])
    runpy.run_path(script, run_name="__main__")
    optimizer, memory = Recorded.optimizer, Recorded.made
    state = {
        "weights": [x.detach() for group in optimizer.param_groups for x in group["params"]],
        "optimizer": optimizer.state_dict()["state"],
        "memory": memory.state_dict(),
        "memory_labels": memory.label_memory[: memory.num_rows],
        "calls": Recorded.calls,
        "num_steps": Recorded.num_steps,
        "dtypes": list(RecordedLinear.dtypes),
    }
    folder.mkdir(parents=True, exist_ok=True)
    torch.save(state, folder / f"rank{os.environ.get('RANK', 0)}.pt")


if __name__ == "__main__":
    destination, script = Path(sys.argv[1]), sys.argv[2]
    sys.argv = sys.argv[2:]
    main(destination, script)
