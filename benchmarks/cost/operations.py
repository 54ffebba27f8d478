"""Counts what a step of a memory consists of: operations, launches, waits for the host, files and functions.

An operation is one that torch dispatches in the forward or backward pass. Those that are no views launch a
kernel on a GPU. A wait is an operation whose result the host has to know. The functions, files and how deep
they call each other are those of this package and of pytorch-metric-learning in the forward pass.

    python -m benchmarks.cost operations
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import torch
from pytorch_metric_learning.losses import CrossBatchMemory, SupConLoss
from pytorch_metric_learning.miners import PairMarginMiner
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from benchmarks.cost.machine import describe_fully
from benchmarks.cost.page import write_table
from benchmarks.engine.results import RESULTS, markdown
from pml_xbn import AXBNWrapper, PerClassXBN, SuperClassXBN, XBNWrapper

NUM_ROWS, BATCH_SIZE, DIM, NUM_CLASSES = 1024, 64, 512, 102
_WAITS = ("_local_scalar_dense", "nonzero", "masked_select", "is_nonzero", "equal", "_unique2")
_NO_LAUNCH = ("detach", "alias", "new_empty")  # besides the views
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


class Operations(TorchDispatchMode):
    """Counts operations by name while it is entered."""

    def __init__(self) -> None:
        super().__init__()
        self.counts: Counter[str] = Counter()
        self.launches: Counter[str] = Counter()  # by the file of this package that asks for them
        self.waits_by_mask = 0  # what is indexed by a mask has to know its size

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.overloadpacket.__name__
        self.counts[name] += 1
        if not (func.is_view or name in _NO_LAUNCH):
            self.launches[_file_of_caller()] += 1
        indices = args[1] if len(args) > 1 and isinstance(args[1], list | tuple) else ()
        self.waits_by_mask += any(isinstance(x, Tensor) and x.dtype == torch.bool for x in indices)
        return func(*args, **(kwargs or {}))


def _file_of_caller() -> str:
    """Returns the file of this package that is being run, such as memory/_rows.py; else autograd."""
    frame: FrameType | None = sys._getframe(2)
    while frame is not None:
        _, found, path = frame.f_code.co_filename.rpartition("/pml_xbn/")
        if found and not path.startswith("benchmarks"):
            return path
        frame = frame.f_back
    return "autograd"


class Lists(TorchFunctionMode):
    """Counts the tensors that are read as lists, which no operation shows."""

    count = 0

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += func is Tensor.tolist
        return func(*args, **(kwargs or {}))


def called_functions(call: Callable[[], object]) -> tuple[set[CodeType], int]:
    """Returns the functions of both packages that a call runs, and how deep they call each other."""
    found: set[CodeType] = set()
    depth = deepest = 0

    def look(frame: FrameType, event: str, _: object) -> None:
        nonlocal depth, deepest
        code = frame.f_code
        if event in ("call", "return") and any(f"/{name}/" in code.co_filename for name in _PACKAGES):
            found.add(code)
            depth += 1 if event == "call" else -1
            deepest = max(deepest, depth)

    sys.setprofile(look)
    try:
        call()
    finally:
        sys.setprofile(None)
    return found, deepest


def counts(memory: nn.Module) -> tuple[dict[str, int], Counter[str]]:
    """Returns the counts of a step of a full memory, and its launches by file.

    ``memory`` counts the operations of a step without anchors, which adapts and stores.
    """
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
    embeddings, labels = batch()
    no_anchors = torch.ones(BATCH_SIZE, dtype=torch.bool)
    with Operations() as without_loss:  # rows are adapted and stored
        memory(embeddings, labels, None, no_anchors)
    functions, depth = called_functions(lambda: memory(embeddings, labels))
    num_forward, num_backward = (sum(mode.counts.values()) for mode in (forward, backward))
    launches = forward.launches + backward.launches
    found = {
        "operations": num_forward + num_backward,
        "launches": launches.total(),
        "forward": num_forward,
        "memory": sum(without_loss.counts.values()),
        "waits": lists.count + forward.waits_by_mask + sum(forward.counts[name] for name in _WAITS),
        "files": len({code.co_filename for code in functions}),
        "functions": len(functions),
        "depth": depth,
    }
    return found, launches


def main(output: Path = RESULTS) -> None:
    """Counts for all memories, without and with a miner.

    Args:
        output: folder of the table.
    """
    rows: list[dict[str, Any]] = []
    of_files, machine = {}, describe_fully(torch.device("cpu"))
    for name, make in MEMORIES.items():
        for miner in (None, PairMarginMiner(0.5, 1.5)):
            found, of_files[name, miner is None] = counts(make(SupConLoss(), DIM, NUM_ROWS, miner=miner))
            row: dict[str, Any] = {"class": name, "miner": "PairMargin" if miner else "–"}
            rows.append(row | found | machine)
    columns = {"class": "class", "miner": "miner", **{name: name for name in found}}
    of_xbn = [[f"`{name}`", str(count)] for name, count in of_files["XBN", True].most_common()]
    text = write_table(
        rows,
        columns,
        output / "step_operations.csv",
        "Of what a step consists, beside PML's CrossBatchMemory",
        f"SupConLoss, {NUM_ROWS:,} rows of {DIM}, batch {BATCH_SIZE}. Written by "
        "`benchmarks.cost operations`.",
        "Of the launches of XBN without a miner, by the file that asks for them:",
        markdown(["File", "launches"], of_xbn, ["File"]),
    )
    print(text)
