"""Checkpoints that survive a kill at any moment."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from pytorch_metric_learning.losses import CrossBatchMemory

# What PML's own memory needs to go on and leaves out of its state_dict.
_QUEUE = ("queue_idx", "has_been_filled")


def state_of(part: Any) -> dict[str, Any]:
    """Returns a module's or optimizer's state; of PML's own memory with what PML leaves out."""
    state: dict[str, Any] = part.state_dict()
    if type(part) is CrossBatchMemory:
        return {"state_dict": state, "queue": {name: getattr(part, name) for name in _QUEUE}}
    return state


def restore(part: Any, state: dict[str, Any]) -> None:
    """Loads what `state_of` returned."""
    if type(part) is not CrossBatchMemory:
        part.load_state_dict(state)
        return
    part.load_state_dict(state["state_dict"])
    for name, value in state["queue"].items():
        setattr(part, name, value)


def save(state: dict[str, Any], path: Path) -> None:
    """Writes a checkpoint; the file at ``path`` is at all times the old or the new one, whole."""
    unfinished = path.with_suffix(".unfinished")
    with unfinished.open("wb") as file:
        torch.save(state, file)
        file.flush()
        os.fsync(file.fileno())
    os.replace(unfinished, path)


def load(path: Path) -> dict[str, Any]:
    """Reads what `save` wrote, to the CPU, where Adam wants its counts: each on a GPU is a wait a step."""
    return torch.load(path, map_location="cpu", weights_only=True)


def check_same(ours: Mapping[str, Any], saved: Mapping[str, Any], path: Path) -> None:
    """Refuses to resume from a checkpoint whose identity ``saved`` is another than ``ours``, by name."""
    for name, value in ours.items():
        if saved.get(name) != value:
            raise ValueError(
                f"{path} was written with {name}={saved.get(name)!r}, not {value!r}; resume with the flags "
                "of the first run, or start anew in another --output"
            )
