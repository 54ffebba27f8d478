"""RBR, on blocks with the attributes of timm's and torchvision's, and on timm's and torchvision's own."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import relu

from pml_xbn.heads import remove_last_bn_relu

WIDTH = 4


class TimmBlock(nn.Module):
    """The attributes and the order of timm's BasicBlock (two convolutions) and Bottleneck (three)."""

    def __init__(self, num_convs: int, downsample: nn.Module | None = None) -> None:
        super().__init__()
        self.num_convs = num_convs
        for i in range(1, num_convs + 1):
            setattr(self, f"conv{i}", nn.Conv2d(WIDTH, WIDTH, 3, padding=1, bias=False))
            setattr(self, f"bn{i}", nn.BatchNorm2d(WIDTH))
            setattr(self, f"act{i}", nn.ReLU(inplace=True))
        self.drop_block, self.aa, self.se, self.drop_path = nn.Identity(), nn.Identity(), None, None
        self.downsample = downsample

    def forward(self, x: Tensor) -> Tensor:
        shortcut = x if self.downsample is None else self.downsample(x)
        for i in range(1, self.num_convs + 1):
            x = getattr(self, f"bn{i}")(getattr(self, f"conv{i}")(x))
            if i == self.num_convs:
                x += shortcut
            x = getattr(self, f"act{i}")(x)
        return x


class TorchvisionBlock(nn.Module):
    """The attributes and the order of torchvision's BasicBlock and Bottleneck, with their one ReLU."""

    def __init__(self, num_convs: int, downsample: nn.Module | None = None) -> None:
        super().__init__()
        self.num_convs = num_convs
        for i in range(1, num_convs + 1):
            setattr(self, f"conv{i}", nn.Conv2d(WIDTH, WIDTH, 3, padding=1, bias=False))
            setattr(self, f"bn{i}", nn.BatchNorm2d(WIDTH))
        self.relu = nn.ReLU(inplace=True)
        self.downsample = downsample

    def forward(self, x: Tensor) -> Tensor:
        shortcut = x if self.downsample is None else self.downsample(x)
        for i in range(1, self.num_convs + 1):
            x = getattr(self, f"bn{i}")(getattr(self, f"conv{i}")(x))
            if i == self.num_convs:
                x += shortcut
            x = self.relu(x)
        return x


class Net(nn.Module):
    def __init__(self, block: type[nn.Module], num_convs: int, num_blocks: int = 2) -> None:
        super().__init__()
        shortcut = nn.Sequential(nn.Conv2d(WIDTH, WIDTH, 1), nn.BatchNorm2d(WIDTH))
        rest = [block(num_convs) for _ in range(num_blocks - 1)]
        self.layer4 = nn.Sequential(block(num_convs, shortcut), *rest)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer4(x)


def without_last_bn_relu(blocks: nn.Sequential, num_convs: int, x: Tensor) -> Tensor:
    """The last stage layer by layer, with neither the last BN nor the last ReLU."""
    for number, block in enumerate(blocks):
        is_last = number == len(blocks) - 1
        shortcut = x if block.downsample is None else block.downsample(x)
        for i in range(1, num_convs + 1):
            x = getattr(block, f"conv{i}")(x)
            if i < num_convs:
                x = relu(getattr(block, f"bn{i}")(x))
            elif is_last:
                x = x + shortcut
            else:
                x = relu(getattr(block, f"bn{i}")(x) + shortcut)
    return x


def randomized(model: nn.Module) -> nn.Module:
    """With BNs that are no identity, and that do not depend on the batch."""
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            nn.init.normal_(module.weight, 1.0, 0.3)
            nn.init.normal_(module.bias)
            nn.init.normal_(module.running_mean)
            nn.init.uniform_(module.running_var, 0.5, 2.0)
    return model.eval()


@pytest.fixture(params=[TimmBlock, TorchvisionBlock], ids=["timm", "torchvision"])
def block(request: pytest.FixtureRequest) -> type[nn.Module]:
    return request.param


@pytest.mark.parametrize("num_blocks", [1, 3])
@pytest.mark.parametrize("num_convs", [2, 3])
def test_the_rest_computes_what_it_did(
    block: type[nn.Module], num_convs: int, num_blocks: int, device: torch.device
) -> None:
    model = randomized(Net(block, num_convs, num_blocks)).to(device).double()
    x = torch.randn(2, WIDTH, 5, 5, device=device, dtype=torch.float64)
    before = copy.deepcopy(model)
    assert (model(x.clone()) >= 0).all()

    assert remove_last_bn_relu(model) is model
    out = model(x.clone())
    torch.testing.assert_close(out, without_last_bn_relu(before.layer4, num_convs, x))
    assert (out < 0).any()


@pytest.mark.parametrize("num_convs", [2, 3])
def test_only_the_last_bns_state_is_gone(block: type[nn.Module], num_convs: int) -> None:
    model = Net(block, num_convs)
    before = set(model.state_dict())
    gone = before - set(remove_last_bn_relu(model).state_dict())
    parts = ("weight", "bias", "running_mean", "running_var", "num_batches_tracked")
    assert gone == {f"layer4.1.bn{num_convs}.{part}" for part in parts}
    assert set(model.state_dict()) < before


def test_twice_is_once(block: type[nn.Module]) -> None:
    model = remove_last_bn_relu(randomized(Net(block, 3)))
    x = torch.randn(2, WIDTH, 5, 5)
    expected = model(x.clone())
    assert torch.equal(remove_last_bn_relu(model)(x.clone()), expected)


def test_copies_and_saved_models_stay_without(block: type[nn.Module]) -> None:
    model = remove_last_bn_relu(randomized(Net(block, 3)))
    x = torch.randn(2, WIDTH, 5, 5)
    for copied in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert torch.equal(copied(x.clone()), model(x.clone()))


def test_other_bns_may_be_exchanged(block: type[nn.Module]) -> None:
    model = remove_last_bn_relu(randomized(Net(block, 3)))
    x = torch.randn(2, WIDTH, 5, 5)
    expected = model(x.clone())
    exchanged = nn.SyncBatchNorm.convert_sync_batchnorm(model).eval()
    assert any(isinstance(module, nn.SyncBatchNorm) for module in exchanged.modules())
    torch.testing.assert_close(exchanged(x.clone()), expected)


def test_it_trains(block: type[nn.Module], device: torch.device) -> None:
    model = remove_last_bn_relu(Net(block, 3)).to(device).train()
    model(torch.randn(2, WIDTH, 5, 5, device=device)).square().sum().backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in model.parameters())


class SplitBlock(nn.Module):
    """With one ReLU and layers of its own between, as Res2Net's."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.bn1, self.relu = nn.Conv2d(4, 4, 1), nn.BatchNorm2d(4), nn.ReLU()
        self.convs, self.bns = nn.ModuleList(), nn.ModuleList()
        self.conv3, self.bn3 = nn.Conv2d(4, 4, 1), nn.BatchNorm2d(4)


class Unsupported(nn.Module):
    def __init__(self, layer4: Any = None) -> None:
        super().__init__()
        if layer4 is not None:
            self.layer4 = layer4


@pytest.mark.parametrize(
    ("layer4", "message"),
    [
        (None, "Unsupported has no blocks in layer4: pass a ResNet of timm or torchvision"),
        (nn.Sequential(), "Unsupported has no blocks in layer4"),
        (nn.Conv2d(4, 4, 1), "Unsupported has no blocks in layer4"),
        (nn.Sequential(SplitBlock()), "Unsupported ends in SplitBlock, with layers .*'bns'.*: pass a ResNet"),
        (nn.Sequential(nn.Sequential(nn.ReLU())), "Unsupported ends in Sequential"),
    ],
)
def test_an_unsupported_model_is_named_and_left_alone(layer4: Any, message: str) -> None:
    model = Unsupported(layer4)
    before = repr(model)
    with pytest.raises(TypeError, match=message):
        remove_last_bn_relu(model)
    assert repr(model) == before


def imported(name: str) -> Any:
    """The module; a build of torchvision that does not fit torch raises a RuntimeError."""
    try:
        return pytest.importorskip(name)
    except RuntimeError as error:
        pytest.skip(f"{name} cannot be imported: {error}")


def timms(name: str) -> Callable[[], nn.Module]:
    return lambda: imported("timm").create_model(name, num_classes=0, global_pool="")


def torchvisions(name: str) -> Callable[[], nn.Module]:
    def build() -> nn.Module:
        model = getattr(imported("torchvision").models, name)()
        stages = (model.layer1, model.layer2, model.layer3, model.layer4)
        rest = nn.Sequential(model.conv1, model.bn1, model.relu, model.maxpool, *stages)
        rest.layer1, rest.layer2, rest.layer3, rest.layer4 = stages
        return model

    return build


@pytest.mark.parametrize(
    ("build", "num_convs"),
    [
        pytest.param(timms("resnet18"), 2, id="timm resnet18"),
        pytest.param(timms("resnet50"), 3, id="timm resnet50"),
        pytest.param(timms("resnetblur18"), 2, id="timm resnetblur18"),
        pytest.param(timms("seresnet50"), 3, id="timm seresnet50"),
        pytest.param(torchvisions("resnet18"), 2, id="torchvision resnet18"),
        pytest.param(torchvisions("resnet50"), 3, id="torchvision resnet50"),
    ],
)
def test_library_models(build: Callable[[], nn.Module], num_convs: int) -> None:
    model = randomized(build())
    block = model.layer4[-1]
    seen: dict[str, Tensor] = {}
    last_conv = getattr(block, f"conv{num_convs}")
    # What the branch adds to the shortcut, before and after.
    block.register_forward_hook(
        lambda _, inputs, output: seen.update(x=inputs[0].clone(), out=output.clone())
    )
    last_conv.register_forward_hook(lambda _, __, output: seen.update(conv=output.clone()))
    image = torch.randn(1, 3, 64, 64)
    with torch.no_grad():
        model(image)
        before = dict(seen)
        assert remove_last_bn_relu(model) is model
        model(image)
        branch = seen["conv"] if getattr(block, "se", None) is None else block.se(seen["conv"])
    # Up to the last convolution nothing has changed; after it nothing but the sum is left.
    torch.testing.assert_close(seen["x"], before["x"])
    torch.testing.assert_close(seen["conv"], before["conv"])
    torch.testing.assert_close(seen["out"], seen["x"] + branch)
    assert (seen["out"] < 0).any()
    assert (before["out"] >= 0).all()


@pytest.mark.parametrize("name", ["res2net50_26w_4s", "resnetv2_50", "vit_tiny_patch16_224"])
def test_other_models_of_timm_are_refused(name: str) -> None:
    model = imported("timm").create_model(name, num_classes=0)
    with pytest.raises(TypeError, match=f"^{type(model).__name__} "):
        remove_last_bn_relu(model)
