"""From an image to the model's input, in training and in testing."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import interpolate

from benchmarks.engine.distortion import distort
from benchmarks.papers.settings import CHARACTERS, Settings

Transform = Callable[[Any], Tensor]

_RESIZE = 256 / 224  # of the papers that resize to 256 and crop 224


def image_size(settings: Settings) -> int:
    if settings.image_size is not None:
        return settings.image_size
    return 32 if settings.dataset in CHARACTERS else 224


def build_transforms(settings: Settings, data_config: dict[str, Any]) -> tuple[Transform, Transform]:
    """Returns the transforms of training and of testing, with what timm says of the backbone's input."""
    size, mean, std = image_size(settings), data_config["mean"], data_config["std"]
    if settings.dataset in CHARACTERS:
        prepared = partial(_glyph_input, size=size, mean=mean, std=std)
        return partial(_distorted_glyph_input, prepare=prepared), prepared
    if settings.augmentation == "timm":
        return _timm_transforms(settings, size, data_config)
    return _crop_transforms(settings, size, mean, std)


def _timm_transforms(
    settings: Settings, size: int, data_config: dict[str, Any]
) -> tuple[Transform, Transform]:
    """Returns timm's transforms: resized crop, mirroring, RandAugment, erasing; a centre crop in tests."""
    from timm.data import create_transform

    known = {"input_size": (3, size, size), "mean": data_config["mean"], "std": data_config["std"]}
    try:
        train = create_transform(
            **known,
            is_training=True,
            auto_augment=None if settings.rand_augment == "none" else settings.rand_augment,
            re_prob=settings.random_erasing,
            re_mode="pixel",
            interpolation="random",
        )
    except (AssertionError, ValueError, KeyError) as error:
        raise ValueError(f"--rand-augment is {settings.rand_augment!r}, unknown to timm: {error}") from error
    test = create_transform(
        **known, interpolation=data_config["interpolation"], crop_pct=data_config["crop_pct"]
    )
    return train, test


def _crop_transforms(settings: Settings, size: int, mean: Any, std: Any) -> tuple[Transform, Transform]:
    """Returns transforms that resize to 256 and crop 224, in training at random (XBM, NormSoftmax §4.1).

    The resized crop is that of Boudiaf et al. (2020), colours first.
    """
    from torchvision import transforms

    larger = settings.resize or round(size * _RESIZE)
    resize = transforms.Resize((larger, larger))
    finish = [transforms.ToTensor(), transforms.Normalize(mean, std)]
    crop = [transforms.RandomCrop(size)]
    if settings.augmentation == "resized-crop":
        ratios = (1 / settings.crop_ratio, settings.crop_ratio)
        jitter = transforms.ColorJitter(*[settings.color_jitter] * 3, hue=settings.hue_jitter)
        crop = [jitter, transforms.RandomResizedCrop(size, (settings.crop_scale, 1), ratios)]
    train = [resize, *crop, transforms.RandomHorizontalFlip(), *finish]
    test = [resize, transforms.CenterCrop(size), *finish]
    return transforms.Compose(train), transforms.Compose(test)


def _distorted_glyph_input(image: Tensor, prepare: Transform) -> Tensor:
    """Maps (1, H, W), uint8, to the input, distorted with torch's default generator."""
    return prepare(distort(image[None], torch.default_generator)[0])


def _glyph_input(image: Tensor, size: int, mean: Any, std: Any) -> Tensor:
    """Maps (1, H, W), float with ink about 1, to (3, size, size), normalised as photographs are."""
    if image.shape[-1] != size:
        image = interpolate(image[None], size=(size, size), mode="bilinear", antialias=True)[0]
    return (image - torch.tensor(mean).view(3, 1, 1)) / torch.tensor(std).view(3, 1, 1)
