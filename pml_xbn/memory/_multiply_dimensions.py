"""Multiplies dimensions of stored rows, in a graph too."""

from __future__ import annotations

import torch
from torch import Tensor

from .._tracing import can_read, is_tracing


def multiply_dimensions_(stored: Tensor, factors: Tensor, sums: Tensor) -> None:
    """Multiplies dimensions of rows ``(M, d)``, in place, by factors ``(d,)``, most of which are 1.

    A GPU goes through all rows even if all are 1, as the host would have to wait to know. A CPU looks first,
    in a graph too, of which this is one operation.

    Args:
        stored: the rows.
        factors: ``(d,)``.
        sums: over rows and squares of rows, ``(2, d)``, which tell where all are zero already.
    """
    (_operation if is_tracing() else _multiply_dimensions_)(stored, factors, sums)


def _multiply_dimensions_(stored: Tensor, factors: Tensor, sums: Tensor) -> None:
    # numpy takes a tenth of the time that torch takes to look.
    if not can_read(factors) or sums.numpy()[1, factors.numpy() != 1].any():
        stored.mul_(factors.to(stored.dtype))


_NAME, _operation = "pml_xbn::multiply_dimensions_", _multiply_dimensions_
# torch 2.1, whose Dynamo leaves a memory out of every graph, has no such operations.
if hasattr(torch.library, "custom_op"):
    # Not by custom_op itself, whose operations take 0.1 ms longer to call. A process that imports the package
    # again, from another folder, has it already.
    if not hasattr(torch.ops.pml_xbn, "multiply_dimensions_"):
        torch.library.define(_NAME, "(Tensor(a!) stored, Tensor factors, Tensor sums) -> ()")
        torch.library.impl(_NAME, "default", _multiply_dimensions_)
        torch.library.impl(_NAME, "meta", lambda stored, factors, sums: None)
    _operation = torch.ops.pml_xbn.multiply_dimensions_.default
