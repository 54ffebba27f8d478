"""Models drawn at random from what models do that a second pass must not see."""

from __future__ import annotations

import gc
import weakref
from collections import UserDict
from dataclasses import asdict, dataclass, field
from typing import Any

import torch
from hypothesis import strategies as st
from torch import Tensor, nn


@dataclass(frozen=True)
class Traits:
    """What a drawn model does."""

    writes_to_input: bool
    writes_into_dictionary: bool
    shares_layers: bool
    shares_buffer: bool
    has_batch_norm: bool
    has_buffer_of_none: bool
    registers_late: bool
    drops: bool
    takes: str
    returns: str

    @property
    def sees_parts(self) -> bool:
        """Whether the embeddings of a batch are others in parts, which they are without GradCache too."""
        has_statistics = self.has_batch_norm or self.has_buffer_of_none
        return has_statistics or self.shares_buffer or self.registers_late or self.drops


FORMS = ["tensors", "names", "dictionary", "encoding", "pair", "dataclass"]
RETURNS = ["tensor", "dictionary", "pair", "dataclass", "its dictionary"]


def drawn_traits(takes: list[str] = FORMS, returns: list[str] = RETURNS) -> st.SearchStrategy[Traits]:
    flags = dict.fromkeys(name for name in Traits.__annotations__ if name not in ("takes", "returns"))
    return st.builds(
        Traits,
        **{name: st.booleans() for name in flags},
        takes=st.sampled_from(takes),
        returns=st.sampled_from(returns),
    )


class Encoding(UserDict):
    """A dictionary whose values are attributes too, as Hugging Face's tokenizers return it."""

    def __getattr__(self, name: str) -> Any:
        try:
            return self.__dict__["data"][name]
        except KeyError:
            raise AttributeError(name) from None


@dataclass(frozen=True)
class Batch:
    images: Tensor
    mask: Tensor
    prompt_length: Tensor
    scale: Tensor
    modality: str
    names: list[str] = field(default_factory=list)


@dataclass
class Output:
    embeddings: Tensor
    prompt_length: Tensor
    nothing: None = None


class DrawnModel(nn.Module):
    """Embeds images of six features in four dimensions."""

    def __init__(self, traits: Traits) -> None:
        super().__init__()
        self.traits, self.seen = traits, []
        self.first, self.last = nn.Linear(6, 8), nn.Linear(8, 4)
        if traits.has_batch_norm:
            self.norm = nn.BatchNorm1d(8)
        if traits.shares_layers:
            self.layers = nn.Sequential(self.first, *([self.norm] if traits.has_batch_norm else []))
        self.dropout = nn.Dropout(0.3)
        self.double()
        if traits.shares_buffer:
            passes = torch.ones(())
            for layer in (self.first, self.last):
                layer.register_buffer("passes", passes)
        self.register_buffer("mean", None)
        self.register_buffer("unused", None)

    def forward(self, *inputs: Any, **named: Any) -> Any:
        given = self._given(inputs, named)
        images, mask = given["images"], given["mask"]
        if self.traits.writes_to_input:
            images.sub_(0.5).mul_(2)
        x = given.get("normalized", images)
        if self.traits.writes_into_dictionary:
            given["normalized"] = x = x / (1 + x.norm(dim=1, keepdim=True))
        features = self.first(x)
        self.seen.append(weakref.ref(features))
        if self.traits.writes_into_dictionary:
            given["token_embeddings"] = features
        if self.traits.has_batch_norm:
            features = (self.layers[1] if self.traits.shares_layers else self.norm)(features)
        if self.traits.has_buffer_of_none:
            with torch.no_grad():
                now = features.mean(dim=0)
                self.mean = now if self.mean is None else self.mean.lerp(now, 0.1)
            features = features - self.mean
        if self.traits.registers_late:
            if "count" not in self._buffers:
                self.register_buffer("count", features.new_ones(()))
            self.count += 1
            features = features / self.count.clone()
        if self.traits.shares_buffer:
            self.first.passes += 1
            features = features / self.last.passes.clone()
        features = features * mask.mean(dim=1, keepdim=True)
        if self.traits.writes_to_input:
            mask[:, :2] = 0
        if self.traits.drops:
            features = self.dropout(features)
        embeddings = self.last(torch.tanh(features)) * given["scale"] * mask.sum(dim=1, keepdim=True)
        return self._returned(embeddings, given)

    def _given(self, inputs: tuple[Any, ...], named: dict[str, Any]) -> Any:
        """Returns a dictionary of the very tensors that were given: the caller's own, if it is one."""
        if self.traits.takes in ("dictionary", "encoding"):
            (given,) = inputs
            assert not isinstance(given, Encoding) or given.images is given["images"]
            return given
        if self.traits.takes == "dataclass":
            return dict(vars(inputs[0]))
        if self.traits.takes == "pair":
            (images, mask), rest = inputs
            return {"images": images, "mask": mask, **rest}
        if self.traits.takes == "images":
            images, options = inputs[0], {"dtype": torch.float64}
            return {"images": images, "mask": torch.ones(len(images), 3, **options), "scale": 1.0}
        return dict(zip(("images", "mask"), inputs, strict=False)) | named

    def _returned(self, embeddings: Tensor, given: Any) -> Any:
        length = given.get("prompt_length")
        if self.traits.returns == "dictionary":
            return {"embeddings": embeddings, "prompt_length": length, "modality": given["modality"]}
        if self.traits.returns == "pair":
            return embeddings, embeddings.detach().sum(dim=1)
        if self.traits.returns == "dataclass":
            return Output(embeddings, length)
        if self.traits.returns == "its dictionary":
            given["embeddings"] = embeddings
            return given
        return embeddings


def drawn_batch(seed: int, size: int = 12) -> Batch:
    generator = torch.Generator().manual_seed(seed)
    images, mask = (torch.rand(size, n, dtype=torch.float64, generator=generator) + 0.5 for n in (6, 3))
    return Batch(images, mask, torch.tensor([3]), torch.tensor(1.5, dtype=torch.float64), "image", ["a", "b"])


def call(model: nn.Module, batch: Batch, takes: str) -> Any:
    """Calls a model with the batch's own tensors; nothing is copied but the dictionary that holds them."""
    values = {name: getattr(batch, name) for name in Batch.__annotations__}
    if takes in ("dictionary", "encoding"):
        given: Any = Encoding(values) if takes == "encoding" else values
        keys = list(given)
        output = model(given)
        if not isinstance(model, DrawnModel):
            assert list(given) == keys
        return output
    if takes == "dataclass":
        return model(batch)
    if takes == "names":
        return model(**values)
    images, mask = values.pop("images"), values.pop("mask")
    return model((images, mask), values) if takes == "pair" else model(images, mask, **values)


def part_of(batch: Batch, rows: slice) -> Batch:
    """Returns a copy of some rows."""
    return Batch(
        batch.images[rows].clone(),
        batch.mask[rows].clone(),
        *(batch.prompt_length, batch.scale, batch.modality, list(batch.names)),
    )


def embeddings_of(output: Any) -> Tensor:
    if isinstance(output, (dict, UserDict)):
        return output["embeddings"]
    if isinstance(output, tuple):
        return output[0]
    return output.embeddings if isinstance(output, Output) else output


def num_alive(model: DrawnModel) -> int:
    """Returns of how many passes the activations are in memory."""
    if any(reference() is not None for reference in model.seen):  # if only in a cycle, they are gone soon
        gc.collect()
    return sum(reference() is not None for reference in model.seen)


def as_it_was(batch: Batch, before: dict[str, Any]) -> bool:
    """Returns whether a batch holds what ``asdict`` returned of it."""
    now = asdict(batch)
    return all(
        torch.equal(value, now[name]) if isinstance(value, Tensor) else value == now[name]
        for name, value in before.items()
    )
