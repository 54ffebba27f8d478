"""The runs on Han: what is planned, trained, measured and written."""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from pytorch_metric_learning.losses import SupConLoss
from scipy.stats import t as student
from tiny_han_fonts import draw_tiny_han
from torch import Tensor

pytest.importorskip("fontTools")

from benchmarks.demo.settings import Settings as StudySettings
from benchmarks.engine.han import load_han
from benchmarks.engine.results import read_csv, write_csv
from benchmarks.han import __main__ as command
from benchmarks.han import cases as han
from benchmarks.han import gain, memories, train
from benchmarks.han.cases import PROXY_RATES, Case, memory, none
from benchmarks.han.data import load_split, shifted
from benchmarks.han.memories import NegativesOnly, StepLoss
from benchmarks.han.report import report
from benchmarks.study.budget import Budget
from benchmarks.study.data_sets import Roots
from pml_xbn.datasets import Han

STEPS = 12


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("data") / "han"
    draw_tiny_han(folder)
    return folder


@pytest.fixture
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    """Epochs of four steps, and runs of three."""
    monkeypatch.setattr(memories, "EPOCH", 4)
    monkeypatch.setattr(train, "_MEASUREMENTS", 4)
    monkeypatch.setenv("PML_XBN_MAX_STEPS", str(STEPS))


def of_size(case: Case) -> Case:
    """Returns the case with batches that the few classes of the tests can fill."""
    return replace(case, batch_size=16, steps=STEPS)


EVERY_METHOD = [
    *{case.method: case for case in (*han.FRONT, *han.OTHERS, *han.GAINS)}.values(),
    memory("xbn", batch_loss="ramp"),
    memory("xbm", batch_loss="1", loss="contrastive", memory=0.5),
    Case("xbn", classes=10),
]


@pytest.mark.parametrize("case", EVERY_METHOD, ids=lambda case: f"{case.method} {case.batch_loss}")
def test_every_method_trains_and_is_scored(case: Case, root: Path, short: None) -> None:
    outcome = train.run(of_size(case), root)
    assert "error" not in outcome.result
    for name in ("recall_at_1", "map_at_r", "recall_at_1_validation", "map_at_r_validation"):
        assert 0 <= outcome.result[name] <= 100
    assert outcome.result["images"] == 16 * STEPS
    assert [row["step"] for row in outcome.log] == list(range(3, STEPS + 1, 3))
    assert all(row["mean_loss"] > 0 for row in outcome.log)
    has_rows = case.method not in ("none", *PROXY_RATES)
    first = 4 if case.begins == "after an epoch" else 0
    measured = [row["step"] for row in outcome.log if "after" in row]
    assert measured == [row["step"] for row in outcome.log if has_rows and row["step"] > first]
    for row in outcome.log:
        if "after" in row and case.method in ("xbm", "xbm negatives"):
            assert row["after"] == row["before"]


def test_a_run_repeats_itself_and_its_measurements_leave_no_trace(
    root: Path, short: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    case = of_size(memory("xbn", batch_loss="1"))
    split = load_split(root, "train")
    first, log, _ = train.trained(case, split)
    monkeypatch.setattr(train, "_MEASUREMENTS", 1)
    second, shorter, _ = train.trained(case, split)
    assert len(log) == 4 * len(shorter)
    states = [training.model.state_dict() for training in (first, second)]
    for name, value in states[0].items():
        assert torch.equal(value, states[1][name]), name
    assert torch.equal(first.sources, second.sources)


def test_the_memory_knows_which_image_each_row_is_of(root: Path, short: None) -> None:
    training, _, _ = train.trained(of_size(Case("xbm", memory=0.5)), load_split(root, "train"))
    rows = training.loss.memory
    known = training.sources >= 0
    assert known[: rows.num_rows].all()
    assert torch.equal(training.train.labels[training.sources[known]], rows.label_memory[known])


def test_a_diverging_run_has_an_error(root: Path, short: None) -> None:
    outcome = train.run(replace(of_size(memory("xbn")), rate=1e38), root)
    assert outcome.result.keys() == {"error"}


def test_noise_and_distances_are_those_of_plain_numbers(root: Path, short: None) -> None:
    training, _, _ = train.trained(of_size(Case("xbm")), load_split(root, "train"))
    watch = train.Watch(training, 1)
    labels = torch.arange(8).repeat_interleave(2)
    batch = torch.randn(16, memories.DIM, generator=torch.Generator().manual_seed(0))
    found = watch.figures(batch, labels)
    numbers, rows = batch.double().numpy(), training.loss.memory
    spread = numbers.var(axis=0, ddof=1).sum()
    means = numbers.reshape(8, 2, -1).mean(axis=1)
    assert found["noise"] == pytest.approx(means.var(axis=0, ddof=1).sum() / 8 / spread, rel=1e-4)
    mean = rows.embedding_memory[: rows.num_rows].double().numpy().mean(axis=0)
    assert found["gap"] == pytest.approx(((numbers.mean(axis=0) - mean) ** 2).sum() / spread, rel=1e-4)
    stored, fresh = (x.double().numpy() for x in (rows.embedding_memory[watch.rows], watch.fresh))
    units = [x / np.linalg.norm(x, axis=1, keepdims=True) for x in (stored, fresh)]
    expected = ((units[0] - units[1]) ** 2).sum(axis=1).mean()
    assert found["before"] == pytest.approx(expected, rel=1e-4)
    shift = (stored - fresh).mean(axis=0)
    assert found["shift_after"] == pytest.approx((shift**2).sum() / spread, rel=1e-4)


@pytest.mark.parametrize("weight", [0.0, 1.0])
def test_negatives_only_takes_positives_from_the_batch(weight: float) -> None:
    draw = torch.Generator().manual_seed(0)
    rows, anchors = (torch.randn(size, memories.DIM, generator=draw) for size in (30, 8))
    of_rows, labels = torch.arange(30) % 6, torch.tensor([0, 0, 1, 1, 2, 2, 7, 7])
    loss = NegativesOnly(40, None, weight)
    loss.fill_memory(rows, of_rows)
    anchors.requires_grad_()
    value = loss(anchors, labels)
    units = [x / x.norm(dim=1, keepdim=True) for x in (anchors.double(), rows.double())]

    def plain(with_memory: bool) -> Tensor:
        terms = []
        for i, label in enumerate(labels):
            positives = [j for j in range(8) if j != i and labels[j] == label]
            pairs = [units[0][i] @ units[0][j] / 0.1 for j in range(8) if j != i]
            if with_memory:
                pairs += [units[0][i] @ units[1][j] / 0.1 for j in range(30) if of_rows[j] != label]
            total = torch.stack(pairs).exp().sum().log()
            terms += [total - units[0][i] @ units[0][j] / 0.1 for j in positives]
        return torch.stack(terms).mean()

    expected = plain(True) + weight * plain(False)
    torch.testing.assert_close(value.double(), expected, atol=1e-5, rtol=1e-5)
    ours, theirs = (torch.autograd.grad(x, anchors, retain_graph=True)[0] for x in (value, expected))
    torch.testing.assert_close(ours, theirs, atol=1e-5, rtol=1e-4)
    assert (loss.num_rows, loss.queue_idx) == (38, 38)
    torch.testing.assert_close(loss.embedding_memory[30:38], anchors.detach())


def test_without_a_memory_negatives_only_is_supcon() -> None:
    anchors, labels = torch.randn(8, memories.DIM), torch.arange(4).repeat_interleave(2)
    value = NegativesOnly(16, None, 0.0)(anchors, labels)
    torch.testing.assert_close(value, SupConLoss(0.1)(anchors, labels), atol=1e-5, rtol=1e-5)


def test_the_ramp_rises_within_an_epoch_and_falls_to_the_end() -> None:
    loss = StepLoss(memory("xbm", batch_loss="ramp"), 128, 10)
    weights = [loss.ramp(step) for step in range(han.EPOCH, han.STEPS)]
    assert weights[0] == pytest.approx(1 / han.EPOCH)
    assert weights[han.EPOCH - 1] == max(weights) == 1
    assert weights[-1] == pytest.approx(1 / (0.15 * han.STEPS))
    assert np.diff(weights[: han.EPOCH]).min() > 0 > np.diff(weights[-700:]).max()


def test_every_setting_has_three_rates_a_factor_of_two_apart() -> None:
    tried: dict[Case, list[float]] = {}
    for case in han.trials((*han.FRONT, *han.EQUAL, *han.OTHERS, *han.GAINS, *han.CONTRASTIVE)):
        tried.setdefault(case.setting, []).append(case.rate)
    for rates in tried.values():
        low, middle, high = sorted(rates)
        assert middle / low == high / middle == 2


def row_of(case: Case, value: float, others: float = 0.0) -> dict[str, Any]:
    return {**asdict(case), "map_at_r_validation": value, "map_at_r": others}


def test_a_rate_is_chosen_on_the_classes_that_choose_and_one_beyond_an_edge_is_tried(tmp_path: Path) -> None:
    none64, xbn = none(64), memory("xbn")
    rows = [row_of(replace(none64, rate=rate), rate, 100 - rate) for rate in (1.0, 2.0, 4.0)]
    rows += [row_of(replace(xbn, rate=rate), value) for rate, value in ((1.0, 5.0), (2.0, 7.0), (4.0, 6.0))]
    rows.append(row_of(replace(xbn, rate=4.0, seed=1), 99.0))  # no other seed has a say
    write_csv(rows, tmp_path / "runs.csv")
    found = read_csv(tmp_path / "runs.csv")
    assert han.best_rates(found) == {none64.setting: 4.0, xbn.setting: 2.0}
    assert list(han.beyond((none64, xbn), found)) == [replace(none64, rate=8.0)]
    expected = [replace(none64, rate=4.0, seed=1), replace(xbn, rate=2.0, seed=1)]
    assert list(han.chosen((none64, xbn), found, (1,))) == expected


def test_what_is_written_is_not_run_again(
    root: Path, tmp_path: Path, short: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    planned = [of_size(replace(case, rate=1e-3)) for case in (none(64), memory("xbn"), Case("xbm"))]
    monkeypatch.setattr(command, "planned", lambda path: iter(planned))
    settings = command.Settings(root=root, output=tmp_path, limit=2)
    command.train_all(settings)
    assert han.read_cases(read_csv(tmp_path / command.RUNS)) == planned[:2]
    command.train_all(settings)
    command.train_all(settings)
    assert han.read_cases(read_csv(tmp_path / command.RUNS)) == planned
    assert set(Counter(han.read_cases(read_csv(tmp_path / command.LOG))).values()) == {4}


def test_gains_are_noted_from_when_a_memory_begins(
    root: Path, short: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gain, "_EVERY", 2)
    for setting, steps in zip(gain.SETTINGS, ([2, 4, 6, 8, 10, 12], [6, 8, 10, 12]), strict=True):
        rows = [*gain.gains_along(of_size(setting), root)]
        assert [row["step"] for row in rows] == steps
        # Twelve steps are fewer than the window, in which rows follow wholly.
        assert {row["gain_of_mean"] for row in rows} == {row["gain_of_std"] for row in rows} == {1.0}


def test_shifts_move_every_image_as_a_whole() -> None:
    images = torch.arange(3 * 8 * 8, dtype=torch.uint8).view(3, 8, 8)
    moved = shifted(images, torch.Generator().manual_seed(1))
    for image, other in zip(images, moved, strict=True):
        possible = [torch.roll(image, (y, x), (0, 1)) for y in range(-2, 3) for x in range(-2, 3)]
        assert any(torch.equal(other, one) for one in possible)


def test_a_part_of_the_classes_is_numbered_anew(root: Path) -> None:
    few, every = load_split(root, "train", 10), load_split(root, "train")
    assert few.labels.unique().tolist() == list(range(10))
    assert few.labels.bincount().sum() == len(few.images) < len(every.images)


def test_the_study_has_han_with_clean_images_to_train_on(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(root.parents[1])
    monkeypatch.setattr("benchmarks.study.data_sets.Path", lambda name: root.parent)
    settings = StudySettings(classes=12, batch_size=16)
    data = Roots().open(settings, Budget("han", 1, is_kept_back=True))
    clean = Han("train", root, distortion=0)
    assert torch.equal(data.train.images, clean.images[clean.labels < 12][:, None])
    assert data.test.images.is_floating_point()
    assert len(data.test.superclasses) == 12
    assert data.test.checksum == clean.checksum
    assert torch.equal(load_han(root, "test", 12).images, data.test.images)
    assert data.network()(data.distorted(torch.arange(4), torch.Generator())).shape == (4, 128)


def write_report(folder: Path) -> str:
    """Three settings with seeds that choose and confirm, and one that has only been chosen."""
    seeds = {
        none(64): {0: 90.0, 1: 60.0, 2: 62.0, 3: 61.0},
        none(256): {0: 10.0, 1: 64.0, 2: 65.0, 3: 66.0},
        none(256, han.EPOCHS_IN_EQUAL_TIME): {0: 60.0, 1: 70.0, 2: 72.0, 3: 71.0},
        memory("xbn"): {0: 20.0, 1: 66.0, 2: 69.0, 3: 69.0},
        memory("xbm"): {0: 55.0},
    }
    rows, log = [], []
    for setting, by_seed in seeds.items():
        for seed, value in by_seed.items():
            case = replace(setting, seed=seed)
            figures = {"recall_at_1": value, "map_at_r": value / 2, "cpu_minutes": 2.0 + (seed == 1)}
            rows.append({**asdict(case), **figures, "map_at_r_validation": 50})
            for step in (100, 4000, 5000) if setting.method == "xbn" else ():
                numbers = dict.fromkeys(("shift_before", "gap", "before", "after", "floor"), 0.5)
                shift = 9.0 if step == 100 else 0.03
                log.append({**asdict(case), "step": step, "noise": 0.02, "shift_after": shift, **numbers})
        few = replace(setting, classes=350)
        for part, value in ((1, 40.0), (0.5, 41.0)):
            one = replace(few, rate=part * few.rate)
            figures = {"recall_at_1": value + len(setting.method), "map_at_r": 1.0, "cpu_minutes": 1.0}
            rows.append({**asdict(one), **figures, "map_at_r_validation": value})
    write_csv(rows, folder / command.RUNS)
    write_csv(log, folder / command.LOG)
    return report(folder)


def line_of(page: str, beginning: str) -> list[str]:
    (line,) = (line for line in page.splitlines() if line.startswith(f"| {beginning} |"))
    return [cell.strip() for cell in line.strip("|").split("|")]


def test_differences_are_paired_by_seed_without_the_one_that_chose(tmp_path: Path) -> None:
    page = write_report(tmp_path).split("## ")[1]
    found = line_of(page, "XBN, batch 64, warmed up, filled")
    gaps = {64: [6.0, 7.0, 8.0], 256: [2.0, 4.0, 3.0]}
    half = {size: student.ppf(0.975, 2) * np.std(x, ddof=1) / 3**0.5 for size, x in gaps.items()}
    assert found[1:5] == ["0.008", "3", "68.0", "34.0"]
    assert found[5] == f"+7.0 (± {half[64]:.1f})"
    assert found[7] == f"+3.0 (± {half[256]:.1f})"
    assert found[9:] == ["335,616", "5,244", "2.2"]
    assert line_of(page, "XBM, batch 64, warmed up, filled")[2:4] == ["the choice's", "55.0"]


def test_memories_are_compared_with_no_memory_of_as_many_minutes(tmp_path: Path) -> None:
    page = write_report(tmp_path).split("## ")[2]
    gaps = [66.0 - 70.0, 69.0 - 72.0, 69.0 - 71.0]
    half = student.ppf(0.975, 2) * np.std(gaps, ddof=1) / 3**0.5
    found = line_of(page, "XBN, batch 64, warmed up, filled")
    assert found[5:8:2] == ["–", f"{np.mean(gaps):+.1f} (± {half:.1f})"]
    assert "no memory, batch 256 |" not in page


def test_long_runs_come_after_the_rates_of_equal_minutes_and_memories_see_as_many_images(
    tmp_path: Path,
) -> None:
    order = list(han.planned(tmp_path / "no runs yet.csv"))
    last = max(order.index(case) for case in han.trials(han.EQUAL))
    assert order[last + 1 : last + 4] == list(han.LONG)
    memories = [case for case in han.LONG if case.method != "none"]
    assert {case.steps * case.batch_size for case in (*han.EQUAL, *memories)} == {14 * 874 * 64}
    rates = {case.setting: case.rate for case in memories}
    assert rates == {Case("xbn", steps=12_236).setting: 1.6e-2, memory("xbm", steps=12_236).setting: 8e-3}


def test_a_setting_that_has_lost_gets_no_further_seeds() -> None:
    scores = {none(64): 80.0, memory("xbn"): 79.5, Case("xbm"): 78.0, none(64, 14): 70.0}
    rows = [
        {**{name: str(value) for name, value in asdict(case).items()}, "map_at_r_validation": str(score)}
        for case, score in scores.items()
    ]
    cases = [memory("xbn"), Case("xbm"), Case("axbn"), replace(Case("xbm"), loss="contrastive")]
    assert han.not_lost(cases, rows) == [cases[0], *cases[2:]]  # of the last two there is no trial


def test_fewer_classes_take_the_better_of_two_rates(tmp_path: Path) -> None:
    page = write_report(tmp_path).split("## ")[3]
    lines = [line for line in page.splitlines() if line.startswith("| 350 |")]
    assert [line.split("|")[4].strip() for line in lines] == ["45.0", "45.0", "44.0", "44.0"]
    assert "| 9.1 % |" in lines[0]


def test_noise_is_of_the_last_third(tmp_path: Path) -> None:
    found = line_of(write_report(tmp_path).split("## ")[4], "XBN, batch 64, warmed up, filled")
    assert found[1:5] == ["2.00", "25.00", "1.50", "25.00"]
