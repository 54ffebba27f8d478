"""Batch normalization by the moments of the batch of all ranks, on CPUs too."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, distributed, nn


def synchronise_batch_norm(model: nn.Module, device: torch.device) -> nn.Module:
    """The model, whose batch normalization sees the batch of all ranks.

    Raises:
        ValueError: a kind of batch normalization that PyTorch synchronises on GPUs alone.
    """
    if device.type == "cuda":
        converted: nn.Module = nn.SyncBatchNorm.convert_sync_batchnorm(model)
        return converted
    for name, module in model.named_modules():
        if isinstance(module, nn.modules.batchnorm._BatchNorm):
            if type(module) not in _ON_CPUS:
                raise ValueError(
                    f"{name} is a {type(module).__name__}, which is synchronised on GPUs alone; pass "
                    "--no-sync-bn or another model"
                )
            module.__class__ = _ON_CPUS[type(module)]  # type: ignore[assignment]
    return model


class _SumOverRanks(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, values: Tensor) -> Tensor:
        total = values.clone()
        distributed.all_reduce(total)
        return total

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return _SumOverRanks.forward(ctx, gradient)


class _MomentsOfAllRanks(nn.modules.batchnorm._BatchNorm):
    running_mean: Tensor
    running_var: Tensor
    num_batches_tracked: Tensor
    momentum: float

    def forward(self, values: Tensor) -> Tensor:
        if not self.training:
            return super().forward(values)
        dims = [dim for dim in range(values.ndim) if dim != 1]
        shape = [1, -1, *[1] * (values.ndim - 2)]
        count = values.new_tensor([values.numel() // values.shape[1]])
        distributed.all_reduce(count)
        mean = _SumOverRanks.apply(values.sum(dims)) / count
        centred = values - mean.view(shape)
        variance = _SumOverRanks.apply(centred.square().sum(dims)) / count
        with torch.no_grad():
            self.num_batches_tracked += 1
            self.running_mean.lerp_(mean, self.momentum)
            self.running_var.lerp_(variance * count / (count - 1), self.momentum)
        normalized: Tensor = centred / (variance + self.eps).sqrt().view(shape)
        if self.affine:
            normalized = normalized * self.weight.view(shape) + self.bias.view(shape)
        return normalized


class _BatchNorm1d(_MomentsOfAllRanks, nn.BatchNorm1d):
    pass


class _BatchNorm2d(_MomentsOfAllRanks, nn.BatchNorm2d):
    pass


_ON_CPUS: dict[type[nn.Module], type[nn.Module]] = {
    nn.BatchNorm1d: _BatchNorm1d,
    nn.BatchNorm2d: _BatchNorm2d,
}
