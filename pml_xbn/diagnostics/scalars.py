"""Numbers of diagnostics as record-keeper and TensorBoard take them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor


def scalars(name: str, numbers: Any) -> dict[str, float]:
    """Flattens what a diagnostic returns into names and floats.

    Names are joined with underscores: record-keeper makes columns of them. Tensors of one dimension or
    more, such as the staleness by age, are left out: they are for the plots. Every number on a GPU waits
    for it, so call this at the steps that are logged only.

    Args:
        name: what all names begin with.
        numbers: a number, a 0-dimensional tensor, or a named tuple or mapping of such, nested as you like.

    Returns:
        For ``RecordKeeper.update_records(..., global_iteration=step, parent_name="diagnostics")``, or for
        ``SummaryWriter.add_scalar`` one by one.

    Raises:
        TypeError: something else among the numbers.

    Example:
        >>> import torch
        >>> from pml_xbn.diagnostics import feature_drift
        >>> drift = feature_drift(torch.tensor([[3.0, 4.0]]), torch.zeros(1, 2))
        >>> scalars("drift", {1: drift})
        {'drift_1_mean': 5.0, 'drift_1_maximum': 5.0}
    """
    if isinstance(numbers, Tensor):
        return {name: float(numbers)} if numbers.ndim == 0 else {}
    if isinstance(numbers, (int, float)):
        return {name: float(numbers)}
    if isinstance(numbers, tuple) and hasattr(numbers, "_asdict"):
        numbers = numbers._asdict()
    if not isinstance(numbers, Mapping):
        raise TypeError(
            f"{name} is a {type(numbers).__name__}: pass a number, a tensor, or a named tuple or mapping of "
            "such"
        )
    flat: dict[str, float] = {}
    for key, value in numbers.items():
        flat |= scalars(f"{name}_{key}", value)
    return flat
