"""Losses, miners, distances and reducers by name: PML's, and the papers' that it lacks."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

from pytorch_metric_learning import distances, losses, miners, reducers
from pytorch_metric_learning.utils.common_functions import TorchInitWrapper
from torch import nn

from benchmarks.papers.beside import CenterContrastiveLoss, RingLoss

_LOSSES = {**vars(losses), "CenterContrastiveLoss": CenterContrastiveLoss, "RingLoss": RingLoss}
# Arguments whose values are the names of other parts.
_NAMED_PARTS = {"distance": vars(distances), "reducer": vars(reducers)}
# How weights of classes (d, C) start: as those of nn.Linear, uniform between ±1/√d.
_FIRST_WEIGHTS = {"linear": TorchInitWrapper(nn.init.kaiming_uniform_, a=5**0.5, mode="fan_out")}


def make_loss(name: str, options: dict[str, Any], flag: str = "--loss", **known: Any) -> nn.Module:
    """Returns a loss; of ``known`` (num_classes, embedding_size) it gets what it asks for."""
    cls = _part(flag, _LOSSES, name)
    # Its bases' too, which *args and **kwargs go to.
    inits = [vars(base)["__init__"] for base in cls.__mro__ if "__init__" in vars(base)]
    asked = {parameter for init in inits for parameter in inspect.signature(init).parameters}
    return _make(cls, {**{key: value for key, value in known.items() if key in asked}, **options})


def make_miner(name: str, options: dict[str, Any]) -> nn.Module | None:
    """Returns a miner of PML; None for the name none."""
    return None if name == "none" else _make(_part("--miner", vars(miners), name), options)


def _part(setting: str, parts: Mapping[str, Any], name: str) -> Any:
    names = sorted(key for key, value in parts.items() if inspect.isclass(value))
    if name not in names:
        raise ValueError(f"{setting} is {name!r}; choose one of {', '.join(names)}")
    return parts[name]


def _make(cls: Any, options: dict[str, Any]) -> Any:
    built = {
        key: _part(key, _NAMED_PARTS[key], value)() if key in _NAMED_PARTS else value
        for key, value in options.items()
    }
    if "weight_init_func" in built:
        name = built["weight_init_func"]
        if name not in _FIRST_WEIGHTS:
            raise ValueError(f"weight_init_func is {name!r}; choose one of {', '.join(_FIRST_WEIGHTS)}")
        built["weight_init_func"] = _FIRST_WEIGHTS[name]
    try:
        return cls(**built)
    except TypeError as error:
        raise ValueError(f"{cls.__name__} does not take {options}: {error}") from error
