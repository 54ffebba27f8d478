"""The study's runs, its statistics and its page."""

from __future__ import annotations

import copy
import re
from dataclasses import asdict
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy.stats import t as student
from scipy.stats import ttest_1samp

from benchmarks.engine.accuracy import embed
from benchmarks.engine.diagnostics import embed_without_trace
from benchmarks.engine.results import append_csv, read_csv
from benchmarks.engine.run import Run
from benchmarks.study import __main__ as study
from benchmarks.study import cases as study_cases
from benchmarks.study import report as study_report
from benchmarks.study import run as study_run
from benchmarks.study.cases import Case
from benchmarks.study.measured import Study
from benchmarks.study.remedies import REMEDIES, MomentumEncoded, OldestRefreshed, WarmedUp
from benchmarks.study.task import StudyTask

CLASSES = 24
FRESH = Case("xbm", 1, 16, 0.5, "batch", "fast", 0)


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict]:
    """What tiny runs measured."""
    folder = tmp_path_factory.mktemp("study")
    patch = pytest.MonkeyPatch()
    patch.setitem(study_cases.EPOCHS, ("fast", 16), (1, 2))
    study_run.train_warm_start(FRESH, folder, CLASSES)
    runs = {
        "xbm": Case("xbm", 0, 16, 0.5, "batch", "fast", 0),
        "always-fresh": FRESH,
        "no-xbm": Case("no-xbm", 0, 16, 0.0, "batch", "fast", 0),
    }
    try:
        return {
            name: study_run.train(case, folder, CLASSES, pace=study_run.Pace(measured_every=2))
            for name, case in runs.items()
        }
    finally:
        patch.undo()


def test_rows_that_are_always_fresh_are_not_stale(outcomes: dict[str, dict]) -> None:
    fresh, stale = (outcomes[name]["result"] for name in ("always-fresh", "xbm"))
    assert fresh["staleness_before"] == 0
    assert stale["staleness_after"] == stale["staleness_before"] > 0.01
    assert "staleness_before" not in outcomes["no-xbm"]["result"]


def write_runs(folder: Path, finals: dict[str, list[float]]) -> None:
    for name, values in finals.items():
        for seed, value in enumerate(values):
            case = Case(name, 0, 64, 0.0 if name == "no-xbm" else 0.5, "batch", "converged", seed)
            accuracy = {"recall_at_1": value, "map_at_r": value / 2}
            epochs = [
                {"epoch": n, "loss": 1.0, **accuracy, "recall_at_1": value - 9 + n} for n in range(1, 10)
            ]
            study.save(case, {"result": {**accuracy, "cpu_minutes": 6.0}, "epochs": epochs}, folder)


def test_intervals_are_of_a_methods_own_pairs(tmp_path: Path) -> None:
    none, xbn, star, xbm = [50.0, 52.0, 57.0], [53.0, 53.5, 61.0], [51.0, 52.5, 56.0], [40.0, 5.0, 44.0]
    write_runs(tmp_path, {"no-xbm": none, "xbm": xbm, "xbn": xbn, "xbm-star": star, "centre": [54.0]})
    found = Study(tmp_path).differences((64, 0.5, "batch", "converged"), "no-xbm")
    for name, of_seeds in (("xbn", xbn), ("xbm-star", star), ("xbm", xbm)):
        interval = ttest_1samp(np.subtract(of_seeds, none), 0).confidence_interval(0.95)
        assert found[name].mean == pytest.approx(np.mean(of_seeds) - np.mean(none))
        assert found[name].half_width == pytest.approx((interval.high - interval.low) / 2)
    assert (found["centre"].mean, found["centre"].half_width) == (4.0, None)


def test_an_interval_over_classes_and_seeds_is_that_of_a_bootstrap(tmp_path: Path) -> None:
    draw = np.random.default_rng(0)
    images = draw.integers(3, 5, 40)
    hits = {name: draw.binomial(images, chance, (3, 40)) for name, chance in (("xbn", 0.6), ("no-xbm", 0.5))}
    for name, of_seeds in hits.items():
        for seed, of_classes in enumerate(of_seeds, start=1):
            case = Case(name, 0, 64, 0.0 if name == "no-xbm" else 0.5, "batch", "pretrained, 16 epochs", seed)
            accuracy = {"recall_at_1": 100 * of_classes.sum() / images.sum(), "map_at_r": 1.0}
            words = {"hits": " ".join(map(str, of_classes)), "images": " ".join(map(str, images))}
            study.save(case, {"result": accuracy, "epochs": [], "classes": words}, tmp_path)
    gaps, means = hits["xbn"] - hits["no-xbm"], []
    for _ in range(4000):
        seeds, classes = draw.integers(3, size=3), draw.integers(40, size=40)
        means.append(100 * gaps[seeds][:, classes].mean(axis=0).sum() / images[classes].sum())
    setting = (64, 0.5, "batch", "pretrained, 16 epochs")
    text = Study(tmp_path).bootstrapped("xbn", "no-xbm", setting)
    mean, low, high = (float(word) for word in re.findall(r"[+-][\d.]+", text))
    assert mean == pytest.approx(100 * gaps.sum() / 3 / images.sum(), abs=0.05)
    assert (low, high) == pytest.approx(np.quantile(means, [0.025, 0.975]), abs=0.6)
    assert text.endswith("; 3)")
    study_report.write_report(tmp_path)
    assert f"| batch 64, memory 50 % | {text} | – | – | – |" in (tmp_path / "study.md").read_text()


def test_columns_that_come_later_are_added(tmp_path: Path) -> None:
    case = {name: str(value) for name, value in asdict(FRESH).items()}
    append_csv([{**case, "a": 1.0}], tmp_path / "x.csv")
    append_csv([{**case, "a": 2.0, "b": 1 / 3}], tmp_path / "x.csv")
    assert [(row["a"], row["b"]) for row in read_csv(tmp_path / "x.csv")] == [
        ("1", ""),
        ("2", "0.333333"),
    ]


def test_the_page_says_what_the_files_say(tmp_path: Path) -> None:
    write_runs(tmp_path, {"no-xbm": [50.0, 52.0], "xbm+warm-up": [51.0, 52.0], "xbn": [54.0, 56.0]})
    study_report.write_report(tmp_path)
    page = (tmp_path / "study.md").read_text()
    assert f"6 of {len(list(study_cases.cases()))} planned runs" in " ".join(page.split())
    assert "took 0.6 hours" in page
    across = next(line for line in page.splitlines() if line.startswith("| Glyphs, 30 epochs"))
    half_width = student.ppf(0.975, 1) * np.std([1, 0], ddof=1) / 2**0.5
    assert f"| 51.0 (sd 1.4) | +0.5 (± {half_width:.1f}) | – | – | +4.0 (± 0.0) |" in across
    # No memory ends at 50 and 52, which XBN has after 5 of 9 epochs, of six minutes.
    none, warmed, xbn = "9, 6.0 min (2 of 2)", "8, 5.7 min (2 of 2)", "5, 3.3 min (2 of 2)"
    assert f"| glyphs, 30 epochs | {none} | {warmed} | – (0 of 0) | {xbn} | – (0 of 0) |" in page
    last_tenth = "The last tenth of the epochs, or the last one, added +1.0 points on average"
    assert f"{last_tenth}, and more than 0.5 in 6 of 6 runs" in page


def test_the_converged_regime_goes_to_the_end_at_falling_rates() -> None:
    case = Case("xbn", 0, 64, 0.5, "batch", "converged", 0)
    data = study_run._data(case, CLASSES)
    task = StudyTask(data, case.method, milestones=study_run._milestones(case))
    rates = []
    for _ in range(30):
        rates.append(task.optimizer.param_groups[0]["lr"])
        task.optimizer.step()
        task.end_epoch()
    assert rates == pytest.approx([1e-3] * 18 + [2e-4] * 8 + [4e-5] * 4)
    strong = study_run._data(Case("xbn", 0, 64, 0.5, "batch", "fast", 0), CLASSES)
    upright = data.train.images[data.batches.epoch(0)[0]].float() / 255
    far, near = ((d.images(0, 0) - upright).square().mean() for d in (strong, data))
    assert near < 0.7 * far


def test_a_classification_loss_beside_the_memory_begins_at_the_classes_means() -> None:
    data = study_run._data(Case("xbn", 0, 16, 0.5, "batch", "fast", 0), CLASSES)
    task = StudyTask(data, "xbn")
    task.optimizer.param_groups[0]["lr"] = 1e-4
    task.add_proxies()
    embeddings = embed(task.model, data.train.images.float() / 255)
    for label in range(CLASSES):
        mean = embeddings[data.train.labels == label].mean(dim=0)
        torch.testing.assert_close(task.proxies.W[:, label], mean / mean.norm(), rtol=1e-4, atol=1e-5)
    assert [group["lr"] for group in task.optimizer.param_groups] == [1e-4, 1e-4]
    labels = data.train.labels[:16]
    alone = StudyTask(data, "xbn").batch_loss(embeddings[:16], labels)
    both = task.batch_loss(embeddings[:16], labels)
    logits = embeddings[:16] @ task.proxies.W / 0.05  # PML's temperature
    torch.testing.assert_close(both - alone, torch.nn.functional.cross_entropy(logits, labels))


def test_a_run_keeps_its_own_schedule_when_it_starts_from_another() -> None:
    data = study_run._data(Case("xbn", 0, 16, 0.5, "batch", "fast", 0), CLASSES)
    warm, ours = (Run(StudyTask(data, "no-xbm", milestones=milestones)) for milestones in ([1, 2], [1, 4]))
    for _ in range(2):
        warm.train_epoch()
    ours.start_from(warm.state_dict())
    rates = []
    for _ in range(4):
        rates.append(ours.task.optimizer.param_groups[0]["lr"])
        ours.task.optimizer.step()
        ours.task.end_epoch()
    assert rates == pytest.approx([4e-5, 4e-5, 8e-6, 8e-6])


def remedied(build: type[StudyTask], method: str, **options: float) -> Run:
    """A tiny run, whose diagnostics follow the rows."""
    data = study_run._data(Case(method, 0, 16, 0.5, "batch", "fast", 0), CLASSES)
    return Run(build(data, method, int(build is OldestRefreshed), None, 1, **options))


def test_a_warmed_up_memory_is_filled_with_training_images() -> None:
    run = remedied(WarmedUp, "xbm", steps=5)
    memory = run.task.loss_fn
    run.train_epoch(stop=lambda: run.step == 5)
    assert memory.num_rows == 0
    run.train_epoch(stop=lambda: run.step == 6)
    assert memory.num_rows == memory.memory_size
    of_class = torch.bincount(run.task.data.train.labels)
    assert (torch.bincount(memory.label_memory, minlength=len(of_class)) <= of_class + 4).all()  # and a batch
    assert memory.embedding_memory.norm(dim=1).min() > 0


def test_a_momentum_encoders_weights_are_the_moving_average() -> None:
    run = remedied(MomentumEncoded, "xbm", momentum=0.9)
    task = run.task
    average = task.model.embedding.weight.detach().double()
    for step in range(1, 6):
        images, labels = next(iter(task.batches(0, step - 1)))
        before = copy.deepcopy(task.encoder if step > 1 else task.model)
        run.train_epoch(stop=lambda step=step: run.step == step)
        with torch.no_grad():
            torch.testing.assert_close(
                task.loss_fn.embedding_memory[16 * (step - 1) : 16 * step], before(images)
            )
        assert torch.equal(task.loss_fn.label_memory[16 * (step - 1) : 16 * step], labels)
        now = task.model.embedding.weight.detach().double()
        average = 0.9 * average + 0.1 * now
        torch.testing.assert_close(task.encoder.module.embedding.weight.detach().double(), average)


@pytest.mark.parametrize("beside", REMEDIES)
def test_a_remedy_begins_with_the_model_that_the_run_starts_from(beside: str) -> None:
    warm = remedied(StudyTask, "no-xbm")
    warm.train_epoch()
    run = remedied(REMEDIES[beside], "xbm")
    run.start_from(warm.state_dict())
    images, _ = next(iter(run.task.batches(1, 0)))
    expected = copy.deepcopy(warm.task.model).train(beside != "evaluation rows")(images)
    run.train_epoch(stop=lambda: run.step == 1)
    if not beside.startswith("warm-up"):  # which stores nothing yet
        torch.testing.assert_close(run.task.loss_fn.embedding_memory[:16], expected.detach())


def test_the_batch_that_was_embedded_first_is_embedded_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    run, found = remedied(OldestRefreshed, "xbm"), []
    task = run.task
    choose = task.stale
    monkeypatch.setattr(task, "stale", lambda stored, now: found.append(choose(stored, now)) or found[-1])
    batches, embedded, compared = task.loss_fn.memory_size // 16, {}, 0
    for now in range(3 * batches):
        before = copy.deepcopy(task.model)
        run.train_epoch(stop=lambda: True)  # a step
        stored = range(max(0, now - batches), now)
        assert len(found[now]) == bool(stored)
        for step, places, of_batch in found[now]:
            assert embedded.get(step, step) == min(embedded.get(other, other) for other in stored)
            embedded[step] = now
            if step % batches != now % batches:  # else this step has stored over it
                fresh = embed_without_trace(before, task.data.images(*divmod(step, task.steps_per_epoch)))
                torch.testing.assert_close(task.loss_fn.embedding_memory[places], fresh[of_batch])
                compared += 1
    assert compared > 2 * batches
