from __future__ import annotations

import math
import re
import shlex
import sys
from dataclasses import replace
from pathlib import Path
from typing import get_args

import pytest
import torch

import benchmarks.moco.__main__ as moco
import benchmarks.papers.__main__ as papers
from benchmarks.engine.accuracy import retrieval_accuracy
from benchmarks.engine.randomness import generator_for
from benchmarks.engine.results import spread
from benchmarks.papers import reproducing
from benchmarks.papers.evaluation import signs
from benchmarks.papers.experiments import EXPERIMENTS, Experiment
from benchmarks.papers.optimisation import clip_gradient, learning_rate, run_length
from benchmarks.papers.pml_parts import make_loss, make_miner
from benchmarks.papers.presets import read_settings
from benchmarks.papers.reproducing import result_table, same_experiments, table
from benchmarks.papers.settings import Head, Settings
from pml_xbn.heads import HEADS


def read(arguments: list[str] | str) -> Settings:
    words = arguments.split() if isinstance(arguments, str) else arguments
    return read_settings(words)


def test_list_can_be_filtered() -> None:
    assert set(table("XBM-paper").splitlines()) == {
        row for row in table().splitlines() if "`xbm-paper`" in row
    }
    assert len(table("cifar10 ").splitlines()) > len(table("moco").splitlines()) == 2


def test_moco_has_its_rows_and_its_figures(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    rows = [line for line in table().splitlines() if line.startswith("| `moco`")]
    commands = [shlex.split(row.split("`")[-2]) for row in rows]
    assert [command[1:3] for command in commands] == [["-m", "benchmarks.moco"]] * 2
    for command in commands:
        assert moco.read(command[3:]).methods == ("moco", "xbn")
    file = tmp_path / "moco_glyphs.csv"
    file.write_text("method,weighted_knn\nmoco,12.34\nxbn,56.78\n", encoding="utf-8")
    monkeypatch.setattr(reproducing, "MOCO_CSV", file)
    assert table().count("| moco 12.3; xbn 56.8 |") == 2


@pytest.mark.parametrize("experiment", EXPERIMENTS, ids=lambda e: f"{e.key}-{e.dataset}-{e.source}")
def test_every_command_of_the_table_is_its_own_experiment(experiment: Experiment) -> None:
    found = [same for same, differences in same_experiments(experiment.settings) if not differences]
    assert experiment in found


def test_every_command_can_be_tried_on_glyphs() -> None:
    trial = "--dataset glyphs --backbone resnet18 --no-pretrained"
    assert trial in table()
    commands = [e.arguments for e in EXPERIMENTS if e.dataset == "vehicle-id"]
    for command in {frozenset(re.findall("--[a-z-]+", command)): command for command in commands}.values():
        assert read(f"{command} {trial}").dataset == "glyphs"


def test_every_metric_of_the_papers_is_measured() -> None:
    from benchmarks.papers.evaluation import _MORE_RECALL_AT, _RECALL_AT

    for experiment in EXPERIMENTS:
        measured = {*_RECALL_AT, *_MORE_RECALL_AT.get(experiment.dataset, ())}
        logged = {f"separability_{name}" for name in ("between", "within", "criterion")}
        logged |= {*(f"superclass_within_{k}" for k in range(1, 6))}
        names = {f"recall_at_{k}" for k in measured} | {"nmi"} | logged
        assert set(experiment.figures) <= names, experiment


def test_flag_wins_over_config_over_preset_over_default(tmp_path: Path) -> None:
    config = tmp_path / "flags.txt"
    config.write_text(
        "--preset norm-softmax --dataset cub  # a comment\n--batch-size 50\n--epochs 7\n"
        "--miner-options pos_margin=0.3\n--no-normalize\n--weights 'a file'\n"
    )
    settings = read(f"--config {config} --epochs 3")
    assert settings.epochs == 3  # flag
    assert settings.batch_size == 50  # config, not the preset's 75
    assert settings.miner_options == {"pos_margin": 0.3}
    assert (settings.normalize, settings.weights) == (False, "a file")
    assert settings.learning_rate == 0.001  # preset on this data set
    assert settings.temperature == 0.05  # default
    assert read(f"--config {config} --preset axbn").learning_rate == 1e-4


@pytest.mark.parametrize(
    ("content", "message"),
    [("--methd xbn", "--methd"), ("--method xbnn", "'xbnn'"), ("--pretrained maybe", "maybe")],
)
def test_config_is_read_as_flags_are(
    content: str, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = tmp_path / "flags.txt"
    config.write_text(content)
    with pytest.raises(SystemExit):
        read(f"--config {config}")
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ("--memory-ratio 0", "memory_ratio is 0.0; it must be above 0"),
        ("--epochs 0", "epochs is 0; it must be a whole number above 0"),
        ("--random-erasing 3", "random_erasing is 3.0; it must be from 0 to 1"),
        ("--config absent.txt", "no config file absent.txt"),
        ("--method xbn --gamma 3", "--gamma has no effect with --method xbn; it is of sgsl"),
        (
            "--dataset cub --test-size large",
            "--test-size has no effect with --dataset cub; it is of vehicle-id",
        ),
        ("--augmentation crop --rand-augment none", "--rand-augment has no effect with --augmentation crop"),
    ],
)
def test_value_that_is_impossible_or_has_no_effect_is_named(flags: str, message: str) -> None:
    with pytest.raises((ValueError, FileNotFoundError), match=re.escape(message)):
        read(flags)


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ("--method xbnn", "'no-xbm', 'xbm'"),
        ("--dataset mnist", "'glyphs', 'han', 'sop'"),
        ("--preset mine", "'axbn', 'xbm'"),
        ("--loss-options temperature", "is not of the form name=value"),
    ],
)
def test_wrong_flag_is_named(flags: str, message: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        read(flags)
    assert message in " ".join(capsys.readouterr().err.replace("│", " ").split())


def test_every_head_is_a_flag() -> None:
    assert get_args(Head) == HEADS


def test_an_error_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["papers", "--epochs", "0"])
    with pytest.raises(SystemExit, match=r"^error: epochs is 0; it must be a whole number above 0$"):
        papers.main()


def test_options_are_python_values() -> None:
    settings = read("--loss ContrastiveLoss --loss-options pos_margin=1 distance=CosineSimilarity")
    assert settings.loss_options == {"pos_margin": 1, "distance": "CosineSimilarity"}
    loss = make_loss(settings.loss, settings.loss_options)
    assert type(loss.distance).__name__ == "CosineSimilarity"


def test_losses_get_the_sizes_that_they_ask_for() -> None:
    loss = make_loss("ArcFaceLoss", {}, num_classes=5, embedding_size=3)
    assert loss.W.shape == (3, 5)


def test_unknown_parts_are_named() -> None:
    with pytest.raises(ValueError, match=r"--loss is 'SupCon'; choose one of .*SupConLoss"):
        make_loss("SupCon", {})
    with pytest.raises(ValueError, match=r"--miner is 'Best'; choose one of .*PairMarginMiner"):
        make_miner("Best", {})
    with pytest.raises(ValueError, match=r"PairMarginMiner does not take \{.margin.: 1\}"):
        make_miner("PairMarginMiner", {"margin": 1})
    assert make_miner("none", {}) is None


def test_default_is_the_protocol_of_axbn() -> None:
    sop, fashion = read("--dataset sop"), read("--dataset deep-fashion2")
    assert (sop.memory_ratio, sop.gain_update_interval) == (0.5, 100)
    assert (fashion.memory_ratio, fashion.gain_update_interval) == (1.0, 10)


def learning_rates(settings: Settings, steps_per_epoch: int, at: list[int]) -> list[float]:
    length = run_length(settings, steps_per_epoch)
    return [learning_rate(settings, length, step) for step in at]


def test_learning_rates_are_the_papers() -> None:
    axbn = learning_rates(read("--dataset sop"), 930, [0, 15 * 930 - 1, 15 * 930, 45 * 930])
    assert axbn == pytest.approx([1e-4, 1e-4, 0.33e-4, 0.33**3 * 1e-4])
    xbm = learning_rates(read("--dataset sop --preset xbm"), 930, [23_999, 24_000, 33_999])
    assert xbm == pytest.approx([3e-4, 3e-5, 3e-5])
    softmax = learning_rates(read("--dataset cars --preset norm-softmax"), 107, [0, 15 * 107])
    assert softmax == pytest.approx([0.01, 0.001])
    sgsl = learning_rates(read("--dataset cars --preset sgsl"), 125, [0, 50 * 125, 100 * 125])
    assert sgsl == pytest.approx([0.05 / 100, 0.025, 0.0], abs=1e-12)
    rise = learning_rates(read("--dataset sop --preset sgsl"), 930, [0, 49, 99, 100])
    cosine = [0.5 * (1 + math.cos(math.pi * step / 93_000)) for step in (99, 100)]
    assert rise == pytest.approx([0.003 * factor for factor in (0.01, 0.5, *cosine)])


def test_gradient_is_shortened_to_the_limit() -> None:
    parameter = torch.nn.Parameter(torch.zeros(2))
    optimizer = torch.optim.SGD([parameter], lr=1.0)
    for limit, expected in ((10.0, [6.0, 8.0]), (0.0, [30.0, 40.0]), (100.0, [30.0, 40.0])):
        parameter.grad = torch.tensor([30.0, 40.0])
        clip_gradient(optimizer, limit)
        assert parameter.grad.tolist() == pytest.approx(expected, rel=1e-5)


def test_iterations_take_the_place_of_epochs() -> None:
    length = run_length(read("--preset xbm --dataset sop"), 930)
    assert (length.epochs, length.steps) == (37, 34_000)
    assert [length.steps_in(epoch) for epoch in (0, 35, 36)] == [930, 930, 34_000 - 36 * 930]
    length = run_length(read("--epochs 50"), 930)
    assert (length.epochs, length.steps) == (52, 52 * 930)


def brute_force_recall(
    queries: torch.Tensor, labels: torch.Tensor, gallery: torch.Tensor | None, other: torch.Tensor, k: int
) -> float:
    hits = 0
    for index, (query, label) in enumerate(zip(queries, labels, strict=True)):
        distances = ((queries if gallery is None else gallery) - query).double().norm(dim=1)
        if gallery is None:
            distances[index] = float("inf")
        hits += bool((other[distances.argsort()[:k]] == label).any())
    return 100 * hits / len(queries)


@pytest.mark.parametrize("protocol", ["among themselves", "in a gallery"])
def test_recall_is_that_of_a_plain_search(protocol: str) -> None:
    pytest.importorskip("faiss")
    generator = generator_for(protocol)
    rows = torch.nn.functional.normalize(torch.randn(60, 5, generator=generator))
    labels = torch.randint(12, (60,), generator=generator)
    gallery, gallery_labels = None, None
    if protocol == "in a gallery":
        gallery = torch.nn.functional.normalize(torch.randn(24, 5, generator=generator))
        gallery_labels = torch.arange(24) % 12
    else:
        labels = torch.arange(60) % 12
    measured = retrieval_accuracy(rows, labels, gallery, gallery_labels, recall_at=[1, 10, 20, 100], nmi=True)
    other = labels if gallery_labels is None else gallery_labels
    for k in (1, 10, 20):
        assert measured[f"recall_at_{k}"] == pytest.approx(
            brute_force_recall(rows, labels, gallery, other, k), abs=1e-4
        )
    assert "recall_at_100" not in measured  # there are not so many
    assert 0 < measured["nmi"] < 100
    assert 0 < measured["map_at_r"] < 100


def brute_force_map_at_r(
    queries: torch.Tensor, labels: torch.Tensor, gallery: torch.Tensor, other: torch.Tensor
) -> float:
    precisions = []
    for query, label in zip(queries, labels, strict=True):
        size = int((other == label).sum())
        right = other[(gallery - query).double().norm(dim=1).argsort()[:size]] == label
        found = [float(right[: rank + 1].double().mean()) for rank in range(size) if right[rank]]
        precisions.append(sum(found) / max(size, 1))
    return 100 * sum(precisions) / len(precisions)


@pytest.mark.parametrize("lone", [1, 20, 40])
def test_query_without_a_match_is_a_miss(lone: int) -> None:
    pytest.importorskip("faiss")
    generator = generator_for("misses")
    queries, gallery = (
        torch.nn.functional.normalize(torch.randn(size, 4, generator=generator)) for size in (40, 30)
    )
    labels, other = torch.arange(40) % 6, torch.arange(30) % 6
    labels[:lone] = 17
    measured = retrieval_accuracy(queries, labels, gallery, other, recall_at=[1, 10], nmi=False)
    for k in (1, 10):
        expected = brute_force_recall(queries, labels, gallery, other, k)
        assert measured[f"recall_at_{k}"] == pytest.approx(expected, abs=1e-4)
    assert measured["recall_at_10"] <= 100 - 100 * lone / 40
    expected = brute_force_map_at_r(queries, labels, gallery, other)
    assert measured["map_at_r"] == pytest.approx(expected, abs=1e-4)


def test_query_whose_class_has_no_other_image_is_a_miss_even_among_equal_embeddings() -> None:
    pytest.importorskip("faiss")
    rows = torch.nn.functional.normalize(torch.ones(6, 3))
    labels = torch.tensor([0, 1, 2, 3, 4, 4])
    measured = retrieval_accuracy(rows, labels, None, None, recall_at=[5], nmi=False)
    assert measured["recall_at_5"] <= 100 * 2 / 6 + 1e-4
    assert measured["map_at_r"] <= 100 * 2 / 6 + 1e-4


def test_bits_are_thresholded_at_zero() -> None:
    assert signs(torch.tensor([[-0.1, 0.0, 2.0]])).tolist() == [[-1.0, -1.0, 1.0]]


def test_several_runs_have_a_mean_and_a_deviation() -> None:
    assert spread([81.234], ".2f") == "81.23"
    assert spread([80.0, 81.0, 82.0], ".2f") == "81.00 (sd 1.00)"
    rows = [{"epoch": 3, "recall_at_1": 50.0, "nmi": 90.0}, {"epoch": 4, "recall_at_1": 52.0, "nmi": 90.0}]
    settings = {"pretrained weights": ("a.b", "not stated")}
    printed = result_table(rows, {"recall_at_1": "80.73 ± 0.30", "nmi": "7"}, "AXBN, Table 2", settings)
    assert "| Recall@1 | 51.00 ± 1.41 | 80.73 ± 0.30 |" in printed
    assert "| NMI | 90.00 ± 0.00 | 7 |" in printed
    assert "| epoch | 3, 4 | – |" in printed
    assert "| pretrained weights | a.b | not stated |" in printed


def test_differences_from_the_paper_are_named() -> None:
    settings = replace(read("--dataset sop --method xbn"), epochs=1)
    (experiment, differences), *_ = same_experiments(settings)
    assert experiment.source == "AXBN, Table 2"
    assert differences == ["epochs=1, theirs 50"]
    assert same_experiments(read("--dataset glyphs")) == []


def test_other_pretrained_weights_are_a_difference_from_the_paper() -> None:
    (experiment, differences), *_ = same_experiments(read("--preset xbm --dataset sop --backbone resnet50"))
    assert (experiment.key, experiment.weights) == ("xbm-paper", "resnet50.tv_in1k")
    assert differences == ["backbone='resnet50', theirs 'resnet50.tv_in1k'"]
    (experiment, _), *_ = same_experiments(read("--dataset sop"))
    assert experiment.weights == "not stated"


@pytest.mark.parametrize(
    ("flags", "row"),
    [
        ("--preset sgsl --dataset cub", "| class separability | 30.00 | 36.0 (SGSL, Table 5) |"),
        ("--preset sgsl --dataset cub", "| scatter within classes | – | 12.7 (SGSL, Table 5) |"),
        ("--preset sgsl --dataset cub", "| select | best-recall | best-recall |"),
        (
            "--preset thesis --dataset cifar100 --method xbn",
            "| superclass@2 | – | 84.81 (Thesis, Table 5.16) |",
        ),
        ("--preset xbm --dataset sop --select last", "| select | last | best-map |"),
        ("--preset xbm --dataset sop --select last", "in the paper: select='last', theirs 'best-map'"),
    ],
)
def test_figures_of_all_its_tables_stand_beside_a_result(
    flags: str, row: str, capsys: pytest.CaptureFixture[str]
) -> None:
    papers._print_results(
        read(flags), [{"epoch": 1, "recall_at_1": 60.0, "separability_criterion": 30.0, "map_at_r": 1.0}]
    )
    assert row in capsys.readouterr().out


def test_rows_that_a_run_repeats_as_well_are_named_beside_it(capsys: pytest.CaptureFixture[str]) -> None:
    papers._print_results(read("--preset norm-softmax --dataset cub"), [{"epoch": 1, "recall_at_1": 60.0}])
    printed = capsys.readouterr().out
    assert "NormSoftmax, Table 6, NMI Table 3, Figure 2" in printed
    assert "Also there: NormSoftmax, Table 4 (NormSoftmax 512, 25 samples per class): 61.3" in printed
    assert printed.count("Also there") == 1
