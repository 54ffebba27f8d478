"""What the demo is run with."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from benchmarks.engine import settings as common
from benchmarks.engine.methods import METHODS
from benchmarks.engine.settings import natural, positive, setting


@dataclass(frozen=True)
class Settings:
    """Everything that a result depends on, and where it goes.

    Attributes:
        images_per_class: images of each class in a batch.
        embedding_size: length of an embedding.
        learning_rate: of AdamW in the first epoch.
        decay: factor on the learning rate after every second epoch.
        drift_every: steps from one measurement of feature drift to the next.
        norm: normalization within the network, "batch" or "group".
    """

    methods: tuple[str, ...] = setting(
        ("no-xbm", "xbm", "xbn", "axbn"), "what is compared", tuple, choices=tuple(METHODS)
    )
    epochs: int = setting(3, "epochs with memory", positive)
    warmup_epochs: int = setting(1, "shared epochs without memory", positive)
    batch_size: int = setting(16, "images per step, a multiple of 4", int)
    memory_ratio: float = setting(0.03, "rows in memory as a share of the training images", float)
    classes: int | None = setting(None, "train and test on so many classes each", positive)
    seed: int = common.seed()
    diagnostics_every: int = common.diagnostics_every()
    device: str = common.device()
    output: Path = common.output(Path("runs/glyphs_demo"))
    checkpoint: int = setting(
        0,
        "save the state every so many steps too, not after epochs alone",
        natural,
        affects_result=False,
    )
    resume: bool = common.resume()

    images_per_class: int = 4
    embedding_size: int = 128
    learning_rate: float = 1e-3
    decay: float = 0.33
    drift_every: int = 20
    norm: str = "batch"
