"""What is tuned, and between which bounds: the same for every method."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import optuna
from pytorch_metric_learning.distances import CosineSimilarity
from pytorch_metric_learning.losses import ContrastiveLoss, SupConLoss
from pytorch_metric_learning.miners import PairMarginMiner


@dataclass(frozen=True)
class Configuration:
    """One point of the space.

    Attributes:
        number: of the draw; draws of one number are the same for all methods.
        loss: "supcon", with the demo's PairMarginMiner, or "contrastive", of cosines, without a miner.
        temperature: of SupConLoss.
        positive_margin, negative_margin: similarities of ContrastiveLoss above and below which a pair costs
            nothing.
        learning_rate, weight_decay: of AdamW.
        memory_share: rows in memory as a share of the training images.
        warmup: share of the epochs before the memory is used.
    """

    number: int
    loss: str
    temperature: float
    positive_margin: float
    negative_margin: float
    learning_rate: float
    weight_decay: float
    memory_share: float
    warmup: float

    def build_loss(self) -> dict[str, Any]:
        """The loss and its miner, as `GlyphsTask` takes them."""
        if self.loss == "supcon":
            miner = PairMarginMiner(pos_margin=0.2, neg_margin=0.8)
            return {"loss": SupConLoss(temperature=self.temperature), "miner": miner}
        margins = {"pos_margin": self.positive_margin, "neg_margin": self.negative_margin}
        return {"loss": ContrastiveLoss(**margins, distance=CosineSimilarity())}


LOSSES = ("supcon", "contrastive")
CHOICES: dict[str, tuple[str | float, ...]] = {
    "loss": LOSSES,
    "memory_share": (0.05, 0.1, 0.25, 0.5, 1.0),
    "warmup": (0.0, 0.1, 0.2),
}
RANGES = {
    "temperature": (0.03, 0.3),
    "positive_margin": (0.6, 1.0),
    "negative_margin": (0.2, 0.8),
    "learning_rate": (1e-4, 1e-2),
    "weight_decay": (1e-5, 1e-1),
}
LOGARITHMIC = ("temperature", "learning_rate", "weight_decay")


def draw(trial: optuna.trial.BaseTrial, number: int) -> Configuration:
    """A configuration. All of its values are drawn, those too that a method or loss does not have."""
    chosen: dict[str, Any] = {
        name: trial.suggest_categorical(name, choices) for name, choices in CHOICES.items()
    }
    values: dict[str, Any] = {
        name: trial.suggest_float(name, *bounds, log=name in LOGARITHMIC) for name, bounds in RANGES.items()
    }
    return Configuration(number=number, **chosen, **values)
