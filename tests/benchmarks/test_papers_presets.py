"""The presets against docs/presets.md, which says where every value comes from."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from benchmarks.engine import command_line
from benchmarks.engine.settings import identity
from benchmarks.papers.augmentation import image_size
from benchmarks.papers.presets import preset_flags, read_settings
from benchmarks.papers.settings import DATASETS, PRESETS, Settings

ROOT = Path(__file__).parents[2]
# What the user chooses, whatever the preset.
CHOSEN = {
    *("dataset", "test_size", "limit_classes", "steps_per_epoch"),
    *("resize", "weights", "accumulate", "binary", "eval_every", "nmi", "seed"),
    *("beside", "beside_options", "beside_weight"),
}
IS_SOURCE = re.compile(
    r"§\d|Tables? \d|Figure \d|Eq\. \d|Appendix [A-E\d]|Implementation Details|code: `|not stated: ours"
)


@cache
def read(preset: str, dataset: str) -> Settings:
    return read_settings(["--preset", preset, "--dataset", dataset])


def named(preset: str) -> set[str]:
    """The settings whose flags a preset has."""
    words = [word for dataset in DATASETS for word in preset_flags(preset, dataset)]
    return {word[2:].removeprefix("no-").replace("-", "_") for word in words if word.startswith("--")}


def tables() -> Iterator[tuple[list[str], list[list[str]]]]:
    """The presets that a section is about, and the rows of its table: flag, values, a source each."""
    page = (ROOT / "docs" / "presets.md").read_text(encoding="utf-8")
    for section in page.split("\n## ")[1:]:
        title, _, body = section.partition("\n")
        presets = re.findall(r"`([a-z-]+)`", title)
        rows = [
            [cell.strip() for cell in line.strip("| ").split(" | ")]
            for line in body.splitlines()
            if line.startswith("| `--")
        ]
        if presets:
            yield presets, rows


def values_of(cell: str) -> dict[str, str]:
    """`1`; `sop`, `in-shop`: `2` -> by data set, under the empty name for all others."""
    first, *others = cell.split("; ")
    values = {"": first.strip("`")}
    for other in others:
        datasets, _, value = other.rpartition(": ")
        values.update(dict.fromkeys(re.findall(r"`([^`]+)`", datasets), value.strip("`")))
    return values


@cache
def parsed(name: str, text: str) -> Any:
    """What a flag makes of a cell."""
    if text == "–":
        return {} if name.endswith("_options") else None
    flag, is_switch = name.replace("_", "-"), isinstance(getattr(Settings, name, None), bool)
    words = [f"--{'no-' * (text == 'no')}{flag}"] if is_switch else [f"--{flag}", *text.split()]
    settings, _ = command_line.read(Settings, arguments=words)
    return getattr(settings, name)


def matters(name: str, settings: Settings) -> bool:
    """Whether a run of the preset depends on a setting."""
    own = settings.method in ("norm-softmax", "sgsl")
    is_sgd = settings.optimizer == "sgd" or bool(settings.warmup_epochs)
    by_epochs = settings.schedule == "step" and settings.decay_at is None
    depends_on = {
        **dict.fromkeys(("rand_augment", "random_erasing"), settings.augmentation == "timm"),
        **dict.fromkeys(
            ("crop_scale", "crop_ratio", "color_jitter", "hue_jitter"),
            settings.augmentation == "resized-crop",
        ),
        **dict.fromkeys(("loss", "loss_options", "loss_per_anchor", "miner", "memory_ratio"), not own),
        **dict.fromkeys(("memory_warmup", "fill_memory", "batch_loss_weight"), not own),
        **dict.fromkeys(("update", "update_factor"), not own),
        "update_momentum": settings.update != "queue",
        "update_learning_rate": settings.update == "gradient",
        # These papers have neither DeepFashion2 nor VehicleID.
        **dict.fromkeys(("protocol", "gallery_draws"), not own),
        "miner_options": not own and settings.miner != "none",
        # The rows of these papers name their methods; XBM's have one.
        **dict.fromkeys(("delay", "momentum", "mean_lambda", "std_lambda"), settings.method == "axbn"),
        **dict.fromkeys(("process_noise", "measurement_noise"), settings.method == "axbn"),
        **dict.fromkeys(("initial_variance", "gain_update_interval"), settings.method == "axbn"),
        **dict.fromkeys(("temperature", "class_ratio"), settings.method == "norm-softmax"),
        **dict.fromkeys(("gamma", "sgsl_start", "sgsl_weight", "label_smoothing"), settings.method == "sgsl"),
        "warmup_learning_rate": bool(settings.warmup_epochs),
        "epochs": settings.iterations is None,
        "iterations": settings.iterations is not None,
        **dict.fromkeys(("sgd_momentum", "nesterov"), is_sgd),
        "decay": settings.schedule == "step",
        "decay_every": by_epochs,
        "decay_at": settings.decay_at is not None,
    }
    return depends_on.get(name, True)


def test_every_preset_has_a_table() -> None:
    assert sorted(preset for presets, _ in tables() for preset in presets) == sorted(PRESETS)


@pytest.mark.parametrize("preset", PRESETS)
def test_values_are_those_of_the_page(preset: str) -> None:
    (rows,) = [rows for presets, rows in tables() if preset in presets]
    assert len({row[0] for row in rows}) == len(rows)
    for flag, cell, *_ in rows:
        name = flag.strip("`-").replace("-", "_")
        texts = values_of(cell)
        assert set(texts) <= {"", *DATASETS}, flag
        for dataset in DATASETS:
            settings = read(preset, dataset)
            value = image_size(settings) if name == "image_size" else getattr(settings, name)
            expected = parsed(name, texts.get(dataset, texts[""]))
            if isinstance(expected, float):
                expected = pytest.approx(expected, rel=1e-4)
            assert value == expected, (preset, dataset, flag)


@pytest.mark.parametrize("preset", PRESETS)
def test_no_setting_of_a_preset_is_left_out(preset: str) -> None:
    (rows,) = [rows for presets, rows in tables() if preset in presets]
    on_page = {row[0].strip("`-").replace("-", "_") for row in rows}
    own = named(preset)
    if preset == "thesis-margins":  # whose table holds what is not as in the preset thesis
        assert on_page == own - named("thesis")
        return
    decided = set(identity(Settings())) - CHOSEN
    needed = {name for name in decided if any(matters(name, read(preset, dataset)) for dataset in DATASETS)}
    assert on_page == needed
    assert own <= needed


def test_every_value_has_a_source() -> None:
    for presets, rows in tables():
        for row in rows:
            assert len(row) == 2 + (len(presets) if len(presets) > 1 else 1), row
            for source in row[2:]:
                assert IS_SOURCE.search(source), row
