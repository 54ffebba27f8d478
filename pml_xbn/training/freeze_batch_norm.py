"""Batch normalization that keeps the running statistics that it has."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.parameter import is_lazy

from .frozen_batch_norm import FrozenBatchNorm, freeze


def freeze_batch_norm(model: nn.Module) -> int:
    """Makes the batch normalization of a pretrained model keep its running statistics while it trains.

    In training mode a layer of batch normalization takes the statistics of the batch, which are noisy if the
    batch is small, and every stored row carries the noise of the batch it came in with
    (:func:`pml_xbn.diagnostics.batch_noise` measures it). Frozen layers take their running statistics and do
    not update them, whatever ``model.train()`` says afterwards. Their weights and biases still train, unlike
    those that timm's and torchvision's functions freeze.

    Call it after the pretrained weights are loaded. Copies of the model (``copy.deepcopy``, pickle,
    ``AveragedModel``) stay frozen. So does the model when it is compiled or scripted, when its layers are
    converted by ``SyncBatchNorm.convert_sync_batchnorm`` (which Lightning's ``sync_batchnorm=True`` calls),
    and through ``reset_running_stats()`` and ``update_bn``. Only a layer that has seen data is worth
    freezing: that of random weights would normalize nothing. A layer of a class that is not PyTorch's, such
    as timm's with an activation, cannot be scripted once it is frozen, and says so: trace the model.

    Args:
        model: a module, of which all layers of batch normalization are frozen: each becomes a
            :class:`FrozenBatchNorm`, in place. What asks for ``nn.BatchNorm2d``, as groups of weights without
            weight decay may do, has to ask for that class too.

    Returns:
        How many frozen layers there are: 0 of a model without batch normalization, in which nothing changes.

    Raises:
        ValueError: a layer that has no running statistics, or that is scripted; nothing has changed.

    Example:
        >>> import torch
        >>> model = nn.Sequential(nn.Linear(8, 4), nn.BatchNorm1d(4))
        >>> freeze_batch_norm(model)
        1
        >>> images = torch.randn(16, 8)
        >>> bool((model.train()(images)[:2] == model(images[:2])).all())  # no matter which batch they are in
        True
    """
    layers: list[_BatchNorm] = []
    num_frozen = 0
    for name, layer in model.named_modules():
        num_frozen += isinstance(layer, FrozenBatchNorm) or _is_scripted_frozen(name, layer)
        if isinstance(layer, _BatchNorm):
            if layer.running_mean is None:
                raise ValueError(
                    f"layer {name!r} is a {type(layer).__name__} without running statistics: build it with "
                    "track_running_stats=True and load pretrained ones, or leave batch normalization as it is"
                )
            if is_lazy(layer.running_mean):
                raise ValueError(
                    f"layer {name!r} is a {type(layer).__name__} that has not seen a batch: load pretrained "
                    "statistics, or call the model once"
                )
            layers.append(layer)
    for layer in layers:
        freeze(layer)
    return num_frozen + len(layers)


def _is_scripted_frozen(name: str, layer: nn.Module) -> bool:
    """Returns whether a layer is scripted, of frozen batch normalization.

    Raises:
        ValueError: it is of batch normalization that trains on.
    """
    kind = layer.original_name if isinstance(layer, torch.jit.ScriptModule) else ""
    if kind == FrozenBatchNorm.__name__:
        return True
    if "BatchNorm" in kind and hasattr(layer, "running_mean"):
        raise ValueError(
            f"layer {name!r} is a scripted {kind}, which trains on: freeze the model before torch.jit.script"
        )
    return False
