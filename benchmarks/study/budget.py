"""How long and with what a run trains, and the name that says so in lists and CSV files."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

_LOSSES, _TRAINED = ("multi-similarity",), ("last three stages", "whole network")
_KEPT_BACK = "classes kept back"


@dataclass(frozen=True)
class Budget:
    """Training on a data set for a number of epochs.

    Attributes:
        data: the name of the data set, a key of `data_sets.DATA_SETS`.
        epochs: the number of epochs; at 60 and 85 % of them the learning rate falls.
        side: of the images in pixels.
        rate: factor on the learning rate.
        loss: None for the data set's own, SupCon; "multi-similarity" with its miner.
        trained: what trains of a pretrained network; None for its last stage.
        is_kept_back: whether the classes that are scored are those that were kept back.
    """

    data: str
    epochs: int
    side: int = 32
    rate: float = 1.0
    loss: Literal["multi-similarity"] | None = None
    trained: Literal["last three stages", "whole network"] | None = None
    is_kept_back: bool = False

    def __str__(self) -> str:
        """The regime's name, which `from_name` reads."""
        words = [self.data, f"{self.epochs} epochs"]
        words += [f"{self.side} px"] * (self.side != 32) + [f"rate x {self.rate:g}"] * (self.rate != 1)
        words += [word for word in (self.loss, self.trained) if word] + [_KEPT_BACK] * self.is_kept_back
        return ", ".join(words)

    @classmethod
    def from_name(cls, name: str) -> Budget:
        """Returns the budget that has this name. Whether there is such a data set is not asked here."""
        data, epochs, *words = name.split(", ") if ", " in name else (name, "")
        values: dict[str, Any] = {"is_kept_back": _KEPT_BACK in words}
        for word in words:
            if word.endswith(" px"):
                values["side"] = int(word.removesuffix(" px"))
            elif word.startswith("rate x "):
                values["rate"] = float(word.removeprefix("rate x "))
            elif word in _LOSSES:
                values["loss"] = word
            elif word in _TRAINED:
                values["trained"] = word
        count = epochs.removesuffix(" epochs")
        if not count.isdecimal() or str(budget := cls(data, int(count), **values)) != name:
            raise ValueError(
                f"regime is {name!r}; a budget is named as {str(Budget('pretrained', 16, rate=0.1))!r}"
            )
        return budget

    @property
    def is_pretrained(self) -> bool:
        return self.data.startswith("pretrained")
