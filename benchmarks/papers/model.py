"""A backbone, of timm or an Inception, and a head that makes embeddings of its features."""

from __future__ import annotations

from difflib import get_close_matches
from pathlib import Path
from pickle import UnpicklingError
from typing import Any

import torch
from torch import Tensor, nn
from torch.hub import load_state_dict_from_url
from torch.nn.functional import normalize
from torch.nn.modules.batchnorm import _BatchNorm

from benchmarks.papers.inception import INCEPTIONS, InceptionBackbone, build_inception
from benchmarks.papers.settings import Settings
from pml_xbn.heads import MAP_HEADS, make_head, remove_last_bn_relu


class EmbeddingModel(nn.Module):
    """Images (B, 3, H, W) to embeddings (B, d).

    With ``freeze_bn`` the backbone's BN keeps its statistics in training; its scales and biases learn.
    """

    def __init__(
        self,
        backbone: nn.Module,
        head: nn.Module,
        normalized: bool,
        dropout: float = 0.0,
        freeze_bn: bool = False,
    ) -> None:
        super().__init__()
        self.backbone, self.head, self.normalized = backbone, head, normalized
        self.dropout, self.freeze_bn = nn.Dropout(dropout), freeze_bn

    def forward(self, images: Tensor) -> Tensor:
        embeddings: Tensor = self.head(self.backbone(images)).to(images.dtype)
        return self.dropout(normalize(embeddings) if self.normalized else embeddings)

    def train(self, mode: bool = True) -> EmbeddingModel:
        super().train(mode)
        if self.freeze_bn:
            for module in self.backbone.modules():
                if isinstance(module, _BatchNorm):
                    module.eval()
        return self


def build_model(settings: Settings, num_calls: int) -> tuple[EmbeddingModel, dict[str, Any]]:
    """Returns the model, and what timm says of its input: mean, std, interpolation, crop_pct.

    ``num_calls`` are the batches, or parts of batches, that it is trained with in all.
    """
    from timm.data import resolve_data_config

    backbone = _build_backbone(settings)
    if settings.remove_last_bn_relu:
        try:
            remove_last_bn_relu(backbone)
        except TypeError as error:
            raise ValueError(f"--remove-last-bn-relu: {error}") from error
    head = make_head(
        settings.head,
        backbone.num_features,
        settings.embedding_size,
        num_calls=num_calls,
        ideal_batch_size=2 * settings.batch_size,
    )
    if settings.compile is not None:
        backends = torch.compiler.list_backends(exclude_tags=())
        if settings.compile not in backends:
            raise ValueError(f"--compile is {settings.compile!r}; choose one of {', '.join(backends)}")
        backbone.compile(backend=settings.compile)  # in place: the names of its weights stay
    model = EmbeddingModel(backbone, head, settings.normalize, settings.dropout, settings.freeze_bn)
    return model, resolve_data_config({}, model=backbone)


def images_per_norm(settings: Settings, model: EmbeddingModel, shares: int) -> int | None:
    """Returns how many images batch normalization sees in training, or None if the model has none."""
    if not any(isinstance(module, _BatchNorm) and module.training for module in model.modules()):
        return None
    return settings.batch_size // settings.accumulate // shares


def weights_name(settings: Settings) -> str:
    """Returns what the backbone starts from, such as resnet50.a1_in1k; timm has a default tag."""
    import timm

    if not settings.pretrained:
        return f"{settings.backbone}, untrained"
    if settings.weights is not None:
        return f"{settings.backbone} from {settings.weights}"
    config = None if settings.backbone in INCEPTIONS else timm.get_pretrained_cfg(settings.backbone)
    tag = "" if config is None else config.tag
    return f"{settings.backbone.partition('.')[0]}.{tag}" if tag else settings.backbone


def _build_backbone(settings: Settings) -> Any:
    import timm

    name = settings.backbone
    if name not in INCEPTIONS and not timm.is_model(name):
        close = get_close_matches(name, [*timm.list_models(), *INCEPTIONS], n=5)
        raise ValueError(
            f"--backbone is {name!r}, which timm {timm.__version__} does not have; choose one of "
            f"{', '.join(INCEPTIONS)} or timm.list_models(), such as {', '.join(close) or 'resnet50'}"
        )
    if settings.weights is not None and not settings.pretrained:
        raise ValueError(f"--weights is {settings.weights}, beside --no-pretrained; leave out one of them")
    pool: dict[str, str] = {} if settings.pooling is None else {"global_pool": settings.pooling}
    if settings.head in MAP_HEADS:
        if pool:
            raise ValueError(
                f"--pooling is {settings.pooling}, and --head {settings.head} pools by itself; leave out one"
            )
        pool = {"global_pool": ""}
    if name in INCEPTIONS:
        return _build_inception(settings)
    fetched = settings.pretrained and settings.weights is None
    try:
        backbone = timm.create_model(name, fetched, num_classes=0, **pool)
    except OSError as error:
        raise FileNotFoundError(_unreachable(weights_name(settings), _address(name))) from error
    except RuntimeError as error:
        tags = timm.list_models(f"{name.partition('.')[0]}.*", pretrained=True)
        raise ValueError(
            f"--backbone is {name!r}: {error} With weights there are: {', '.join(tags) or 'none'}"
        ) from error
    if settings.weights is not None:
        _load_weights(backbone, name, settings.weights)
    return backbone


def _build_inception(settings: Settings) -> InceptionBackbone:
    name = settings.backbone
    network = build_inception(name)
    if settings.weights is not None:
        _load_weights(network, name, settings.weights)
    elif settings.pretrained:
        try:
            weights = load_state_dict_from_url(INCEPTIONS[name], map_location="cpu", check_hash=True)
        except OSError as error:
            raise FileNotFoundError(_unreachable(name, INCEPTIONS[name])) from error
        # GoogLeNet's file has the classifiers of its training too.
        network.load_state_dict({key: weights[key] for key in network.state_dict() if key in weights})
    pool = nn.AdaptiveMaxPool2d(1) if settings.pooling == "max" else nn.AdaptiveAvgPool2d(1)
    has_maps = settings.head in MAP_HEADS
    return InceptionBackbone(name, network, nn.Identity() if has_maps else nn.Sequential(pool, nn.Flatten()))


def _unreachable(weights: str, address: str) -> str:
    return (
        f"the weights {weights} are not here and cannot be fetched; where there is a "
        f"network, fetch {address} and pass the file as --weights, or pass --no-pretrained"
    )


def _address(name: str) -> str:
    import timm

    config = timm.get_pretrained_cfg(name)
    if config.hf_hub_id:
        return f"https://huggingface.co/{config.hf_hub_id}/resolve/main/model.safetensors"
    return str(config.url)


def _load_weights(backbone: nn.Module, name: str, file: str) -> None:
    """Loads all of the backbone's weights from a file, which may have a classifier too."""
    from timm.models import load_checkpoint

    if not Path(file).is_file():
        raise FileNotFoundError(f"--weights is {file}, and there is no such file")
    try:
        missing = load_checkpoint(backbone, file, strict=False).missing_keys
    except (RuntimeError, UnpicklingError, EOFError) as error:
        raise ValueError(
            f"--weights is {file}, from which {name} cannot load its weights: {error}"
        ) from error
    # Files from before PyTorch 0.4.1 lack these counters.
    missing = [key for key in missing if not key.endswith("num_batches_tracked")]
    if missing:
        raise ValueError(
            f"--weights is {file}, which lacks {len(missing)} weights of {name}, such as {missing[0]}; "
            "pass a file of the same model, as timm or torchvision save it"
        )
