"""Counts what a step of a memory consists of: operations, waits for the host, files, functions and depth.

An operation is one that torch dispatches in the forward or backward pass, views included. A wait is an
operation whose result the host has to know. The functions, files and depth are those of this package and of
pytorch-metric-learning in the forward pass.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from pytorch_metric_learning.losses import CrossBatchMemory, SupConLoss
from pytorch_metric_learning.miners import PairMarginMiner
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from pml_xbn import AXBNWrapper, PerClassXBN, SuperClassXBN, XBNWrapper

NUM_ROWS, BATCH_SIZE, DIM, NUM_CLASSES = 1024, 64, 512, 102
_WAITS = ("_local_scalar_dense", "nonzero", "masked_select", "is_nonzero", "equal", "unique")
_PACKAGES = ("pml_xbn", "pytorch_metric_learning")

MEMORIES: dict[str, Callable[..., nn.Module]] = {
    "PML": CrossBatchMemory,
    "XBN": XBNWrapper,
    "AXBN": AXBNWrapper,
    "PC-XBN": PerClassXBN,
    "SC-XBN": lambda *args, **options: SuperClassXBN(
        *args, superclasses=[label % 10 for label in range(NUM_CLASSES)], **options
    ),
}
# All operations; those of the forward pass; those of a step without anchors, which adapts and stores.
COLUMNS = ("operations", "forward", "memory", "waits", "files", "functions", "depth")


class Operations(TorchDispatchMode):
    """Counts operations by name while it is entered."""

    def __init__(self) -> None:
        super().__init__()
        self.counts: Counter[str] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.counts[func.overloadpacket.__name__] += 1
        return func(*args, **(kwargs or {}))


class Lists(TorchFunctionMode):
    """Counts the tensors that are read as lists, which no operation shows."""

    count = 0

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += func is Tensor.tolist
        return func(*args, **(kwargs or {}))


class Calls:
    """Notes the functions of both packages that are called while it is entered, and how deep."""

    def __init__(self) -> None:
        self.functions: set[tuple[str, str, int]] = set()
        self.depth = self._depth = 0

    def __enter__(self) -> Calls:
        sys.setprofile(self._note)
        return self

    def __exit__(self, *_: object) -> None:
        sys.setprofile(None)

    def _note(self, frame: Any, event: str, _: Any) -> None:
        if event not in ("call", "return") or not any(
            f"/{x}/" in frame.f_code.co_filename for x in _PACKAGES
        ):
            return
        self._depth += 1 if event == "call" else -1
        if event == "call":
            code = frame.f_code
            self.functions.add((code.co_filename, code.co_name, code.co_firstlineno))
            self.depth = max(self.depth, self._depth)


def counts(memory: nn.Module) -> dict[str, int]:
    """Returns the counts of a step of a full memory, by the names of the columns."""
    draw = torch.Generator().manual_seed(0)

    def batch() -> tuple[Tensor, Tensor]:
        labels = torch.randint(0, NUM_CLASSES, (BATCH_SIZE // 4,), generator=draw).repeat_interleave(4)
        return torch.randn(BATCH_SIZE, DIM, generator=draw).requires_grad_(), labels

    for _ in range(NUM_ROWS // BATCH_SIZE + 2):
        memory(*batch())
    embeddings, labels = batch()
    with Operations() as forward, Lists() as lists:
        loss = memory(embeddings, labels)
    with Operations() as backward:
        loss.backward()
    with Operations() as without_loss:  # no anchors: rows are adapted and stored
        memory(*batch(), None, torch.ones(BATCH_SIZE, dtype=torch.bool))
    with Calls() as calls:
        memory(*batch())
    num_forward, num_backward = (sum(mode.counts.values()) for mode in (forward, backward))
    return {
        "operations": num_forward + num_backward,
        "forward": num_forward,
        "memory": sum(without_loss.counts.values()),
        "waits": lists.count + sum(forward.counts[name] for name in _WAITS),
        "files": len({file for file, *_ in calls.functions}),
        "functions": len(calls.functions),
        "depth": calls.depth,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--output", type=Path, help="also write the table to this file")
    path = parser.parse_args().output
    lines = [f"| Memory | Miner | {' | '.join(COLUMNS)} |", "|:--|:--|" + "--:|" * len(COLUMNS)]
    for name, make in MEMORIES.items():
        for miner in (None, PairMarginMiner(0.5, 1.5)):
            found = counts(make(SupConLoss(), DIM, NUM_ROWS, miner=miner))
            numbers = " | ".join(str(found[column]) for column in COLUMNS)
            lines.append(f"| {name} | {'–' if miner is None else 'PairMargin'} | {numbers} |")
    print("\n".join(lines))
    if path:
        path.write_text("\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
