"""Equal tuning: what is drawn, on which classes it is judged, and what the page says."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from emoji_packages import write_emoji
from scipy.stats import ttest_rel

from benchmarks.demo.settings import Settings as GlyphsSettings
from benchmarks.engine.emoji import load_emoji
from benchmarks.tuning import __main__ as tuning
from benchmarks.tuning.report import tuned
from benchmarks.tuning.results import AGAIN, FINAL, METHODS, SEARCH, SUBGROUPS, Trial, Tuning
from benchmarks.tuning.run import FinalData, ValidationData, train
from benchmarks.tuning.space import CHOICES, DEFAULTS, RANGES, draw


class Trains:
    """Stands for the worker processes: accuracies are made up, and training stops after ``limit`` runs."""

    def __init__(self, limit: int = 1000) -> None:
        self.limit, self.trials, self.epochs = limit, [], set()

    def __call__(self, function: Callable[..., Any], work: Iterable[tuple], title: str) -> Iterator[Any]:
        for arguments in work:
            if len(self.trials) == self.limit:
                raise InterruptedError
            trial, *_ = arguments
            self.trials.append(trial)
            self.epochs.add((trial.stage, arguments[1]))
            yield arguments, {"recall_at_1": 50.0, "map_at_r": self.accuracy(*trial), "minutes": 1.5}

    @staticmethod
    def accuracy(stage: str, method: str, number: int, seed: int) -> float:
        """Draws with higher numbers do better in the search, and those with lower ones when trained again."""
        return 10 * METHODS.index(method) + seed / 100 + (number if stage == SEARCH else -number)


@pytest.fixture
def settings(tmp_path: Path) -> tuning.Settings:
    return tuning.Settings(draws=8, search_seeds=(1, 2), seeds=(7, 8), output=tmp_path)


def test_a_stopped_search_goes_on_to_one_test_of_the_best_that_was_trained_again(
    settings: tuning.Settings,
) -> None:
    first, rest = Trains(50), Trains()
    with pytest.raises(InterruptedError):
        tuning.search(settings, first)
    tuning.search(settings, rest)
    trials = first.trials + rest.trials
    assert len(set(trials)) == len(trials) == len(METHODS) * (8 + 5 * 2 + 2)
    assert first.trials[:8] == [Trial(SEARCH, method, number, 0) for number in (0, 1) for method in METHODS]
    assert {t.number for t in trials if t.stage == AGAIN} == {3, 4, 5, 6, 7}
    assert {(t.number, t.seed) for t in trials if t.stage == FINAL} == {(3, 7), (3, 8)}
    assert first.epochs | rest.epochs == {(SEARCH, 20), (AGAIN, 20), (FINAL, 60)}
    tuning.search(settings, Trains(0))  # nothing is left to do
    assert Tuning(settings.output).tested("xbn", "map_at_r") == {7: 27.07, 8: 27.08}


def test_draws_begin_with_the_defaults_and_stay_within_their_bounds() -> None:
    draws = [draw(number) for number in range(60)]
    assert draws == [draw(number) for number in range(60)]
    assert tuple(draws[: len(DEFAULTS)]) == DEFAULTS
    demo = GlyphsSettings()
    assert DEFAULTS[0].learning_rate == demo.learning_rate
    assert DEFAULTS[0].weight_decay == demo.weight_decay
    for configuration in draws:
        values = vars(configuration)
        assert all(values[name] in choices for name, choices in CHOICES.items())
        assert all(low <= values[name] <= high for name, (low, high) in RANGES.items())
    for name, choices in CHOICES.items():
        assert {getattr(configuration, name) for configuration in draws} == set(choices)


def test_every_declared_subgroup_has_draws_and_leaves_some_out() -> None:
    rows = [{name: str(value) for name, value in vars(draw(number)).items()} for number in range(60)]
    assert all(5 < sum(map(part, rows)) < 55 for part in SUBGROUPS.values())
    slow, fast = (SUBGROUPS[f"learning rate {sign} 0.001"] for sign in "<≥")
    assert all(slow(row) != fast(row) for row in rows)


def test_validation_classes_are_a_third_of_the_training_classes(tmp_path: Path) -> None:
    write_emoji(tmp_path)
    settings = GlyphsSettings(batch_size=16)
    data = ValidationData(settings, tmp_path, 32)
    every = load_emoji(tmp_path, "train", None)
    classes, held_out = (set(half.labels.tolist()) for half in (data.train, data.test))
    assert len(held_out) == len(every.superclasses) // 3
    assert not classes & held_out
    assert classes | held_out == set(every.labels.tolist())
    assert len(data.train.images) + len(data.test.images) == len(every.images)
    assert data.test.images.is_floating_point()  # distorted
    assert torch.equal(data.train.images, every.images[torch.isin(every.labels, data.train.labels)])
    final = FinalData(settings, tmp_path, 32)
    assert final.train.checksum == every.checksum
    assert final.test.checksum == load_emoji(tmp_path, "final", None).checksum


def test_runs_of_all_stages_and_draws_that_diverge_have_an_accuracy(tmp_path: Path) -> None:
    write_emoji(tmp_path, classes=80)
    wild = next(n for n in range(2, 60) if draw(n).loss == "contrastive" and draw(n).learning_rate > 5e-3)
    for stage, method, number in ((SEARCH, "xbn", wild), (AGAIN, "no-xbm", 0), (FINAL, "xbm-star", 1)):
        row = train(Trial(stage, method, number, 0), 2, None, tmp_path)
        assert all(0 <= row[figure] <= 100 for figure in ("recall_at_1", "map_at_r"))


def test_the_page_says_what_the_files_say(settings: tuning.Settings) -> None:
    tuning.search(settings, Trains())
    page = tuned(Tuning(settings.output))
    assert "| xbn | 30.0, 31.0 | 33.5 | 37.0 | 27.0 (sd 0.0) |" in page
    assert "| no-xbm | 0.0, 1.0 | 3.5 | 7.0 | -3.0 (sd 0.0) | +30.0 (± 0.0) |" in page
    assert "| no-xbm | 2 | 50.0 (sd 0.0) | +0.0 (± 0.0) | -2.9 (sd 0.0) | +30.0 (± 0.0) |" in page
    assert f"took {len(METHODS) * 20 * 1.5 / 60:.1f} hours" in page


def test_differences_of_draws_are_paired(tmp_path: Path) -> None:
    numbers = np.random.default_rng(0)
    values = {method: numbers.uniform(10, 40, 6) for method in METHODS}

    class Random(Trains):
        @staticmethod
        def accuracy(stage: str, method: str, number: int, seed: int) -> float:
            return values[method][number]

    tuning.search(tuning.Settings(draws=6, search_seeds=(), seeds=(), output=tmp_path), Random())
    found = Tuning(tmp_path)
    every = ttest_rel(values["xbn"], values["xbm"]).confidence_interval(0.95)
    difference = found.draw_difference("xbn", "xbm")
    assert difference.half_width == pytest.approx((every.high - every.low) / 2, rel=1e-4)
    is_supcon = np.array([draw(number).loss == "supcon" for number in range(6)])
    some = found.draw_difference("xbn", "xbm", SUBGROUPS["supcon"])
    assert some.mean == pytest.approx((values["xbn"] - values["xbm"])[is_supcon].mean(), rel=1e-4)
