"""Every head by name, against a float64 re-computation of what its paper writes."""

from __future__ import annotations

import contextlib

import numpy as np
import pytest
import torch
from differences import gradient

from pml_xbn.heads import HEADS, MAP_HEADS, EmbeddingHead, L2Normalize, make_head

B, C, D = 6, 5, 4


def unit(rows: np.ndarray) -> np.ndarray:
    return np.array([row / np.linalg.norm(row) for row in rows])


def standardized(x: np.ndarray, axis: int) -> np.ndarray:
    """By mean and biased variance, as batch and layer normalization do in training."""
    mean = x.mean(axis=axis, keepdims=True)
    return (x - mean) / np.sqrt(((x - mean) ** 2).mean(axis=axis, keepdims=True) + 1e-5)


def pooled(maps: np.ndarray) -> np.ndarray:
    return (np.maximum(maps, 1e-6) ** 3).mean(axis=(2, 3)) ** (1 / 3)


EXPECTED = {
    "linear": lambda x, w, b: x @ w.T + b,
    "layer-norm": lambda x, w, b: standardized(x, 1) @ w.T,
    "bn": lambda x, w, b: standardized(unit(x @ w.T + b), 0),
    "mbn": lambda x, w, b: standardized(unit(x @ w.T + b), 0),  # its first call is BN's
    "ln": lambda x, w, b: standardized(unit(x @ w.T + b), 1),
    "bn-neck": lambda x, w, b: standardized(x, 0) @ w.T + b,
    "gem": lambda x, w, b: pooled(x) @ w.T + b,
    "gem-bn-neck": lambda x, w, b: standardized(pooled(x), 0) @ w.T + b,
}


def make(name: str, embedding_size: int = D) -> EmbeddingHead:
    return make_head(name, C, embedding_size, num_calls=10 if name == "mbn" else None)


def features_for(name: str, device: torch.device) -> torch.Tensor:
    return torch.rand(B, C, *((3, 2) if name in MAP_HEADS else ()), device=device) + 0.1


def weights_of(head: EmbeddingHead) -> tuple[np.ndarray, np.ndarray]:
    linear = next(layer for layer in head.layers if isinstance(layer, torch.nn.Linear))
    bias = torch.zeros(1) if linear.bias is None else linear.bias
    return linear.weight.detach().double().cpu().numpy(), bias.detach().double().cpu().numpy()


def test_every_head_is_tested() -> None:
    assert set(EXPECTED) == set(HEADS) >= set(MAP_HEADS)


@pytest.mark.parametrize("name", HEADS)
def test_value_and_gradients(name: str, dtype: torch.dtype, device: torch.device) -> None:
    # A head is of float32 or better; in half precision it runs under autocast, which a CPU does in bfloat16.
    is_half = dtype == torch.float16
    head = make(name).to(device, torch.float32 if is_half else dtype)
    features = features_for(name, device).to(torch.bfloat16 if is_half else dtype).requires_grad_()
    autocast = torch.autocast(device.type, dtype=torch.bfloat16) if is_half else contextlib.nullcontext()
    with autocast:
        embeddings = head(features)
    assert embeddings.shape == (B, D)
    factors = torch.randn(B, D, device=device, dtype=torch.float64)
    (embeddings * factors).sum().backward()

    weight, bias = weights_of(head)
    features64, factors64 = features.detach().double().cpu().numpy(), factors.cpu().numpy()
    tolerance = {torch.float16: 0.2, torch.float32: 2e-4, torch.float64: 1e-6}[dtype]
    expected = EXPECTED[name](features64, weight, bias)
    np.testing.assert_allclose(embeddings.detach().double().cpu().numpy(), expected, atol=tolerance)
    if not is_half:
        of_features = gradient(
            lambda x: float((EXPECTED[name](x, weight, bias) * factors64).sum()), features64
        )
        np.testing.assert_allclose(
            features.grad.double().cpu().numpy(), of_features, rtol=10 * tolerance, atol=10 * tolerance
        )


@pytest.mark.parametrize("name", HEADS)
def test_all_parameters_get_a_gradient(name: str, device: torch.device) -> None:
    head = make(name).to(device)
    head(features_for(name, device)).mul(torch.randn(B, D, device=device)).sum().backward()
    for key, parameter in head.named_parameters():
        assert parameter.grad is not None, key
        assert parameter.grad.abs().max() > 0, key


@pytest.mark.parametrize("name", HEADS)
def test_an_image_embeds_alike_in_any_batch_after_training(name: str, device: torch.device) -> None:
    head = make(name).to(device)
    features = features_for(name, device)
    head(features)
    head.eval()
    torch.testing.assert_close(head(features)[:1], head(features[:1]))


def test_layer_norm_on_the_features_and_the_necks_batch_norm_have_no_parameters() -> None:
    linear = {"layers.1.weight", "layers.1.bias"}
    assert {name for name, _ in make("layer-norm").named_parameters()} == {"layers.1.weight"}
    assert {name for name, _ in make("bn-neck").named_parameters()} == linear
    with_pooling = {"layers.0.p", "layers.2.weight", "layers.2.bias"}
    assert {name for name, _ in make("gem-bn-neck").named_parameters()} == with_pooling
    assert make("bn-neck").layers[1].bias.tolist() == [0] * D


@pytest.mark.parametrize(
    ("name", "names"),
    [
        ("bn-neck", ["BatchNorm1d"]),
        ("gem-bn-neck", ["GeMPooling", "BatchNorm1d"]),
        ("layer-norm", ["LayerNorm"]),
    ],
)
def test_features_of_the_embeddings_size_are_normalized_alone(name: str, names: list[str]) -> None:
    assert [type(layer).__name__ for layer in make(name, embedding_size=C).layers] == names


def test_the_ideal_batch_size_reaches_mbn() -> None:
    norm = make_head("mbn", C, D, num_calls=7, ideal_batch_size=32).layers[-1]
    assert (norm.num_calls, norm.ideal_batch_size) == (7, 32)


@pytest.mark.parametrize("name", HEADS)
def test_features_of_another_shape_are_refused(name: str) -> None:
    head = make(name)
    is_map = name in MAP_HEADS
    assert head.takes_maps == is_map
    wrong = [
        torch.ones(B, C) if is_map else torch.ones(B, C, 3, 2),
        features_for(name, torch.device("cpu"))[:, 1:],
    ]
    for features in wrong:
        pool = "''" if is_map else "'avg'"
        with pytest.raises(ValueError, match=rf"features has shape \({B}, .*global_pool={pool}"):
            head(features)


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (("mlp", C, D), "name='mlp': pass one of linear, layer-norm, bn, mbn, ln, bn-neck, gem"),
        (("linear", 0, D), "in_features=0: pass an integer, 1 or more"),
        (("linear", C, -1), "embedding_size=-1"),
        (("mbn", C, D), "num_calls=None: pass the number of calls"),
    ],
)
def test_a_bad_setting_is_named(args: tuple, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make_head(*args)


def test_l2_normalize_leaves_rows_of_zeros(dtype: torch.dtype, device: torch.device) -> None:
    rows = torch.tensor([[0.0, 0.0], [3.0, -4.0]], device=device, dtype=dtype)
    expected = torch.tensor([[0.0, 0.0], [0.6, -0.8]], device=device, dtype=dtype)
    torch.testing.assert_close(L2Normalize()(rows), expected)
