"""Flattens the results of diagnostics into named numbers, for record-keeper and TensorBoard."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor


def scalars(name: str, numbers: Any) -> dict[str, float]:
    """Flattens what a diagnostic returns into names and floats.

    Names are joined with underscores, so that record-keeper can use them as columns. Tensors of one dimension
    or more, such as the staleness by age, are left out, since they are for the plots. Reading a number from a
    GPU waits for the GPU, so call this only at the steps that you log.

    Args:
        name: the beginning of all names.
        numbers: a number, a 0-dimensional tensor, or a named tuple or mapping of such, nested as you like.

    Returns:
        A dict from name to number. Pass it to ``RecordKeeper.update_records(..., global_iteration=step,
        parent_name="diagnostics")``, or its items one by one to ``SummaryWriter.add_scalar``.

    Raises:
        TypeError: there is something else among the numbers.

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
