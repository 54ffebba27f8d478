"""What layers of batch normalization are once they are frozen."""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn.functional import batch_norm
from torch.nn.modules.batchnorm import _BatchNorm, _NormBase

_OF_TORCH = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm)


class FrozenBatchNorm(_NormBase):
    """A layer that normalizes by its running statistics, which nothing but loading a state changes.

    :func:`freeze_batch_norm` makes it of a layer in place: weights, statistics, hooks and names in
    ``state_dict()`` stay. It is no ``BatchNorm2d`` any more, since functions that look for batch
    normalization would otherwise thaw it (``SyncBatchNorm.convert_sync_batchnorm``) or reset its statistics
    (``torch.optim.swa_utils.update_bn``).
    """

    # No annotations of the buffers here, as TorchScript cannot read those that are kept as text.

    def forward(self, features: Tensor) -> Tensor:
        """Returns the features, normalized and scaled, of the same shape."""
        return batch_norm(
            features, self.running_mean, self.running_var, self.weight, self.bias, False, 0.0, self.eps
        )

    def train(self, mode: bool = True) -> FrozenBatchNorm:
        """Stays in evaluation mode; what layers it holds, such as an activation, take the mode."""
        for child in self.children():
            child.train(mode)
        return self

    def reset_running_stats(self) -> None:
        """Keeps the running statistics."""


class _FrozenSubclass(FrozenBatchNorm):
    """A layer of another kind, such as timm's with an activation, which goes on as in evaluation."""

    kind: type[_BatchNorm]

    def extra_repr(self) -> str:
        return f"{self.kind.__name__}, {super().extra_repr()}"

    def forward(self, *inputs: Tensor) -> Tensor:
        """Returns what a layer of that kind with this one's weights returns in evaluation mode."""
        layer = self.kind.__new__(self.kind)
        layer.__dict__.update(self.__dict__, training=False)
        output: Tensor = self.kind.forward(layer, *inputs)
        return output

    def __prepare_scriptable__(self) -> nn.Module:
        """Refuses what ``torch.jit.script`` asks for: a script would have a mode, and would thaw."""
        raise TypeError(
            f"frozen batch normalization of class {self.kind.__name__} cannot be scripted, as it runs that "
            "class's own code in evaluation mode: call torch.jit.trace(model, images)"
        )


def freeze(layer: _BatchNorm) -> None:
    """Makes a layer one that is frozen, in place."""
    kind = type(layer)
    layer.training = False
    if kind in _OF_TORCH:
        layer.__class__ = FrozenBatchNorm  # type: ignore[assignment]
    else:
        layer.__dict__["kind"] = kind
        layer.__class__ = _FrozenSubclass  # type: ignore[assignment]
