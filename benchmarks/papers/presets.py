"""The papers' settings, as far as they differ from the defaults, which are those of the AXBN paper.

They are the flags of ``presets.csv``. Where every value comes from, and which of them no paper states, is in
docs/presets.md.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from benchmarks.engine import command_line
from benchmarks.engine.results import read_csv
from benchmarks.papers.settings import Settings

_PRESETS = read_csv(Path(__file__).with_name("presets.csv"))
_AXBN = ("process_noise", "measurement_noise", "initial_variance", "gain_update_interval")
# Flags that only some values of another setting know: that setting, these values, the flags. Glyphs, on which
# every command can be tried, ignores those of other data sets.
_ONLY_WITH: tuple[tuple[str, tuple[str, ...], tuple[str, ...]], ...] = (
    ("dataset", ("vehicle-id",), ("test_size", "gallery_draws")),
    ("dataset", ("deep-fashion2",), ("protocol",)),
    ("augmentation", ("resized-crop",), ("crop_scale", "crop_ratio", "color_jitter", "hue_jitter")),
    ("augmentation", ("crop", "resized-crop"), ("resize",)),
    ("augmentation", ("timm",), ("rand_augment", "random_erasing")),
    ("schedule", ("step",), ("decay", "decay_every", "decay_at")),
    ("method", ("delayed",), ("delay",)),
    ("update", ("average", "gradient"), ("update_momentum",)),
    ("update", ("gradient",), ("update_learning_rate",)),
    ("method", ("ema",), ("momentum",)),
    ("method", ("per-class", "super-class"), ("mean_lambda", "std_lambda")),
    ("method", ("axbn",), _AXBN),
    ("method", ("norm-softmax",), ("temperature", "class_ratio")),
    ("method", ("sgsl",), ("gamma", "sgsl_start", "sgsl_weight", "label_smoothing")),
)
# Flags that undo the presets' of others, which would make them idle.
_IN_PLACE_OF = {"epochs": ("--iterations", "None"), "decay_every": ("--decay-at", "None")}


def preset_flags(preset: str, dataset: str) -> list[str]:
    """Returns the flags of a preset on a data set: those of all data sets, then its own."""
    rows = [row for row in _PRESETS if preset in row["preset"].split()]
    texts = [row["flags"] for name in ("", dataset) for row in rows if row["dataset"] == name]
    return " ".join(texts).split()


def read_settings(arguments: Sequence[str] | None = None, description: str | None = None) -> Settings:
    """Returns the settings of a command line: flags, then the config file, the preset, and the defaults."""

    def preset(named: dict[str, str]) -> list[str]:
        flags = preset_flags(*(named.get(name, getattr(Settings, name)) for name in ("preset", "dataset")))
        return [*flags, *(word for name in _IN_PLACE_OF if name in named for word in _IN_PLACE_OF[name])]

    settings, named = command_line.read(Settings, description, arguments, preset)
    for other, values, names in _ONLY_WITH:
        value, idle = getattr(settings, other), [name for name in names if name in named]
        if idle and value not in (*values, "glyphs"):
            raise ValueError(
                f"--{idle[0].replace('_', '-')} has no effect with --{other} {value}; "
                f"it is of {' and '.join(values)}"
            )
    return settings
