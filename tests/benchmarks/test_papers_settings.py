from __future__ import annotations

import math
import re
import shlex
from dataclasses import replace
from pathlib import Path

import pytest
import torch

import benchmarks.moco.__main__ as moco
import benchmarks.papers.__main__ as papers
from benchmarks.engine.results import spread
from benchmarks.papers import reproducing
from benchmarks.papers.evaluation import signs
from benchmarks.papers.experiments import EXPERIMENTS
from benchmarks.papers.methods import LossSetup, build_loss
from benchmarks.papers.optimisation import clip_gradient, learning_rate, run_length
from benchmarks.papers.presets import read_settings
from benchmarks.papers.reproducing import result_table, same_experiments, table
from benchmarks.papers.settings import Settings


def read(arguments: list[str] | str) -> Settings:
    words = arguments.split() if isinstance(arguments, str) else arguments
    return read_settings(words)


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


def test_every_command_of_the_table_is_its_own_experiment_and_has_a_loss() -> None:
    names = ("method", "loss", "loss_options", "miner", "miner_options", "update", "batch_loss_weight")
    setup = LossSetup(8, 64, superclasses=torch.zeros(10).long(), num_classes=10, world_size=1)
    built = set()
    for experiment in EXPERIMENTS:
        found = [same for same, differences in same_experiments(experiment.settings) if not differences]
        assert experiment in found, experiment
        kind = str([getattr(experiment.settings, name) for name in names])
        if kind not in built:
            assert build_loss(experiment.settings, setup) is not None
            built.add(kind)


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
