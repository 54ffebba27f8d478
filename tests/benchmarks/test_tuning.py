"""Equal tuning: what is drawn, on which classes it is judged, and what the page says."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import optuna
import pytest
import torch
from scipy.stats import ttest_1samp, ttest_rel

from benchmarks.demo.settings import Settings as GlyphsSettings
from benchmarks.engine.glyphs import load_glyphs
from benchmarks.engine.results import read_csv, write_csv
from benchmarks.tuning import __main__ as tuning
from benchmarks.tuning.report import tuned
from benchmarks.tuning.results import METHODS, SEARCH, TESTS, Tuning
from benchmarks.tuning.run import ValidationData, train
from benchmarks.tuning.space import CHOICES, LOSSES, RANGES, Configuration, draw

CLASSES = 48
CPU = torch.device("cpu")


class Trains:
    """Stands for the worker processes: accuracies are made up, and training stops after ``limit`` runs."""

    def __init__(self, limit: int = 1000) -> None:
        self.limit, self.work = limit, []

    def __call__(self, function: Callable[..., Any], work: Iterable[tuple], title: str) -> Iterator[Any]:
        for arguments in work:
            if len(self.work) == self.limit:
                raise InterruptedError
            self.work.append(arguments)
            method, configuration = arguments[:2]
            accuracy = 10 * METHODS.index(method) + configuration.temperature
            yield arguments, {"recall_at_1": 2 * accuracy, "map_at_r": accuracy, "minutes": 1.5}


@pytest.fixture
def settings(tmp_path: Path) -> tuning.Settings:
    return tuning.Settings(configurations=5, seeds=(7, 8), store=tmp_path / "search.db", output=tmp_path)


def test_a_stopped_search_goes_on_and_draws_the_same_for_all_methods(settings: tuning.Settings) -> None:
    with pytest.raises(InterruptedError):
        tuning.search(settings, Trains(7))
    assert len(read_csv(settings.output / SEARCH)) == 7
    rest = Trains()
    best = tuning.search(settings, rest)
    assert len(rest.work) == 5 * len(METHODS) - 7
    rows = read_csv(settings.output / SEARCH)
    assert [(row["method"], int(row["number"])) for row in rows] == [
        (method, number) for method in METHODS for number in range(5)
    ]
    names = [*CHOICES, *RANGES]
    for number in range(5):
        assert len({tuple(row[name] for name in names) for row in rows if row["number"] == str(number)}) == 1
    assert len({row["temperature"] for row in rows}) == 5
    for method, configuration in best.items():
        of_method = [row for row in rows if row["method"] == method]
        assert configuration.temperature == max(float(row["temperature"]) for row in of_method)
    assert tuning.search(settings, Trains(0)) == best  # nothing is left to do


def test_the_best_are_tested_once_with_every_seed(settings: tuning.Settings) -> None:
    best = tuning.search(settings, Trains())
    with pytest.raises(InterruptedError):
        tuning.test(settings, best, Trains(3))
    rest = Trains()
    tuning.test(settings, best, rest)
    assert len(rest.work) == 2 * len(METHODS) - 3
    tests = read_csv(settings.output / TESTS)
    assert len({(row["method"], row["seed"]) for row in tests}) == len(tests) == 2 * len(METHODS)
    assert {arguments[3:] for arguments in rest.work} == {(settings.epochs, None, False)}
    measured = Tuning(settings.output)
    expected = dict.fromkeys((7, 8), 30 + best["xbn"].temperature)
    assert measured.tested("xbn", "map_at_r") == pytest.approx(expected, rel=1e-5)


def test_values_stay_within_their_bounds() -> None:
    study = optuna.create_study(sampler=optuna.samplers.RandomSampler(seed=1))
    for number in range(30):
        values = vars(draw(study.ask(), number))
        assert all(values[name] in choices for name, choices in CHOICES.items())
        assert all(low <= values[name] <= high for name, (low, high) in RANGES.items())


def test_validation_classes_are_a_third_of_the_training_classes() -> None:
    data = ValidationData(GlyphsSettings(batch_size=64, classes=CLASSES), CPU)
    every = load_glyphs("train", CLASSES, CPU)
    train_classes, held_out = (set(half.labels.tolist()) for half in (data.train, data.test))
    assert len(held_out) == CLASSES // 3
    assert not train_classes & held_out
    assert train_classes | held_out == set(every.labels.tolist())
    assert len(data.train.images) + len(data.test.images) == len(every.images)
    assert data.test.images.is_floating_point()  # distorted
    upright = every.images[torch.isin(every.labels, data.train.labels)]
    assert torch.equal(data.train.images, upright)


@pytest.mark.parametrize("loss", CHOICES["loss"])
@pytest.mark.parametrize("is_search", [True, False])
def test_a_run_says_what_came_of_it(loss: str, is_search: bool) -> None:
    configuration = Configuration(0, loss, 0.1, 0.9, 0.5, 1e-3, 1e-4, 0.5, 0.2)
    row = train("xbn", configuration, 0, 5, CLASSES, is_search)
    assert 0 < row["map_at_r"] <= row["recall_at_1"] <= 100


def test_a_configuration_with_which_training_diverges_is_a_bad_one() -> None:
    wild = Configuration(0, "contrastive", 0.1, 0.9, 0.5, 1e20, 1e-4, 0.5, 0.0)
    tame = Configuration(0, "contrastive", 0.1, 0.9, 0.5, 1e-3, 1e-4, 0.5, 0.0)
    worse, better = (train("xbn", c, 0, 2, CLASSES, True)["map_at_r"] for c in (wild, tame))
    assert worse < better / 2


def test_the_page_says_what_the_files_say(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    values = {method: rng.uniform(10, 40, 6) for method in METHODS}
    fixed = {"loss": "supcon", **dict.fromkeys([*CHOICES, *RANGES][1:], 0.1), "minutes": 30.0}
    write_csv(
        [
            {"method": method, "number": number, **fixed, "loss": LOSSES[number // 3], "map_at_r": value}
            for method in METHODS
            for number, value in enumerate(values[method])
        ],
        tmp_path / SEARCH,
    )
    tests = {method: rng.uniform(30, 50, 3) for method in METHODS}
    tests["xbm"][1:] = 2.0, 3.0
    tests["xbm-star"][2] = 3.0
    rows = [
        {
            "method": m,
            "number": int(values[m].argmax()),
            "seed": seed,
            **fixed,
            "recall_at_1": v,
            "map_at_r": v,
        }
        for m in METHODS
        for seed, v in enumerate(tests[m])
    ]
    # A test of what was the best before the search went on does not count.
    other = (int(values["xbn"].argmax()) + 1) % 6
    rows.append({**rows[-1], "number": other, "recall_at_1": 99.0, "map_at_r": 99.0})
    write_csv(rows, tmp_path / TESTS)
    page = tuned(Tuning(tmp_path))
    interval = ttest_rel(values["xbn"], values["no-xbm"]).confidence_interval(0.95)
    gap, half = (interval.high + interval.low) / 2, (interval.high - interval.low) / 2
    low, median, high = np.quantile(values["xbn"], (0.25, 0.5, 0.75))
    halves = [values["xbn"][part] - values["no-xbm"][part] for part in (slice(3), slice(3, 6))]
    intervals = [ttest_1samp(of, 0).confidence_interval(0.95) for of in halves]
    of_losses = [f"{i.high / 2 + i.low / 2:+.1f} (± {i.high / 2 - i.low / 2:.1f})" for i in intervals]
    of_parts = " | ".join([*of_losses, "–", of_losses[1]])  # all have learning rates above the split
    best = max(of.max() for of in values.values())
    near = (values["xbn"] >= best - 2).sum()
    assert (
        f"| xbn | {values['xbn'].max():.1f} | {median:.1f} | {low:.1f} to {high:.1f} | "
        f"{values['xbn'].std(ddof=1):.1f} | {near} of 6 | {gap:+.1f} (± {half:.1f}) | {of_parts} |"
    ) in page
    interval = ttest_rel(tests["xbn"], tests["xbm"]).confidence_interval(0.95)
    gap, half = (interval.high + interval.low) / 2, (interval.high - interval.low) / 2
    assert f"| xbn | {tests['xbn'].mean():.1f} ± {tests['xbn'].std(ddof=1):.1f} |" in page
    assert f"{gap:+.1f} (± {half:.1f}) |\n" in page + "\n"
    assert ", ".join(f"{value:.1f}" for value in tests["xbm"]) in page
    assert f"took {(24 + 13) / 2:.1f} hours" in page
    assert tuned(Tuning(tmp_path / "nowhere")) == ""
