"""The study's runs that fine-tune a pretrained network: modes, cached gradients, lists, and the choice."""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from efficientnet_wheel import write_weights
from emoji_packages import write_emoji
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from benchmarks.engine.accuracy import embed
from benchmarks.engine.results import append_csv, read_csv
from benchmarks.engine.run import Run
from benchmarks.engine.step import Step
from benchmarks.study import __main__ as study
from benchmarks.study import fine_tuning, fine_tuning_report
from benchmarks.study import run as study_run
from benchmarks.study.budget import Budget
from benchmarks.study.cases import Case, budget_of, read_cases
from benchmarks.study.data_sets import Roots
from benchmarks.study.files import BY_CLASS, BY_EPOCH
from benchmarks.study.fine_tuning import CACHED, SUPCON, Method, Runs, trials
from benchmarks.study.measured import Study

REGIME = "pretrained, 2 epochs, rate x 0.1"


@pytest.fixture(scope="module")
def roots(tmp_path_factory: pytest.TempPathFactory) -> Roots:
    folder = tmp_path_factory.mktemp("emoji")
    write_emoji(folder, classes=48)
    return Roots(folder)


@pytest.fixture(scope="module", autouse=True)
def _weights(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(write_weights(tmp_path_factory.mktemp("site")))
        yield


def begin(method: str, norm: str, roots: Roots, batch_size: int = 16, regime: str = REGIME) -> Run:
    case = Case(method, 0, batch_size, 0.0 if method.startswith("no-xbm") else 0.5, norm, regime, 1)
    return study_run.begin(case, Path(), None, roots)


def passes_of_a_step(run: Run) -> set[tuple[str, bool, bool]]:
    """Name of the network, whether there are gradients, and whether batch normalization takes the batch's."""
    run.train_epoch(stop=lambda: True)  # the first step measures the model in evaluation mode too
    networks = {"model": run.task.model, "encoder": getattr(run.task, "encoder", None)}
    seen, handles = set(), []
    for name, network in networks.items():
        for layer in network.modules() if network is not None else ():
            if isinstance(layer, _BatchNorm):

                def note(layer: nn.Module, *_: object, name: str = name) -> None:
                    seen.add((name, torch.is_grad_enabled(), layer.training))

                handles.append(layer.register_forward_hook(note))
    run.train_epoch(stop=lambda: True)
    for handle in handles:
        handle.remove()
    return seen


PASSES = {
    "no-xbm": {("model", True, True)},
    "centre": {("model", True, True)},
    "centre+batch loss": {("model", True, True)},
    "centre+evaluation rows": {("model", True, True), ("model", False, False)},
    "xbm+momentum 0.99": {("model", True, True), ("encoder", False, True)},
    CACHED: {("model", True, True), ("model", False, True)},
}


@pytest.mark.parametrize("method", PASSES)
def test_every_pass_is_in_the_mode_that_its_method_claims(method: str, roots: Roots) -> None:
    assert passes_of_a_step(begin(method, "batch", roots)) == PASSES[method]
    of_frozen = {(name, gradients, False) for name, gradients, _ in PASSES[method]}
    assert passes_of_a_step(begin(method, "frozen", roots)) == of_frozen


@pytest.mark.parametrize("norm", ["frozen", "frozen weights"])
def test_frozen_statistics_stay_as_they_are(norm: str, roots: Roots) -> None:
    run = begin("centre", norm, roots)
    before = {name: buffer.clone() for name, buffer in run.task.model.named_buffers()}
    layers = [layer for layer in run.task.model.modules() if isinstance(layer, _BatchNorm)]
    weights = [layer.weight.clone() for layer in layers]
    run.train_epoch()
    assert before
    assert all(torch.equal(before[name], buffer) for name, buffer in run.task.model.named_buffers())
    assert bool(layers) == (norm == "frozen")
    assert all(not torch.equal(old, layer.weight) for old, layer in zip(weights, layers, strict=True))


def test_an_evaluation_leaves_every_module_in_its_mode() -> None:
    model = nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), nn.Flatten())
    model[1].eval()
    embed(model, torch.rand(3, 1, 4, 4))
    assert [module.training for module in model.modules()] == [True, True, False, True]


def test_rows_of_an_evaluation_pass_are_stored(roots: Roots) -> None:
    run = begin("centre+evaluation rows", "batch", roots)
    model = copy.deepcopy(run.task.model).eval()
    images, labels = next(iter(run.task.batches(0, 0)))
    with torch.no_grad():
        expected = model(images)
    run.train_epoch(stop=lambda: True)
    torch.testing.assert_close(run.task.loss_fn.embedding_memory[:16], expected)
    assert torch.equal(run.task.loss_fn.label_memory[:16], labels)


def test_cached_gradients_are_those_of_the_whole_batch(roots: Roots) -> None:
    run = begin(CACHED, "frozen", roots)
    run.task.model.double()
    run.task.part_size = 4
    images, labels = next(iter(run.task.batches(0, 0)))
    images = images.double()
    run.task.batch_loss(run.task.model(images), labels).backward()
    expected = [parameter.grad.clone() for parameter in run.task.model.parameters()]
    run.task.model.zero_grad()
    run.task.compute_gradients(images, labels, Step(0, 0, 0, False), run._diagnostics)
    for parameter, gradient in zip(run.task.model.parameters(), expected, strict=True):
        torch.testing.assert_close(parameter.grad, gradient, rtol=1e-9, atol=1e-12)


def test_a_budget_is_read_from_its_name() -> None:
    budgets = [
        Budget("pretrained", 16),
        Budget("emoji", 60, side=64, rate=0.5),
        Budget("pretrained icons", 17, rate=3.0, loss="multi-similarity"),
        Budget("pretrained", 4, trained="whole network", is_kept_back=True),
    ]
    assert [Budget.from_name(str(budget)) for budget in budgets] == budgets
    for name in ("pretrained", "pretrained, 16", "photographs, 16 epochs", "pretrained, 16 epochs, later"):
        with pytest.raises(ValueError, match=f"regime is '{name}'"):
            budget_of(name)


def test_classes_kept_back_are_others_than_those_that_choose(roots: Roots) -> None:
    chosen, kept_back = (
        begin("no-xbm", "frozen", roots, regime=str(Budget("pretrained", 2, is_kept_back=kept))).task.data
        for kept in (False, True)
    )
    assert torch.equal(chosen.train.images, kept_back.train.images)
    assert chosen.test.checksum != kept_back.test.checksum


@pytest.mark.parametrize("trained", ["last three stages", "whole network"])
def test_more_of_the_network_trains(trained: str, roots: Roots) -> None:
    last = begin("no-xbm", "frozen", roots)
    run = begin("no-xbm", "frozen", roots, regime=str(Budget("pretrained", 2, trained=trained)))
    ours, fewer = (sum(p.numel() for p in of.task.model.parameters()) for of in (run, last))
    assert ours > fewer
    before = next(run.task.model.parameters()).clone()
    run.train_epoch(stop=lambda: True)
    assert not torch.equal(before, next(run.task.model.parameters()))


def test_a_list_is_run_in_its_order_and_failures_are_noted(
    roots: Roots, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cases = [Case("no-xbm", 0, 16, 0.0, "frozen", REGIME, seed) for seed in (3, 1)]
    path = tmp_path / "list.csv"
    append_csv([vars(case) for case in (*cases, cases[0])], path)
    assert read_cases(path) == cases

    def run_epoch(run: Run, *args: Any) -> bool:
        if run.task.data.settings.seed == 3:
            raise ValueError("embeddings are not finite")
        return train_epoch(run, *args)

    train_epoch = Run.train_epoch
    monkeypatch.setattr(Run, "train_epoch", run_epoch)
    for case in cases:
        study.save(case, study_run.train(case, tmp_path, None, roots), tmp_path)
    failed, made = read_csv(tmp_path / study.RUNS)
    assert failed["error"] == "ValueError: embeddings are not finite"
    assert failed["recall_at_1"] == made["error"] == ""
    assert made["device"] == "cpu"
    assert study.done(tmp_path / study.RUNS) == set(cases)
    append_csv([{**vars(cases[0]), "regime": "holidays"}], path)
    with pytest.raises(ValueError, match="regime is 'holidays'"):
        read_cases(path)


def test_every_method_has_equally_many_trials_that_are_listed_once() -> None:
    assert {len(set(trials(method))) for method in SUPCON} == {6}
    listed = Path(fine_tuning.__file__).parent / "lists" / "select.csv"
    assert read_cases(listed) == list(dict.fromkeys(fine_tuning.select(SUPCON)))


def test_the_choice_is_the_better_mean_of_the_two_that_were_best_first(tmp_path: Path) -> None:
    method = Method("centre", 16)
    first = dict(zip(trials(method), (50.0, 49.0, 48.0, 10.0, 20.0, None), strict=True))
    best, second, *_ = first
    again = {replace(best, seed=6): 40.0, replace(second, seed=6): 42.0}
    rows = [
        {**vars(case), fine_tuning.FIGURE: "" if value is None else value}
        for case, value in {**first, **again}.items()
    ]
    append_csv(rows[:6], tmp_path / fine_tuning.RUNS)
    assert list(fine_tuning.again((method,), Runs(tmp_path))) == list(again)
    with pytest.raises(ValueError, match="make all runs of the stage before"):
        Runs(tmp_path).chosen(method)
    append_csv(rows[6:], tmp_path / fine_tuning.RUNS)
    assert Runs(tmp_path).chosen(method) == second
    confirmed = list(fine_tuning.confirm((method,), Runs(tmp_path)))
    assert Counter(case.regime for case in confirmed) == {
        "pretrained, 16 epochs, rate x 0.3, classes kept back": 5,
        "pretrained icons, 16 epochs, rate x 0.3": 5,
    }
    assert {case.norm for case in confirmed} == {second.norm}
    assert not {case.seed for case in confirmed} & {0, 6}


def test_longer_training_is_compared_with_training_as_long_by_own_pairs(tmp_path: Path) -> None:
    scores: dict[Case, float] = {}
    for method in fine_tuning.WHOLE_NETWORK:
        for number, trial in enumerate(trials(method)):
            scores |= {trial: 50.0 - number, replace(trial, seed=6): 50.0 - number}

    def add(seeds: tuple[int, ...], epochs: int | None, gains: list[float]) -> None:
        chosen = [next(trials(Method(name, 64, trained="whole network"))) for name in ("no-xbm", "xbn")]
        for seed, gain in zip(seeds, gains, strict=True):
            runs = [fine_tuning.confirmed(case, "pretrained", seed, epochs) for case in chosen]
            scores.update(dict(zip(runs, (60.0 + seed, 60.0 + seed + gain), strict=True)))

    def page() -> str:
        for name in (study.RUNS, BY_EPOCH, BY_CLASS):
            (tmp_path / name).unlink(missing_ok=True)
        rows = [{**vars(case), "recall_at_1": x, "map_at_r": x / 2} for case, x in scores.items()]
        append_csv(rows, tmp_path / study.RUNS)
        fine_tuning_report.write_fine_tuning(Study(tmp_path), tmp_path)
        return (tmp_path / fine_tuning_report.PAGE).read_text(encoding="utf-8")

    add((1, 2, 3), None, [-1.0, -2.0, -3.0])
    assert "for longer" not in page()
    add((1, 2), 8, [1.0, 2.0])
    lines = [line.split(" | ") for line in page().partition("for longer")[2].splitlines() if "Emoji" in line]
    assert [line[1:3] for line in lines] == [["4", "3"], ["8", "2"]]
    half = 4.3027 / 3**0.5  # t of two degrees of freedom, and differences with a deviation of 1
    assert [line[5] for line in lines] == [f"-2.0 (± {half:.1f})", f"+1.5 (± {12.706 * 0.5:.1f})"]
    assert lines[1][3:5] == ["61.5 (sd 0.7)", "63.0 (sd 1.4)"]
    assert lines[1][6].startswith("+0.8 ")
