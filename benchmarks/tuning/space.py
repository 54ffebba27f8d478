"""What is tuned, and between which bounds: the same for every method."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from pytorch_metric_learning.distances import CosineSimilarity
from pytorch_metric_learning.losses import ContrastiveLoss, SupConLoss
from pytorch_metric_learning.miners import PairMarginMiner

from benchmarks.engine.randomness import seed_for


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
        batch_loss_weight: of XBN; XBM has 0 and XBM* 1.
    """

    number: int
    loss: str = "supcon"
    memory_share: float = 0.5
    warmup: float = 0.0
    batch_loss_weight: float = 0.0
    temperature: float = 0.1
    positive_margin: float = 1.0
    negative_margin: float = 0.5
    learning_rate: float = 1e-3
    weight_decay: float = 1e-2

    def build_loss(self) -> dict[str, Any]:
        """Returns the loss and its miner, as `GlyphsTask` takes them."""
        if self.loss == "supcon":
            miner = PairMarginMiner(pos_margin=0.2, neg_margin=0.8)
            return {"loss": SupConLoss(temperature=self.temperature), "miner": miner}
        margins = {"pos_margin": self.positive_margin, "neg_margin": self.negative_margin}
        return {"loss": ContrastiveLoss(**margins, distance=CosineSimilarity())}


CHOICES: dict[str, tuple[str | float, ...]] = {
    "loss": ("supcon", "contrastive"),
    "memory_share": (0.05, 0.1, 0.25, 0.5, 1.0),
    "warmup": (0.0, 0.1, 0.2),
    "batch_loss_weight": (0.0, 1.0),
}
RANGES = {
    "temperature": (0.03, 0.3),
    "positive_margin": (0.6, 1.0),
    "negative_margin": (0.2, 0.8),
    "learning_rate": (1e-4, 1e-2),
    "weight_decay": (1e-5, 1e-1),
}
LOGARITHMIC = ("temperature", "learning_rate", "weight_decay")
# The study's own settings, without a warm-up and with one of a fifth of the epochs.
DEFAULTS = (Configuration(0), Configuration(1, warmup=0.2))


def draw(number: int) -> Configuration:
    """Returns the defaults, and from then on what the number alone decides.

    All values are drawn, those too that a method or a loss does not have.
    """
    if number < len(DEFAULTS):
        return DEFAULTS[number]
    numbers = np.random.default_rng(seed_for("tuning", number))
    chosen: dict[str, Any] = {name: values[numbers.integers(len(values))] for name, values in CHOICES.items()}
    for name, (low, high) in RANGES.items():
        share = numbers.random()
        chosen[name] = low * (high / low) ** share if name in LOGARITHMIC else low + (high - low) * share
    return Configuration(number, **chosen)
