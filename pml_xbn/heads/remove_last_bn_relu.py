"""RBR: a residual network without its last batch normalization and ReLU."""

from __future__ import annotations

from typing import TypeVar

from torch import Tensor, nn
from torch.nn.functional import relu

Model = TypeVar("Model", bound=nn.Module)


def remove_last_bn_relu(model: Model) -> Model:
    """Takes the last BN and the last ReLU out of a ResNet, for a head that begins with a BN of its own.

    The paper calls it RBR (Stop-Gradient Softmax Loss for Deep Metric Learning, section Remove the Last
    BN-ReLU): where BN, ReLU and BN follow each other the first two add nothing, and may remove information
    that retrieval could use. Afterwards the residual branch of the last block ends with its convolution, and
    the block with its sum. A BN in the shortcut stays.

    It knows the basic and bottleneck blocks of timm's ResNets, and those of torchvision's, where one ReLU
    serves the whole block and stays after the other BNs. Load weights first, because the ``state_dict`` no
    longer has the keys of the removed BN. A second call changes nothing.

    Args:
        model: the network, which is changed in place.

    Returns:
        The model.

    Raises:
        TypeError: the last block is of another kind. The model is then as it was.

    Example:
        >>> class Block(nn.Module):  # as timm's
        ...     def __init__(self):
        ...         super().__init__()
        ...         self.conv1, self.bn1, self.act1 = nn.Conv2d(4, 4, 1), nn.BatchNorm2d(4), nn.ReLU()
        ...         self.conv2, self.bn2, self.act2 = nn.Conv2d(4, 4, 1), nn.BatchNorm2d(4), nn.ReLU()
        >>> model = nn.Module()
        >>> model.layer4 = nn.Sequential(Block(), Block())
        >>> block = remove_last_bn_relu(model).layer4[-1]
        >>> block.bn2, block.act2
        (Identity(), Identity())
    """
    block = _last_block(model)
    layers = {name for name, _ in block.named_children()} - {"downsample"}
    last = 3 if "bn3" in layers else 2
    torchvision_layers = {"relu"} | {f"{kind}{i + 1}" for kind in ("conv", "bn") for i in range(last)}
    if {f"bn{last}", f"act{last}"} <= layers:
        setattr(block, f"act{last}", nn.Identity())
    elif layers == torchvision_layers:
        for i in range(2, last + 1):  # at convolutions: BNs may be exchanged, as for SyncBatchNorm
            getattr(block, f"conv{i}").register_forward_pre_hook(_rectify)
        block.relu = nn.Identity()
    else:
        raise TypeError(
            f"{type(model).__name__} ends in {type(block).__name__}, with layers {sorted(layers)}: pass a "
            "ResNet of timm or torchvision, whose last block ends in bn2 and act2, bn3 and act3, or a "
            "relu that it shares"
        )
    setattr(block, f"bn{last}", nn.Identity())
    return model


def _last_block(model: nn.Module) -> nn.Module:
    stage = getattr(model, "layer4", None)
    if not isinstance(stage, nn.Sequential) or len(stage) == 0:
        raise TypeError(
            f"{type(model).__name__} has no blocks in layer4: pass a ResNet of timm or torchvision, and not "
            "what wraps it"
        )
    block: nn.Module = stage[-1]
    return block


def _rectify(module: nn.Module, inputs: tuple[Tensor]) -> Tensor:
    return relu(inputs[0])
