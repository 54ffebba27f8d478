from __future__ import annotations

import contextlib
import io
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from benchmarks.two_towers.name_net import LENGTH, NameNet, encode
from comparisons import read_csv, run_until
from torch.nn.functional import normalize
from training_script import assert_equal

from benchmarks.engine.run import Run
from benchmarks.two_towers.__main__ import compare, main
from benchmarks.two_towers.report import NAME, write_report
from benchmarks.two_towers.settings import METHODS, Settings
from benchmarks.two_towers.task import Pairs, TwoTowersTask, load_pairs
from pml_xbn.datasets import Glyphs

TINY = Settings(epochs=2, batch_size=16, classes=8, diagnostics_every=2)
COMPARED = ["no-memory", "adapted"]
OPTIONS = [
    *("--epochs", "1", "--warmup-epochs", "0", "--batch-size", "16", "--classes", "8"),
    *("--diagnostics-every", "2", "--methods", *COMPARED),
]


@pytest.fixture(scope="module")
def halves() -> tuple[Pairs, Pairs]:
    return load_pairs("train", TINY.classes), load_pairs("test", TINY.classes)


def run_script(output: Path, *options: str) -> str:
    """What it prints."""
    printed = io.StringIO()
    folders = ["--output", str(output / "runs"), "--results", str(output)]
    with pytest.MonkeyPatch.context() as patch, contextlib.redirect_stdout(printed):
        patch.setattr(sys, "argv", ["two_towers", *OPTIONS, *folders, *options])
        main()
    return printed.getvalue()


def test_script_writes_a_line_per_run_and_the_table_follows_from_them(tmp_path: Path) -> None:
    printed = run_script(tmp_path, "--seeds", "0", "1")
    rows = read_csv(tmp_path / f"{NAME}.csv")
    assert {(row["method"], row["seed"]) for row in rows} == {(m, s) for m in COMPARED for s in "01"}
    page = tmp_path / f"{NAME}.md"
    text = page.read_text()
    assert text.strip() in printed
    values = [float(row["image_to_name"]) for row in rows if row["method"] == "adapted"]
    line = next(line for line in text.splitlines() if line.startswith("| adapted |"))
    assert line.startswith(
        f"| adapted | 2 | {sum(values) / 2:.1f} ± {abs(values[0] - values[1]) / 2**0.5:.1f} |"
    )
    page.unlink()
    run_script(tmp_path, "--seeds")
    assert page.read_text() == text
    # One run again: its line is replaced by an equal one.
    run_script(tmp_path, "--seeds", "1", "--methods", "adapted")
    for before, after in zip(rows, read_csv(tmp_path / f"{NAME}.csv"), strict=True):
        assert {**before, "minutes": ""} == {**after, "minutes": ""}
    rows[0]["epochs"] = "3"
    (tmp_path / f"{NAME}.csv").write_text(
        "\n".join([",".join(rows[0]), *(",".join(row.values()) for row in rows)])
    )
    with pytest.raises(ValueError, match="runs of 2 settings"):
        write_report(tmp_path)


@pytest.mark.parametrize("method", ["no-memory", "adapted-star"])
def test_resumed_training_is_that_of_an_uninterrupted_run(
    method: str, halves: tuple[Pairs, Pairs], tmp_path: Path
) -> None:
    settings = replace(TINY, methods=(method,), output=tmp_path)
    whole, parts = compare(settings, *halves, 0), compare(settings, *halves, 0)
    run_until(whole, tmp_path / "whole.pt", resume=False, kill_at=-1)
    steps = TwoTowersTask(settings, *halves, method, 0).steps_per_epoch
    with pytest.raises(SystemExit, match="--resume goes on"):
        run_until(parts, tmp_path / "parts.pt", resume=False, kill_at=steps + 1)
    resumed = run_until(compare(settings, *halves, 0), tmp_path / "parts.pt", resume=True, kill_at=-1)
    first, second = (vars(c.histories[method]) for c in (whole, resumed))
    assert_equal({**first, "step_times": None}, {**second, "step_times": None})


def test_methods_begin_alike_and_part_when_the_memory_begins(halves: tuple[Pairs, Pairs]) -> None:
    losses = {}
    for method in METHODS:
        task = TwoTowersTask(TINY, *halves, method, seed=3)
        task.log_every = 1
        run = Run(task)
        for _ in range(2):
            run.train_epoch()
        losses[method] = [row["loss"] for row in run.history.steps]
        memory = task.loss_fn.document_memory
        assert (memory.num_rows > 0) == (method != "no-memory")
    steps = task.steps_per_epoch
    assert all(values[:steps] == losses["no-memory"][:steps] for values in losses.values())
    assert len({values[-1] for values in losses.values()}) == len(METHODS)


def test_names_are_embedded_as_they_were_when_they_were_stored(halves: tuple[Pairs, Pairs]) -> None:
    """Or towers that do not learn would have stale names."""
    means = []
    for rate in (0.0, 1e-2):
        settings = replace(TINY, learning_rate=rate, warmup_epochs=0, diagnostics_every=1)
        run = Run(TwoTowersTask(settings, *halves, "stale", 0))
        run.train_epoch()
        means.append([row["before_maximum"] for row in run.history.diagnostics["staleness"][1:]])
    assert max(means[0]) < 1e-5
    assert min(means[1]) > 0.01


def test_recall_is_that_of_the_nearest_name_and_the_nearest_image(halves: tuple[Pairs, Pairs]) -> None:
    test = halves[1]
    task = TwoTowersTask(TINY, *halves, "adapted", 0)
    accuracy, _ = task.evaluate([])
    task.model.eval()
    with torch.no_grad():
        images, names = (
            normalize(task.model[name](x)) for name, x in (("images", test.images), ("names", test.names))
        )
    similarity = images @ names.T
    forth = (similarity.argmax(dim=1) == test.labels).double().mean()
    back = (test.labels[similarity.argmax(dim=0)] == torch.arange(len(names))).double().mean()
    assert accuracy["image_to_name"] == pytest.approx(100 * forth.item())
    assert accuracy["name_to_image"] == pytest.approx(100 * back.item())


def test_names_are_told_apart_and_their_classes_are_not_shared() -> None:
    train, test = (Glyphs(split).label_names for split in ("train", "test"))
    assert not set(train) & set(test)
    codes = encode(train + test)
    assert max(map(len, train + test)) < LENGTH
    assert len(codes.unique(dim=0)) == len(codes)
    embeddings = NameNet(5)(codes[:6])
    assert embeddings.shape == (6, 5)
