"""The study's runs, its statistics and its page."""

from __future__ import annotations

import copy
from dataclasses import asdict
from itertools import product
from pathlib import Path

import numpy as np
import pytest
import torch
from benchmarks.study.converged import converged
from benchmarks.study.emoji import emoji
from benchmarks.study.first_steps import first_steps
from benchmarks.study.proposed import memories, proposed
from benchmarks.study.takeaways import losses, takeaways
from scipy.stats import ttest_1samp

from benchmarks.engine.accuracy import embed
from benchmarks.engine.diagnostics import embed_without_trace
from benchmarks.engine.results import RESULTS, append_csv, read_csv
from benchmarks.engine.run import Run
from benchmarks.study import __main__ as study
from benchmarks.study import cases as study_cases
from benchmarks.study import data as study_data
from benchmarks.study import prediction as study_prediction
from benchmarks.study import remedies
from benchmarks.study import report as study_report
from benchmarks.study import run as study_run
from benchmarks.study.cases import Case
from benchmarks.study.remedies import REMEDIES, MomentumEncoded, OldestRefreshed, WarmedUp
from benchmarks.study.task import StudyTask
from benchmarks.tuning.results import Tuning

CLASSES = 24
FRESH = Case("xbm", 1, 16, 0.5, "batch", "fast", 0)


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict]:
    """What tiny runs measured."""
    folder = tmp_path_factory.mktemp("study")
    patch = pytest.MonkeyPatch()
    patch.setitem(study_run._MEASURE_EVERY, "fast", 2)
    patch.setitem(study_cases.EPOCHS, ("fast", 16), (1, 2))
    study_run.train_warm_start(FRESH, folder, CLASSES)
    runs = {
        "xbm": Case("xbm", 0, 16, 0.5, "batch", "fast", 0),
        "always-fresh": FRESH,
        "no-xbm": Case("no-xbm", 0, 16, 0.0, "batch", "fast", 0),
    }
    try:
        return {name: study_run.train(case, folder, CLASSES) for name, case in runs.items()}
    finally:
        patch.undo()


def test_rows_that_are_always_fresh_are_not_stale(outcomes: dict[str, dict]) -> None:
    fresh, stale = (outcomes[name]["curve"] for name in ("always-fresh", "xbm"))
    assert len(fresh) == len(stale) > 3
    assert all(row["staleness_before"] == 0 for row in fresh)
    assert max(row["staleness_before"] for row in stale) > 0.01
    assert [row["staleness_after"] for row in stale] == [row["staleness_before"] for row in stale]


def test_older_rows_are_staler(outcomes: dict[str, dict]) -> None:
    ages = outcomes["xbm"]["ages"]
    assert [row["age_from"] for row in ages] == sorted(row["age_from"] for row in ages)
    assert ages[0]["before"] < ages[-1]["before"]


def test_without_a_memory_there_is_nothing_to_diagnose(outcomes: dict[str, dict]) -> None:
    assert outcomes["no-xbm"]["curve"] == []
    assert 0 < outcomes["no-xbm"]["result"]["recall_at_1"] <= 100


def test_refreshing_keeps_the_running_statistics() -> None:
    model = torch.nn.Sequential(torch.nn.Conv2d(1, 2, 3), torch.nn.BatchNorm2d(2))
    before = [buffer.clone() for buffer in (model[1].running_mean, model[1].running_var)]
    embed_without_trace(model, torch.randn(4, 1, 8, 8))
    assert torch.equal(model[1].running_mean, before[0])
    assert torch.equal(model[1].running_var, before[1])
    model(torch.randn(4, 1, 8, 8))
    assert not torch.equal(model[1].running_mean, before[0])


def test_every_run_is_planned_once() -> None:
    planned = list(study_cases.cases())
    assert len(set(planned)) == len(planned)
    for seed in study_cases.SEEDS:
        of_seed = [case for case in planned if case.seed == seed and not case.is_from_random_weights]
        assert len({case.warm_start() for case in of_seed}) == 5  # two batch sizes, two norms, and slow
        assert sum(case.refresh_every > 0 for case in of_seed) == 6


def write_runs(folder: Path, finals: dict[str, list[float]]) -> None:
    for name, values in finals.items():
        for seed, value in enumerate(values):
            case = Case(name, 0, 64, 0.0 if name == "no-xbm" else 0.5, "batch", "fast", seed)
            figures = {"recall_at_1": value, "map_at_r": value / 2, "drift": 0.01}
            if name != "no-xbm":
                names = ("staleness_before", "staleness_after", "push_displacement", "push_cosine")
                positives = (f"valid_positives_from_{source}" for source in ("batch", "memory"))
                figures |= dict.fromkeys((*names, *positives, "push_share", "push_push"), 0.25)
            curve = [{"step": 40 * step, **figures} for step in range(2)] if name != "no-xbm" else []
            ages = [{"age_from": 2, "rows": 10, "before": 0.5, "after": 0.25}] if curve else []
            study.save(case, {"result": figures, "curve": curve, "ages": ages, "epochs": []}, folder)


def test_differences_are_paired_and_have_students_interval(tmp_path: Path) -> None:
    ours, theirs = [50.0, 52.0, 57.0], [47.5, 51.0, 53.0]
    write_runs(tmp_path, {"no-xbm": theirs, "xbn": ours})
    measured = study_data.Study(tmp_path).difference(
        "xbn", "no-xbm", (64, 0.5, "batch", "fast"), "recall_at_1"
    )
    interval = ttest_1samp(np.subtract(ours, theirs), 0).confidence_interval(0.95)
    assert measured.mean == pytest.approx(np.mean(np.subtract(ours, theirs)))
    assert measured.half_width == pytest.approx((interval.high - interval.low) / 2)
    assert measured.sign == 0


def test_ages_that_few_rows_have_are_left_out(tmp_path: Path) -> None:
    case = Case("xbm", 0, 64, 0.5, "batch", "fast", 0)
    figures = {"recall_at_1": 40.0}
    rows = {1: 90, 2: 5, 4: 100}
    ages = [{"age_from": age, "rows": n, "before": age / 8, "after": 0.0} for age, n in rows.items()]
    study.save(case, {"result": figures, "curve": [{"step": 0}], "ages": ages, "epochs": []}, tmp_path)
    measured = study_data.Study(tmp_path).staleness_by_age("xbm", case.setting, "before")
    assert measured == ([1, 4], [0.125, 0.5])


@pytest.mark.parametrize(
    ("centre", "verdict"), [(51.0, "It is the displacement"), (42.0, "Displacement alone does not explain")]
)
def test_the_verdict_follows_the_figures(tmp_path: Path, centre: float, verdict: str) -> None:
    for method, refresh_every, recall in (("xbm", 0, 40.0), ("xbm", 1, 52.0), ("centre", 0, centre)):
        names = ("staleness_before", "staleness_after", "push_displacement", "push_cosine", "push_share")
        figures = {"recall_at_1": recall, "map_at_r": 20.0, **dict.fromkeys(names, 0.25)}
        case = Case(method, refresh_every, 64, 0.1, "batch", "fast", 0)
        study.save(case, {"result": figures, "curve": [], "ages": [], "epochs": []}, tmp_path)
    measured = study_data.Study(tmp_path)
    said = study_report._verdict(measured, measured.settings("fast", "batch"))
    assert verdict in said
    assert f"brings {100 * (centre - 40) / 12:.0f} to" in said


def test_a_run_is_done_only_when_its_row_is_written(tmp_path: Path) -> None:
    write_runs(tmp_path, {"xbm": [40.0]})
    case = Case("xbm", 0, 64, 0.5, "batch", "fast", 0)
    assert study.done(tmp_path / study.RUNS) == {case}
    assert case in set(study_cases.cases())
    assert study.done(tmp_path / "nothing.csv") == set()


def test_columns_that_come_later_are_added(tmp_path: Path) -> None:
    case = {name: str(value) for name, value in asdict(FRESH).items()}
    append_csv([{**case, "a": 1.0}], tmp_path / "x.csv")
    append_csv([{**case, "a": 2.0, "b": 1 / 3}], tmp_path / "x.csv")
    assert [(row["a"], row["b"]) for row in read_csv(tmp_path / "x.csv")] == [
        ("1", ""),
        ("2", "0.333333"),
    ]


def test_the_page_says_what_the_files_say(tmp_path: Path) -> None:
    write_runs(
        tmp_path, {"no-xbm": [50.0, 52.0], "xbm": [40.0, 43.0], "xbn": [51.0, 55.0], "centre": [49.0, 50.0]}
    )
    study_report.write_report(tmp_path)
    page = (tmp_path / "study.md").read_text()
    assert f"Unfinished: 8 of {len(list(study_cases.cases()))} runs" in page
    assert "XBM ends below No-XBM in 1 of 1 settings" in page
    assert "| batch 64, memory 50 %, BatchNorm | 51.0 ± 1.4 | 41.5 ± 2.1 | -9.5 (± 6.4)" in page
    assert "| batch 64, memory 50 %, BatchNorm | centre | no-xbm | -1.5 (± 6.4) | no |" in page
    for picture in ("accuracy", "diagnostics", "ages"):
        assert (tmp_path / f"study_{picture}.png").stat().st_size > 5_000


def test_without_files_it_says_what_to_run(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"run python -m benchmarks.study first"):
        study_data.Study(tmp_path)


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


def test_predictions_are_of_runs_that_were_not_fitted() -> None:
    measured, tuning = study_data.Study(RESULTS), Tuning(RESULTS)
    page = study_prediction.prediction(measured, tuning)
    known = study_prediction.cells(measured)
    fitted = {case: cell for case, cell in known.items() if study_prediction.is_fitted_on(case)}

    # On standardized numbers, with scikit-learn's penalty of half the squared weights.
    def hits(of: list[study_prediction.Cell], others: list[study_prediction.Cell]) -> int:
        x, new = (
            np.array([[*cell.measured[:2], np.log(1 + cell.measured[2])] for cell in group])
            for group in (others, of)
        )
        new, x = (torch.tensor((z - x.mean(axis=0)) / x.std(axis=0)) for z in (new, x))
        effects = torch.tensor([study_prediction.EFFECTS.index(cell.effect) for cell in others])
        weights, intercepts = (
            torch.zeros(shape, dtype=torch.float64, requires_grad=True) for shape in ((3, 3), (3,))
        )
        optimizer = torch.optim.LBFGS([weights, intercepts], max_iter=500, tolerance_grad=1e-9)

        def loss() -> torch.Tensor:
            optimizer.zero_grad()
            logits = x @ weights + intercepts
            value = torch.nn.functional.cross_entropy(logits, effects, reduction="sum")
            value = value + 0.5 * weights.square().sum()
            value.backward()
            return value

        optimizer.step(loss)
        said = (new @ weights + intercepts).argmax(dim=1)
        return sum(study_prediction.EFFECTS[k] == cell.effect for k, cell in zip(said, of, strict=True))

    found = 0
    for setting in {case.setting for case in fitted}:
        of = [cell for case, cell in fitted.items() if case.setting == setting]
        found += hits(of, [cell for case, cell in fitted.items() if case.setting != setting])
    elsewhere = [cell for _, cell in study_prediction.tuned_cells(tuning)]
    share = hits(elsewhere, list(fitted.values())) / len(elsewhere)
    assert f"it is right in {100 * found / len(fitted):.0f} %" in page
    assert f"other losses and learning rates in {100 * share:.0f} %" in page


def test_first_steps_are_those_with_rows_of_earlier_batches() -> None:
    tables = {"push": [{"share": 0.0, "displacement": 0.0}], "valid_pairs": [{}]}  # of an empty memory
    assert first_steps(tables) is None
    for step in range(9):
        tables["push"].append({"share": 0.1 * step, "displacement": 0.2})
        tables["valid_pairs"].append({"positives_from_memory": 6.0, "positives_from_batch": 2.0})
    assert first_steps(tables) == pytest.approx((0.3, 0.2, 3.0))


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
    alone = StudyTask(data, "xbn").loss_of(embeddings[:16], labels)
    both = task.loss_of(embeddings[:16], labels)
    logits = embeddings[:16] @ task.proxies.W / 0.05  # PML's temperature
    torch.testing.assert_close(both - alone, torch.nn.functional.cross_entropy(logits, labels))


def test_the_page_tells_of_the_proposals(tmp_path: Path) -> None:
    recalls = {"no-xbm": 50.0, "xbn": 52.0, "clusters": 51.0, "no-xbm+proxies": 53.0, "xbn+proxies": 53.5}
    for seed in range(2):
        for name, recall in recalls.items():
            ratio = 0.0 if name.startswith("no-xbm") else 0.1
            case = Case(name, 0, 64, ratio, "batch", "fast", seed)
            assert (case.memory != "no-xbm") == (ratio > 0)
            figures = {"recall_at_1": recall + seed, "map_at_r": recall / 2}
            study.save(case, {"result": figures, "curve": [], "ages": [], "epochs": []}, tmp_path)
    measured = study_data.Study(tmp_path)
    lines = [line.split(" | ")[1:] for line in proposed(measured).splitlines() if line.startswith("| ")][2:]
    assert [[*line[:-1], line[-1].removesuffix(" |")] for line in lines] == [
        ["clusters", "51.5 ± 0.7", "+1.0 (± 0.0)", "-1.0 (± 0.0)", "", ""],
        ["xbn+proxies", "54.0 ± 0.7", "+3.5 (± 0.0)", "+1.5 (± 0.0)", "+1.5 (± 0.0)", "+0.5 (± 0.0)"],
        ["no-xbm+proxies", "53.5 ± 0.7", "+3.0 (± 0.0)", "+1.0 (± 0.0)", "+3.0 (± 0.0)", ""],
    ]
    assert memories(measured, (64, 0.1, "batch", "fast")) == ["no-xbm", "xbn", "clusters"]


def test_the_page_tells_of_training_to_the_end(tmp_path: Path) -> None:
    finals = {("no-xbm", 0.0, 64): 76.0, ("xbn", 0.5, 64): 80.0, ("xbm", 0.5, 64): 74.5}
    for seed in range(2):
        for (name, ratio, batch_size), recall in (finals | {("no-xbm", 0.0, 512): 78.0}).items():
            case = Case(name, 0, batch_size, ratio, "batch", "converged", seed)
            figures = {"recall_at_1": recall + seed, "map_at_r": recall / 2, "minutes": 15.0}
            epochs = [{"epoch": n + 1, "recall_at_1": recall + seed - 0.1 * (9 - n)} for n in range(10)]
            study.save(case, {"result": figures, "curve": [], "ages": [], "epochs": epochs}, tmp_path)
    page = converged(study_data.Study(tmp_path), tmp_path)
    assert "at most half a point of Recall@1 in 8 of 8 runs." in page
    assert "took 2.0 hours" in page
    lines = [line.split(" | ") for line in page.splitlines() if line.startswith("| ")][2:]
    assert [line[1:] for line in lines] == [
        ["none", "no-xbm", "76.5 ± 0.7", "–", "–", "38.0 ± 0.0 |"],
        ["50 %", "xbm", "75.0 ± 0.7", "-1.5 (± 0.0)", "", "37.2 ± 0.0 |"],
        ["50 %", "xbn", "80.5 ± 0.7", "+4.0 (± 0.0)", "+5.5 (± 0.0)", "40.0 ± 0.0 |"],
        ["none", "no-xbm", "78.5 ± 0.7", "+2.0 (± 0.0)", "–", "39.0 ± 0.0 |"],
    ]
    assert (tmp_path / "study_converged.png").exists()
    ended, size, large = takeaways(study_data.Study(tmp_path), Tuning(tmp_path)).splitlines()
    assert "XBM to no memory -1.5 (± 0.0); XBN to XBM +5.5 (± 0.0); XBN to no memory +4.0 (± 0.0)." in ended
    assert size.endswith("no memory: batch 64, memory 50 %, long +4.0 (± 0.0).")
    assert "is +2.0 (± 0.0) points" in large
    assert "-2.0 (± 0.0) from XBN" in large


def test_the_page_compares_what_else_repairs_a_memory(tmp_path: Path) -> None:
    finals = {"no-xbm": 76.0, "xbm": 74.5, "xbm+warm-up": 77.5, "xbn": 80.0}
    for (name, recall), seed in product(finals.items(), range(2)):
        case = Case(name, 0, 64, 0.5 * (name != "no-xbm"), "batch", "converged", seed)
        figures = {"recall_at_1": recall + seed, "map_at_r": 50.0, "minutes": 15.0, "staleness_after": 0.4}
        epochs = [{"epoch": n + 1, "recall_at_1": recall} for n in range(10)]
        study.save(case, {"result": figures, "curve": [], "ages": [], "epochs": epochs}, tmp_path)
    measured = study_data.Study(tmp_path)
    page = converged(measured, tmp_path)
    line = (
        "| xbm+warm-up | 78.0 ± 0.7 | +1.5 (± 0.0) | +3.0 (± 0.0) | -2.5 (± 0.0) | 50.0 ± 0.0 | 0.40 | 15.0 |"
    )
    assert line in page.partition("Remedies beside adaptation")[2]
    ended = takeaways(measured, Tuning(tmp_path)).splitlines()[0]
    assert ended.endswith("What else repairs a memory, to XBN: xbm+warm-up -2.5 (± 0.0).")


def test_the_page_tells_where_our_classes_lose(tmp_path: Path) -> None:
    write_runs(tmp_path, {"no-xbm": [50.0, 52.0], "xbn": [49.0, 55.0], "unit-norm": [47.0, 49.5]})
    measured = study_data.Study(tmp_path)
    assert [(name, other) for _, name, other, _ in losses(measured)] == [("unit-norm", "no-xbm")]
    assert "unit-norm end below" not in takeaways(measured, Tuning(tmp_path))  # 2.75 ± 3.2
    write_runs(tmp_path, {"no-xbm": [50.0, 52.0], "unit-norm": [47.0, 49.2]})
    said = takeaways(study_data.Study(tmp_path), Tuning(tmp_path)).splitlines()[-1]
    assert "unit-norm end below" in said
    assert "XBN and AXBN do so in Recall@1: nowhere. In MAP@R: nowhere." in said
    write_runs(tmp_path, {"xbn": [48.0, 50.1]})
    said = takeaways(study_data.Study(tmp_path), Tuning(tmp_path)).splitlines()[-1]
    where = "xbn to no-xbm -1.9 (± 0.6) (batch 64, memory 50 %, BatchNorm)"
    assert f"in Recall@1: {where}. In MAP@R: {where.replace('-1.9 (± 0.6)', '-1.0 (± 0.3)')}." in said


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


def test_a_warmed_up_memory_is_filled_with_training_images(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remedies, "_WARMUP", 5)
    run = remedied(WarmedUp, "xbm")
    memory = run.task.loss_fn
    run.train_epoch(stop=lambda: run.step == remedies._WARMUP)
    assert memory.num_rows == 0
    run.train_epoch(stop=lambda: run.step == remedies._WARMUP + 1)
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
    expected = copy.deepcopy(warm.task.model)(images)
    run.train_epoch(stop=lambda: run.step == 1)
    if beside != "warm-up":  # which stores nothing yet
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


def test_the_page_compares_memories_on_emoji(tmp_path: Path) -> None:
    finals = {("no-xbm", 0.0, 64): 50.0, ("no-xbm", 0.0, 512): 51.0, ("xbm", 0.5, 64): 45.0}
    finals |= {("xbm+warm-up", 0.5, 64): 50.5, ("xbn", 0.5, 64): 53.0}
    for (name, ratio, batch_size), recall in finals.items():
        for seed in (1, 2):
            case = Case(name, 0, batch_size, ratio, "batch", "emoji, 60 epochs", seed)
            assert case in set(study_cases.cases())
            figures = {"recall_at_1": recall + seed, "map_at_r": recall / 2}
            gain = 0.75 if name == "xbm" else 0.25
            epochs = [{"epoch": 54, "recall_at_1": recall}, {"epoch": 60, "recall_at_1": recall + gain}]
            study.save(case, {"result": figures, "curve": [{}], "ages": [{}], "epochs": epochs}, tmp_path)
    assert not (tmp_path / study.CURVES).exists()
    measured = study_data.Study(tmp_path)
    page, (said,) = emoji(measured), takeaways(measured, Tuning(tmp_path)).splitlines()
    assert "xbn to no-xbm +3.0 (± 0.0); xbn to xbm+warm-up +2.5 (± 0.0);" in said
    assert said.endswith("xbm+warm-up to no-xbm +0.5 (± 0.0); xbm to no-xbm -5.0 (± 0.0).")
    assert "added more than 0.5 in 2 of 10 runs" in page
    lines = [line.split(" | ")[2:6] for line in page.splitlines() if line.startswith("| ")][2:]
    assert lines == [
        ["no-xbm", "51.5 ± 0.7", "–", "–"],
        ["no-xbm", "52.5 ± 0.7", "+1.0 (± 0.0)", "–"],
        ["xbm+warm-up", "52.0 ± 0.7", "+0.5 (± 0.0)", "–"],
        ["xbm", "46.5 ± 0.7", "-5.0 (± 0.0)", "-5.5 (± 0.0)"],
        ["xbn", "54.5 ± 0.7", "+3.0 (± 0.0)", "+2.5 (± 0.0)"],
    ]
