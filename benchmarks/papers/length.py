"""How long a run is: an epoch is a pass over the training set, as many batches as it fills."""

from __future__ import annotations

import math
from dataclasses import dataclass

from benchmarks.engine.trial import at_most
from benchmarks.papers.settings import Settings


@dataclass(frozen=True)
class Length:
    """The lengths of a run's two stages: the new layers alone, then all layers.

    Attributes:
        steps_per_epoch: iterations of a full epoch.
        warmup_epochs: epochs of the first stage.
        main_steps: iterations of the second.
    """

    steps_per_epoch: int
    warmup_epochs: int
    main_steps: int

    @property
    def epochs(self) -> int:
        return self.warmup_epochs + math.ceil(self.main_steps / self.steps_per_epoch)

    @property
    def steps(self) -> int:
        return self.warmup_epochs * self.steps_per_epoch + self.main_steps

    def steps_in(self, epoch: int) -> int:
        """Iterations of an epoch, counted from 0; the last one may be cut short."""
        return min(self.steps_per_epoch, self.steps - epoch * self.steps_per_epoch)


def run_length(settings: Settings, batches_per_epoch: int) -> Length:
    steps = at_most(min(batches_per_epoch, settings.steps_per_epoch or batches_per_epoch))
    main_steps = at_most(settings.iterations or settings.epochs * steps)
    return Length(steps, at_most(settings.warmup_epochs), main_steps)
