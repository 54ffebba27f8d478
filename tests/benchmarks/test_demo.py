from __future__ import annotations

import contextlib
import io
import os
import shutil
import signal
import sqlite3
import sys
from collections.abc import Iterator
from copy import copy
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from at_step import at_step
from comparisons import read_csv, run_until, without_times
from training_script import assert_equal

from benchmarks.demo.__main__ import compare as build_comparison
from benchmarks.demo.__main__ import main
from benchmarks.demo.settings import Settings
from benchmarks.demo.task import GlyphsData, GlyphsTask
from benchmarks.engine.batches import EpochBatches
from benchmarks.engine.comparison import Comparison
from benchmarks.engine.distortion import distort
from benchmarks.engine.randomness import generator_for
from benchmarks.engine.run import Run, quietly

DEFAULT_METHODS = ["no-xbm", "xbm", "xbn", "axbn"]
CLASSES = 24
TINY = [
    *("--classes", str(CLASSES), "--epochs", "1", "--memory-ratio", "0.3", "--diagnostics-every", "5"),
    *("--device", "cpu"),
]


def run_demo(output: Path, *options: str) -> str:
    """What it prints."""
    printed = io.StringIO()
    with pytest.MonkeyPatch.context() as patch, contextlib.redirect_stdout(printed):
        patch.setattr(sys, "argv", ["demo", *TINY, "--output", str(output), *options])
        main()
    return printed.getvalue()


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """What it writes and prints; beside it lies what a kill within XBM's epoch would leave of it."""
    output = tmp_path_factory.mktemp("demo") / "whole"
    steps = len(GlyphsData(Settings(classes=CLASSES)).batches)
    with at_step(2 * steps + 10, shutil.copytree, output, output.with_name("killed")):
        return output, run_demo(output, "--checkpoint", "7")


def test_demo_writes_its_figures_as_csv(demo: tuple[Path, str]) -> None:
    output, _ = demo
    results, epochs = read_csv(output / "results.csv"), read_csv(output / "epochs.csv")
    assert [row["method"] for row in results] == DEFAULT_METHODS
    assert list(results[0])[1:] == ["recall_at_1", "recall_at_10", "map_at_r", "step_ms", "drift"]
    assert [(row["method"], row["epoch"]) for row in epochs] == [
        (method, epoch) for method in DEFAULT_METHODS for epoch in ("1", "2")
    ]
    for last, result in zip(epochs[1::2], results, strict=True):
        assert last["recall_at_1"] == result["recall_at_1"]
        assert 0 < float(result["recall_at_1"]) < float(result["recall_at_10"]) <= 100


def test_methods_share_their_warm_start(demo: tuple[Path, str]) -> None:
    epochs = read_csv(demo[0] / "epochs.csv")
    first = [{**row, "method": ""} for row in epochs if row["epoch"] == "1"]
    assert first == [first[0]] * len(DEFAULT_METHODS)


def test_what_the_pages_name_is_written(demo: tuple[Path, str]) -> None:
    """A table, a picture, and logs for SQLite, CSV and TensorBoard of all that is measured."""
    output, printed = demo
    lines = [line for line in printed.splitlines() if line.startswith("|")]
    assert [line.split("|")[1].strip() for line in lines[2:]] == DEFAULT_METHODS
    assert (output / "comparison.png").stat().st_size > 0
    assert list((output / "logs" / "tensorboard").glob("events.*"))
    records = output / "logs" / "records"
    with contextlib.closing(sqlite3.connect(records / "logs.db")) as connection:
        logged = connection.execute("SELECT recall_at_1 FROM accuracy_xbn").fetchall()
    epochs = [row for row in read_csv(output / "epochs.csv") if row["method"] == "xbn"]
    assert [value for (value,) in logged] == [float(row["recall_at_1"]) for row in epochs]
    for name in ("drift_1", "drift_10", "staleness", "push", "memory_push", "valid_pairs", "embeddings"):
        for row in read_csv(records / f"{name}_axbn.csv"):
            assert any(float(value) for key, value in row.items() if "~" not in key)


def test_staleness_is_that_of_the_rows_as_they_are_used(demo: tuple[Path, str]) -> None:
    for method, is_adapted in (("xbm", False), ("xbn", True)):
        rows = read_csv(demo[0] / "logs" / "records" / f"staleness_{method}.csv")
        before, after = ([row[f"{when}_mean"] for row in rows] for when in ("before", "after"))
        assert (before != after) == is_adapted
        assert all(float(value) > 0 for value in before)


def test_killed_demo_resumes_to_the_same_table(demo: tuple[Path, str], tmp_path: Path) -> None:
    killed = shutil.copytree(demo[0].with_name("killed"), tmp_path / "killed")
    assert not (killed / "results.csv").exists()
    run_demo(killed, "--resume")
    for name in ("results.csv", "epochs.csv"):
        assert without_times(killed / name) == without_times(demo[0] / name)
    records = Path("logs", "records")
    names = {path.name for path in (demo[0] / records).glob("*.csv")}
    assert {"training_xbm.csv", "staleness_xbm.csv", "embeddings_xbm.csv"} <= names
    for name in names:
        assert (killed / records / name).read_text() == (demo[0] / records / name).read_text()


def compare(data: GlyphsData, method: str, path: Path, *, resume: bool, kill_at: int = -1) -> Comparison:
    """A comparison of one method, that is interrupted before the step ``kill_at``."""
    comparison = build_comparison(with_settings(data, methods=(method,), epochs=1, checkpoint=5))
    return run_until(comparison, path, resume=resume, kill_at=kill_at)


@pytest.fixture(scope="module")
def data() -> Iterator[GlyphsData]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # as the demo does: threads that wait for each other make it slow
    settings = Settings(classes=16, memory_ratio=0.3, drift_every=4, diagnostics_every=3, device="cpu")
    yield GlyphsData(settings)
    torch.set_num_threads(threads)


def test_sigterm_saves_the_step_it_came_in(data: GlyphsData, tmp_path: Path) -> None:
    expected = compare(data, "xbn", tmp_path / "whole", resume=False).histories["xbn"]
    stopped = build_comparison(with_settings(data, methods=("xbn",), epochs=1, output=tmp_path))
    step = len(data.batches) + 3
    with (
        pytest.raises(SystemExit, match="--resume goes on"),
        at_step(step, os.kill, os.getpid(), signal.SIGTERM),
    ):
        stopped.run(quietly, tmp_path / "logs")
    assert len(stopped.histories["xbn"].step_times) == 3
    history = compare(data, "xbn", stopped.folder, resume=True).histories["xbn"]
    assert history.steps == expected.steps
    assert history.epochs == expected.epochs


def with_settings(data: GlyphsData, **changes: Any) -> GlyphsData:
    changed = copy(data)
    changed.settings = replace(data.settings, **changes)
    return changed


def one_epoch(data: GlyphsData, method: str, **changes: Any) -> Run:
    run = Run(GlyphsTask(with_settings(data, **changes), method))
    run.train_epoch()
    return run


@pytest.mark.parametrize("method", ["no-xbm", "axbn", "per-class"])
def test_diagnostics_leave_no_trace(method: str, data: GlyphsData) -> None:
    measured, other = (one_epoch(data, method, diagnostics_every=every) for every in (3, 0))
    assert measured.history.diagnostics
    assert not other.history.diagnostics
    assert measured.history.epochs == other.history.epochs
    for part in ("model", "optimizer", "loss_fn"):
        assert_equal(measured.state_dict()[part], other.state_dict()[part])


def test_images_are_embedded_as_they_were_when_they_were_stored(data: GlyphsData) -> None:
    """Or a model that does not learn would have stale rows."""
    rows = one_epoch(data, "xbm", learning_rate=0.0).history.diagnostics["staleness"]
    assert len(rows) >= 4
    assert all(row["before_maximum"] < 1e-6 for row in rows)
    rows = one_epoch(data, "xbm").history.diagnostics["staleness"]
    assert all(row["before_maximum"] > 0.01 for row in rows[1:])


def test_resume_with_other_settings_names_the_difference(data: GlyphsData, tmp_path: Path) -> None:
    path = tmp_path / "checkpoints"
    compare(data, "no-xbm", path, resume=False)
    with pytest.raises(ValueError, match=r"methods=\('no-xbm',\), not \('xbn',\)"):
        compare(data, "xbn", path, resume=True)


@pytest.mark.parametrize("per_class", [4, 0])
def test_batches_depend_on_seed_and_epoch_alone(per_class: int) -> None:
    labels = torch.arange(30).repeat_interleave(5)
    batches = EpochBatches(labels, 32, per_class, seed=3)
    first, later = batches.epoch(0), batches.epoch(1)
    assert first.shape == later.shape == (len(batches), 32)
    assert not torch.equal(first, later)
    assert torch.equal(EpochBatches(labels, 32, per_class, seed=3).epoch(1), later)
    assert not torch.equal(EpochBatches(labels, 32, per_class, seed=4).epoch(1), later)
    for batch in later:
        counts = labels[batch].unique(return_counts=True)[1]
        assert not per_class or counts.tolist() == [4] * 8
    if not per_class:  # a new order of all images
        assert len(later.unique()) == 128


def test_distortion_repeats_with_the_same_key_and_differs_otherwise() -> None:
    images = torch.randint(256, (6, 1, 32, 32), dtype=torch.uint8)
    first = distort(images, generator_for(0, 1, 2))
    assert torch.equal(distort(images, generator_for(0, 1, 2)), first)
    assert not torch.equal(distort(images, generator_for(0, 1, 3)), first)
    assert first.shape == images.shape
