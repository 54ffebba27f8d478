"""Batch normalization that keeps the running statistics that it has."""

from __future__ import annotations

from functools import partial

from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm


def freeze_batch_norm(model: nn.Module) -> int:
    """Makes the batch normalization of a pretrained model keep its running statistics while it trains.

    In training mode a layer of batch normalization takes the statistics of the batch, which are noisy if the
    batch is small, and every stored row carries the noise of the batch it came in with
    (:func:`pml_xbn.diagnostics.batch_noise` measures it). Frozen layers take their running statistics and do
    not update them, whatever ``model.train()`` says afterwards. Their weights and biases still train, unlike
    those that timm's and torchvision's functions freeze.

    Call it after the pretrained weights are loaded and after layers are converted, for instance by
    ``convert_sync_batchnorm``. Copies of the model (``copy.deepcopy``, pickle) stay frozen. Only a layer that
    has seen data is worth freezing: that of random weights would normalize nothing.

    Args:
        model: a module, of which all layers of batch normalization are frozen.

    Returns:
        How many layers there are: 0 of a model without batch normalization, in which nothing changes.

    Raises:
        ValueError: a layer that has no running statistics; nothing has changed.

    Example:
        >>> import torch
        >>> model = nn.Sequential(nn.Linear(8, 4), nn.BatchNorm1d(4))
        >>> freeze_batch_norm(model)
        1
        >>> images = torch.randn(16, 8)
        >>> bool((model.train()(images)[:2] == model(images[:2])).all())  # no matter which batch they are in
        True
    """
    layers = {name: layer for name, layer in model.named_modules() if isinstance(layer, _BatchNorm)}
    for name, layer in layers.items():
        if layer.running_mean is None:
            raise ValueError(
                f"layer {name!r} is a {type(layer).__name__} without running statistics: build it with "
                "track_running_stats=True and load pretrained ones, or leave batch normalization as it is"
            )
    for layer in layers.values():
        layer.eval()
        # An attribute of the layer: it goes along with copies and pickles, and model.train() calls it.
        setattr(layer, "train", partial(_stay_in_evaluation_mode, layer))  # noqa: B010
    return len(layers)


def _stay_in_evaluation_mode(layer: nn.Module, mode: bool = True) -> nn.Module:
    return layer
