"""A trained network with all that it takes to embed images outside of training."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import normalize as unit_length
from torch.utils.data import DataLoader, Dataset
from tqdm import tqdm

from .._arithmetic import at_least_float32
from .._checks import check_integer
from .._pillow import import_pillow
from .image_files import check_bits, in_rgb, open_image

if TYPE_CHECKING:
    from PIL.Image import Image


class Encoder(nn.Module):
    """Embeds images as they come: files, Pillow's images or tensors of bytes, of any size.

    Training, evaluation and search have to prepare images alike, and compare embeddings as training did.
    Otherwise the search finds less than the training promised. An encoder does both. It crops the middle of
    an image to a square, scales it to ``size`` and its colours by ``mean`` and ``std``, and returns
    embeddings of unit length, whose product is the cosine of PML's losses. :func:`load_encoder` returns the
    encoder of a run.

    Args:
        network: takes images ``(b, 3, size, size)`` and returns embeddings ``(b, d)``.
        size: of the images in pixels.
        mean: of the three colours, which is subtracted; default that of ImageNet.
        std: of the three colours, by which they are divided; default that of ImageNet.
        interpolation: one of Pillow's, such as ``"bilinear"``.
        classes: from the name of a part of the data to the names of its classes.

    Attributes:
        network, size, mean, std, interpolation, classes: the arguments.

    Raises:
        ValueError: a ``size`` below 1, or not three colours.

    Example:
        >>> network = nn.Sequential(nn.AdaptiveAvgPool2d(4), nn.Flatten(), nn.Linear(48, 16))
        >>> encoder = Encoder(network, size=32)
        >>> photos = [torch.randint(256, (3, 40, 60), dtype=torch.uint8) for _ in range(5)]
        >>> embeddings = encoder(photos)
        >>> embeddings.shape, embeddings.norm(dim=1).allclose(torch.ones(5))
        (torch.Size([5, 16]), True)
    """

    def __init__(
        self,
        network: nn.Module,
        size: int,
        *,
        mean: Sequence[float] = (0.485, 0.456, 0.406),
        std: Sequence[float] = (0.229, 0.224, 0.225),
        interpolation: str = "bicubic",
        classes: Mapping[str, Sequence[str]] | None = None,
    ) -> None:
        super().__init__()
        check_integer("size", size, at_least=1)
        if len(mean) != 3 or len(std) != 3:
            raise ValueError(f"mean={mean} and std={std}: pass three numbers each, one a colour")
        self.network, self.size, self.interpolation = network, size, interpolation
        self.mean, self.std = tuple(mean), tuple(std)
        self.classes = {name: list(names) for name, names in (classes or {}).items()}
        self.training = network.training

    def extra_repr(self) -> str:
        return f"size={self.size}"

    def prepare(self, image: str | Path | Image | Tensor) -> Tensor:
        """Returns an image as the network takes it, ``(3, size, size)``.

        Args:
            image: a file, an image of Pillow, or bytes ``(3, height, width)``.

        Raises:
            FileNotFoundError: there is no such file.
            ValueError: the file is no whole image, or the tensor no bytes of three colours.
        """
        pillow = import_pillow()
        from PIL import ImageOps

        picture: Any = image
        if isinstance(image, Tensor):
            if image.dtype != torch.uint8 or image.ndim != 3 or len(image) != 3:
                raise ValueError(
                    f"an image is a tensor of {image.dtype} and shape {tuple(image.shape)}: pass uint8, "
                    "(3, height, width), as decoders give it"
                )
            picture = pillow.fromarray(image.permute(1, 2, 0).cpu().numpy())
        elif isinstance(image, (str, Path)):
            picture = open_image(image)
        check_bits(picture.mode)
        method = pillow.Resampling[self.interpolation.upper()]
        square = ImageOps.fit(in_rgb(picture), (self.size, self.size), method)
        pixels = torch.from_numpy(np.array(square)).permute(2, 0, 1) / 255
        mean, std = (pixels.new_tensor(colours).view(3, 1, 1) for colours in (self.mean, self.std))
        return (pixels - mean) / std

    def forward(self, images: Sequence[str | Path | Image | Tensor]) -> Tensor:
        """Returns the embeddings of images, ``(b, d)``, of unit length, on the device of the network.

        Args:
            images: see :meth:`prepare`; each may be of another size.

        Raises:
            TypeError: a single image or path: pass a list.
            ValueError: an image that :meth:`prepare` refuses.
        """
        _check_is_list(images)
        return self._embed(torch.stack([self.prepare(image) for image in images]))

    def _embed(self, batch: Tensor) -> Tensor:
        """Returns the embeddings of prepared images, on the device and in the dtype of the network."""
        first = next((x for x in self.network.parameters() if x.is_floating_point()), None)
        return unit_length(at_least_float32(self.network(batch if first is None else batch.to(first))))

    @torch.no_grad()
    def embed(
        self, images: Sequence[str | Path], *, batch_size: int = 64, workers: int = 0, title: str = ""
    ) -> Tensor:
        """Returns the embeddings of many files, ``(n, d)``, on the CPU.

        The network is in evaluation mode meanwhile, and no gradients are kept.

        Args:
            images: files, or what else :meth:`prepare` takes.
            batch_size: images that are in the network at a time.
            workers: processes that open images; 0: this one.
            title: of a progress bar; none without.

        Raises:
            FileNotFoundError: a file is missing.
            TypeError: one path in place of a list.
            ValueError: no image, or a file that is no whole image.
        """
        _check_is_list(images)
        images = list(images)
        if not images:
            raise ValueError("there is no image to embed: pass at least one")
        modes = {module: module.training for module in self.modules()}
        self.eval()
        try:
            loader = DataLoader(_Prepared(self, images), batch_size=batch_size, num_workers=workers)
            bar = tqdm(loader, title, leave=False, disable=None if title else True)
            return torch.cat([self._embed(batch).cpu() for batch in bar])
        finally:
            for module, is_training in modes.items():  # some may be in evaluation mode for good
                module.training = is_training


def _check_is_list(images: object) -> None:
    if isinstance(images, (str, Path)):
        raise TypeError(f"images is the path {images}: pass a list of images, [{str(images)!r}]")


class _Prepared(Dataset[Tensor]):
    """Images as the network takes them; processes that open images get no copy of the network."""

    def __init__(self, encoder: Encoder, images: Sequence[Any]) -> None:
        options: dict[str, Any] = {"mean": encoder.mean, "std": encoder.std}
        self._encoder = Encoder(nn.Identity(), encoder.size, interpolation=encoder.interpolation, **options)
        self._images = images

    def __len__(self) -> int:
        return len(self._images)

    def __getitem__(self, index: int) -> Tensor:
        return self._encoder.prepare(self._images[index])


def load_encoder(run: str | Path) -> Encoder:
    """Returns the encoder of a run of ``examples/fine_tune.py``, on the CPU, in evaluation mode.

    Its gradients are off. ``encoder.classes`` has the names of the classes that trained (``"train"``), that
    chose the epoch (``"choose"``) and that measured (``"measure"``).

    Args:
        run: the folder of a run, whose ``best.pt`` is taken, or such a file. The file is a dictionary of
            ``state_dict`` and ``encoder``; the latter has ``backbone`` and ``embedding_size``, from which
            timm builds the network, and the arguments of :class:`Encoder`.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: it is of something else.
        ImportError: timm is not installed.
    """
    path = Path(run)
    path = path / "best.pt" if path.is_dir() else path
    if not path.is_file():
        raise FileNotFoundError(f"there is no {path}: pass the folder of a run of examples/fine_tune.py")
    try:
        import timm
    except ImportError as error:
        raise ImportError(
            f'the network is built by timm ({error}); install it with: pip install "pml_xbn[examples]"'
        ) from error
    try:
        saved = torch.load(path, map_location="cpu", weights_only=True)
        state, settings = saved["state_dict"], dict(saved["encoder"])
        network = timm.create_model(settings.pop("backbone"), num_classes=settings.pop("embedding_size"))
        if hasattr(network, "set_input_size"):  # transformers, which hold a parameter for every patch
            network.set_input_size(img_size=settings["size"])
        network.load_state_dict(state)
        encoder = Encoder(network, **settings)
    except Exception as error:  # of pickle, zipfile, torch or timm, or for want of a key
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise ValueError(
            f"{path} is not the best.pt of a run ({reason}): pass the folder of a run of "
            "examples/fine_tune.py"
        ) from error
    return encoder.requires_grad_(False).eval()
