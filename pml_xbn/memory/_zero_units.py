"""Zeroes units of stored rows, in a graph too."""

from __future__ import annotations

import torch
from torch import Tensor

from .._tracing import can_read, is_tracing


def zero_units_(stored: Tensor, units: Tensor, sums: Tensor) -> None:
    """Zeroes units of rows ``(M, d)`` in place, where ``units`` ``(d,)`` bool says so.

    A GPU goes through all rows even if there is no such unit, as the host would have to wait to know. A CPU
    looks first, in a graph too, of which this is one operation.

    Args:
        stored: the rows.
        units: ``(d,)``.
        sums: over rows and squares of rows, ``(2, d)``, which tell where all are zero already.
    """
    (_operation if is_tracing() else _zero_units_)(stored, units, sums)


def _zero_units_(stored: Tensor, units: Tensor, sums: Tensor) -> None:
    # numpy takes a tenth of the time that torch takes to look.
    if not can_read(units) or sums.numpy()[1, units.numpy()].any():
        stored.masked_fill_(units, 0.0)


_NAME, _operation = "pml_xbn::zero_units_", _zero_units_
# torch 2.1, whose Dynamo leaves a memory out of every graph, has no such operations.
if hasattr(torch.library, "custom_op"):
    # Not by custom_op itself, whose operations take 0.1 ms longer to call. A process that imports the package
    # again, from another folder, has it already.
    if not hasattr(torch.ops.pml_xbn, "zero_units_"):
        torch.library.define(_NAME, "(Tensor(a!) stored, Tensor units, Tensor sums) -> ()")
        torch.library.impl(_NAME, "default", _zero_units_)
        torch.library.impl(_NAME, "meta", lambda stored, units, sums: None)
    _operation = torch.ops.pml_xbn.zero_units_.default
