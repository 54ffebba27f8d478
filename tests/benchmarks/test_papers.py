from __future__ import annotations

import os
import shutil
import signal
from itertools import pairwise
from pathlib import Path

import pytest
import torch
from at_step import at_step
from comparisons import read_csv
from torch._dynamo.utils import counters
from training_script import (
    TINY,
    assert_equal,
    has_timm,
    result_of,
    run_script,
    state_of,
)

if not has_timm():
    pytest.skip("timm cannot be imported", allow_module_level=True)

from benchmarks.engine.keyed_items import Images, KeyedItems, Loader, load
from benchmarks.engine.ranks import Ranks
from benchmarks.engine.run import Run, quietly
from benchmarks.engine.task import Evaluated
from benchmarks.papers.augmentation import build_transforms
from benchmarks.papers.data import load_data
from benchmarks.papers.evaluation import Evaluation
from benchmarks.papers.presets import read_settings
from benchmarks.papers.session import Session
from benchmarks.papers.settings import METHODS, Settings
from benchmarks.papers.task import PapersTask

TABLES = {
    *("training", "accuracy", "embeddings", "drift_1", "staleness", "push", "memory_push", "valid_pairs"),
}
MEMORY_TABLES = {"staleness", "push", "memory_push", "valid_pairs"}
WITHOUT_MEMORY = ("no-xbm", "norm-softmax", "sgsl")
IMAGENET = {
    "mean": (0.485, 0.456, 0.406),
    "std": (0.229, 0.224, 0.225),
    "interpolation": "bicubic",
    "crop_pct": 0.95,
}


def read(*flags: str) -> Settings:
    return read_settings([*TINY, *flags])


@pytest.mark.parametrize("method", METHODS)
def test_every_method_trains_and_resumes_exactly(
    method: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    killed_run = tmp_path / "killed"
    flags = ["--method", method, "--memory-ratio", "0.2", "--no-nmi", "--epochs", "2"]
    flags += {
        "delayed": ["--delay", "1"],
        "norm-softmax": ["--class-ratio", "0.5"],
        "per-class": ["--beside", "CenterContrastiveLoss"],
        "sgsl": ["--beside", "RingLoss"],
    }.get(method, [])
    with at_step(5, shutil.copytree, tmp_path / "whole", killed_run):  # in the second epoch with memory
        run_script(monkeypatch, tmp_path / "whole", *flags)
    whole = state_of(tmp_path / "whole")
    assert state_of(killed_run)["run"]["epoch"] == 2
    assert whole["run"]["epoch"] == 3
    assert 0 <= result_of(tmp_path / "whole")["recall_at_1"] <= 100

    run_script(monkeypatch, killed_run, *flags, "--resume")
    assert_equal(state_of(killed_run), whole)
    assert_equal(state_of(killed_run, "selected.pt"), state_of(tmp_path / "whole", "selected.pt"))
    assert result_of(killed_run) == result_of(tmp_path / "whole")
    records = Path("seed-0", "logs", "records")
    names = sorted(path.name for path in (tmp_path / "whole" / records).glob("*.csv"))
    assert {name.partition(f"_{method}.".replace("-", "_"))[0] for name in names} == TABLES - (
        MEMORY_TABLES if method in WITHOUT_MEMORY else set()
    )
    for name in names:
        texts = [(folder / records / name).read_text() for folder in (tmp_path / "whole", killed_run)]
        assert texts[0] == texts[1]


def send(signal_number: signal.Signals) -> None:
    os.kill(os.getpid(), signal_number)


def test_ctrl_c_and_a_scheduler_are_obeyed_and_the_command_goes_on(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    flags = ["--method", "axbn", "--steps-per-epoch", "3", "--no-nmi", "--accumulate", "2"]
    flags += ["--dropout", "0.5", "--resume"]
    run_script(monkeypatch, tmp_path / "whole", *flags)
    for step, number, place in ((2, signal.SIGINT, (0, 2)), (3, signal.SIGTERM, (1, 2))):
        with pytest.raises(SystemExit, match="130"), at_step(step, send, number):
            run_script(monkeypatch, tmp_path / "stopped", *flags)
        state = state_of(tmp_path / "stopped")["run"]
        assert (state["epoch"], state["step"]) == place
        printed = capsys.readouterr().out.splitlines()[-1]
        assert printed.startswith(
            f"stopped, and saved in {tmp_path / 'stopped'}; to go on: python -m benchmarks.papers"
        )
        assert printed.endswith("--resume")
    run_script(monkeypatch, tmp_path / "stopped", *flags)
    assert_equal(state_of(tmp_path / "stopped"), state_of(tmp_path / "whole"))
    assert result_of(tmp_path / "stopped") == result_of(tmp_path / "whole")


def test_a_compiled_run_goes_on_without_a_compiler(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    parts = "1" if torch.__version__.startswith("2.1.") else "2"  # it compiles the second pass otherwise
    flags = ["--method", "xbn", "--no-nmi", "--accumulate", parts, "--resume"]
    run_script(monkeypatch, tmp_path / "whole", *flags)
    counters.clear()
    with pytest.raises(SystemExit), at_step(3, send, signal.SIGINT):
        run_script(monkeypatch, tmp_path / "stopped", *flags, "--compile", "eager")
    assert counters["stats"]["unique_graphs"] > 0
    run_script(monkeypatch, tmp_path / "stopped", *flags)
    assert_equal(state_of(tmp_path / "stopped"), state_of(tmp_path / "whole"))


def test_not_every_epoch_need_be_evaluated_and_a_checkpoint_can_be(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    flags = ["--method", "no-xbm", "--epochs", "4", "--eval-every", "2"]
    run_script(monkeypatch, tmp_path, *flags)
    run = state_of(tmp_path)["run"]
    assert [row["epoch"] for row in run["history"]["epochs"]] == [2, 4, 5]
    lines = [line for line in capsys.readouterr().out.splitlines() if line.startswith("epoch")]
    assert ["Recall@1" in line for line in lines] == [False, True, False, True, True]
    assert all(line.endswith("images/s") for line in lines)

    best = tmp_path / "seed-0" / "selected.pt"
    run_script(monkeypatch, tmp_path / "unused", *flags, "--evaluate", str(best))
    assert not (tmp_path / "unused").exists()
    printed = capsys.readouterr().out
    for name, value in result_of(tmp_path).items():
        if name in ("recall_at_1", "map_at_r"):
            assert f" {value:.2f} |" in printed


def test_repeated_runs_print_mean_and_deviation_and_are_not_run_over(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run_script(monkeypatch, tmp_path, "--method", "no-xbm", "--repeat", "2")
    printed = capsys.readouterr().out
    first, second = result_of(tmp_path, 0), result_of(tmp_path, 1)
    assert first != second
    mean = (first["recall_at_10"] + second["recall_at_10"]) / 2
    deviation = abs(first["recall_at_10"] - second["recall_at_10"]) / 2**0.5
    assert f"| Recall@10 | {mean:.2f} ± {deviation:.2f} | – |" in printed
    assert "| NMI |" in printed

    folder = tmp_path / "seed-1"
    epochs = read_csv(folder / "logs" / "records" / "accuracy_no_xbm.csv")
    assert max(float(row["recall_at_1"]) for row in epochs) == pytest.approx(second["recall_at_1"])
    with pytest.raises(SystemExit, match=r"seed-0 holds a run; pass --resume"):
        run_script(monkeypatch, tmp_path, "--method", "no-xbm")
    with pytest.raises(SystemExit, match=r"written with method='no-xbm', not 'xbn'"):
        run_script(monkeypatch, tmp_path, "--method", "xbn", "--resume")


def test_new_layers_train_alone_at_first() -> None:
    settings = read("--method", "xbn")
    run = Run(PapersTask(settings, load_data(settings), Ranks(cpu=True)))
    states = []
    for _ in range(2):
        states.append({name: p.detach().clone() for name, p in run.task.model.named_parameters()})
        assert run.train_epoch()
        assert run.task.loss_fn.num_rows == 8 * (0 if len(states) == 1 else 2)
    states.append(dict(run.task.model.named_parameters()))
    changed = [
        {name for name, before in first.items() if not torch.equal(before, second[name])}
        for first, second in pairwise(states)
    ]
    assert changed[0] == {name for name in states[0] if name.startswith("head.")}
    assert changed[1] == set(states[0])
    assert [row["learning_rate"] for row in run.history.steps] == [1e-3, 1e-3, 1e-4, 1e-4]


@pytest.mark.parametrize(("select", "epoch"), [("best-recall", 2), ("best-map", 3), ("last", 4)])
def test_the_selected_epoch_is_the_result(
    select: str, epoch: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    recalls, maps = iter([3.0, 5.0, 5.0, 4.0]), iter([1.0, 2.0, 3.0, 2.0])

    def scripted(evaluation: Evaluation, model: torch.nn.Module, *, nmi: bool = False) -> Evaluated:
        if nmi:
            return Evaluated({"recall_at_1": 0.0, "nmi": 77.0}, {"superclass_within_1": 0.5})
        return Evaluated({"recall_at_1": next(recalls), "map_at_r": next(maps)}, {"superclass_within_1": 0.1})

    monkeypatch.setattr(Evaluation, "__call__", scripted)
    settings = read("--method", "no-xbm", "--epochs", "3", "--select", select)
    run = Run(PapersTask(settings, load_data(settings), Ranks(cpu=True)))
    result = Session(run.task, tmp_path / "seed-0").train(quietly, lambda: False)
    assert result is not None
    assert (result["epoch"], result["nmi"], result["superclass_within_1"]) == (epoch, 77.0, 50.0)
    assert state_of(tmp_path, "selected.pt")["epoch"] == epoch


def test_memory_is_filled_after_its_warm_up() -> None:
    schedule = "--warmup-epochs 0 --epochs 1 --steps-per-epoch 3 --memory-warmup 1 --memory-ratio 0.5"
    settings = read("--preset", "xbm", *schedule.split())
    run = Run(PapersTask(settings, load_data(settings), Ranks(cpu=True)))
    rows = []
    run.train_epoch(stop=lambda: rows.append(run.task.loss_fn.num_rows))
    # Nothing in the first step; then whole batches of random images, and the batches that follow.
    assert rows[0] == 0
    assert rows[1] == min(run.task.loss_fn.memory_size, run.task.loss_fn.memory_size // 8 * 8 + 8)


def train_quietly(*flags: str, dropout: float = 0.0) -> Run:
    """All steps, without a folder."""
    settings = read("--epochs", "2", "--steps-per-epoch", "3", "--memory-ratio", "0.5", *flags)
    run = Run(PapersTask(settings, load_data(settings), Ranks(cpu=True)))
    # A layer that draws random numbers, which a diagnosis must repeat and put back.
    run.task.model.head = torch.nn.Sequential(torch.nn.Dropout(dropout), run.task.model.head)
    while run.epoch < run.task.length.epochs:
        run.train_epoch()
    return run


def test_diagnostics_leave_no_trace() -> None:
    measured, other = (
        train_quietly("--method", "axbn", "--diagnostics-every", every, dropout=0.5) for every in ("1", "0")
    )
    assert measured.history.diagnostics
    assert set(other.history.diagnostics) == {"embeddings"}
    assert (measured.history.epochs, measured.history.steps) == (other.history.epochs, other.history.steps)
    for part in ("model", "optimizer", "loss_fn"):
        assert_equal(measured.state_dict()[part], other.state_dict()[part])


@pytest.mark.parametrize("parts", ["1", "2"])
def test_images_are_embedded_as_they_were_when_they_were_stored(parts: str) -> None:
    """Or a model that does not learn would have stale rows."""
    rest = ["--accumulate", parts]
    rest += ["--learning-rate", "0", "--warmup-learning-rate", "0"]
    rows = train_quietly("--method", "xbm", *rest, dropout=0.5).history.diagnostics["staleness"]
    assert [row["step"] for row in rows] == [3, 4, 5, 6, 7, 8]  # none before there is a memory
    assert all(row["before_maximum"] < 1e-5 for row in rows)
    moved = ["--learning-rate", "0.01"]
    rows = train_quietly("--method", "xbm", *moved, dropout=0.5).history.diagnostics["staleness"]
    assert all(row["before_maximum"] > 0.1 for row in rows[-3:])


def test_rows_that_the_memory_was_filled_with_count_as_unknown() -> None:
    run = train_quietly("--method", "xbm", "--memory-warmup", "1", "--fill-memory", "--warmup-epochs", "0")
    rows = run.history.diagnostics["staleness"]
    assert [row["before_maximum"] > 0 for row in rows] == [False, False, True, True, True, True]
    assert run.history.diagnostics["valid_pairs"][1]["negatives_from_memory"] > 0


@pytest.mark.parametrize(
    "flags",
    [
        ["--update", "average", "--update-momentum", "0.9"],
        ["--update", "gradient", "--update-momentum", "0.5", "--update-learning-rate", "0.1"],
    ],
    ids=lambda flags: flags[1],
)
def test_rows_of_images_that_come_again_are_updated(flags: list[str]) -> None:
    rest = ["--memory-ratio", "1.0", "--memory-warmup", "1", "--fill-memory", "--warmup-epochs", "0"]
    run = train_quietly("--method", "xbm", *rest, *flags)
    memory = run.task.loss_fn
    ids = memory.id_memory[: memory.num_rows]
    assert len(ids.unique()) == len(ids) > 0
    assert torch.equal(memory.label_memory[: len(ids)], run.task.data.train.labels[ids])
    torch.testing.assert_close(
        memory.embedding_memory[: len(ids)].norm(dim=1), torch.ones(len(ids)), rtol=1e-4, atol=1e-4
    )
    assert run.history.diagnostics["staleness"]


def test_the_gradient_of_the_update_is_that_of_the_divided_loss() -> None:
    flags = ["--method", "xbm", "--update", "gradient", "--update-learning-rate", "0.5", "--batch-size", "16"]
    run = train_quietly(*flags, "--loss-per-anchor")
    assert run.task.loss_fn.update_learning_rate == 0.5 / 16


def test_the_update_factor_stores_more_batches_and_uses_one() -> None:
    rest = ["--memory-ratio", "1.0", "--memory-warmup", "1", "--warmup-epochs", "0", "--steps-per-epoch", "3"]
    one, three = (
        train_quietly("--method", "xbm", *rest, "--epochs", "1", "--update-factor", n) for n in "13"
    )
    assert three.task.loss_fn.num_calls == one.task.loss_fn.num_calls == 3
    assert three.task.loss_fn.num_rows == 3 * one.task.loss_fn.num_rows
    first, other = (run.history.steps[0]["loss"] for run in (one, three))
    assert first == other


def photographs() -> Images:
    from PIL import Image

    generator = torch.Generator().manual_seed(0)
    pixels = torch.randint(256, (4, 60, 80, 3), dtype=torch.uint8, generator=generator).numpy()
    items = [(Image.fromarray(image), label) for label, image in enumerate(pixels)]
    return Images(items, torch.arange(4), torch.arange(4))


@pytest.mark.parametrize("augmentation", ["timm", "crop", "resized-crop --color-jitter 0.3 --hue-jitter 0.1"])
def test_photographs_are_augmented_as_their_key_says(augmentation: str) -> None:
    settings = read(*f"--dataset sop --image-size 48 --augmentation {augmentation}".split())
    train, test = build_transforms(settings, IMAGENET)
    items = KeyedItems(photographs(), train, seed=3)
    state = torch.get_rng_state()
    image, label = items[(0, 1, 2, 3)]
    assert torch.equal(torch.get_rng_state(), state)
    assert (image.shape, label) == ((3, 48, 48), 3)
    assert torch.equal(items[(0, 1, 2, 3)][0], image)
    assert not torch.equal(items[(0, 2, 2, 3)][0], image)
    assert not torch.equal(KeyedItems(photographs(), train, seed=4)[(0, 1, 2, 3)][0], image)

    still = KeyedItems(photographs(), test, seed=3)
    assert torch.equal(still[(3,)][0], KeyedItems(photographs(), test, seed=4)[(3,)][0])


def test_workers_load_what_one_process_loads() -> None:
    settings = read()
    train, _ = build_transforms(settings, IMAGENET)
    items = KeyedItems(load_data(settings).train, train, seed=0)
    keys = [[(0, 0, 0, 5), (0, 0, 1, 9)], [(0, 1, 0, 2)]]
    alone, together = (list(load(items, keys, workers)) for workers in (0, 2))
    for one, other in zip(alone, together, strict=True):
        assert_equal(list(one), list(other))


def test_workers_live_on_whatever_is_left_of_an_epoch() -> None:
    images = Images([(0, 7)] * 9, torch.arange(9), torch.full((9,), 7))
    loader = Loader(KeyedItems(images, lambda image: (os.getpid(), torch.rand(())), seed=0), workers=2)
    epochs = [[[(epoch, step, 0, step)] for step in range(9)] for epoch in range(3)]
    first, begun, last = list(loader(epochs[0])), next(iter(loader(epochs[1]))), list(loader(epochs[2]))
    processes, numbers = ([float(batch[0][part]) for batch in (*first, begun, *last)] for part in (0, 1))
    assert len(set(processes)) == 2
    assert os.getpid() not in processes
    keys = [*epochs[0], epochs[1][0], *epochs[2]]
    alone = Loader(loader(keys).dataset, workers=0)(keys)
    assert numbers == [float(batch[0][1]) for batch in alone]


def test_glyphs_are_tested_under_the_demos_distortion() -> None:
    from benchmarks.demo.settings import Settings as DemoSettings
    from benchmarks.demo.task import GlyphsData

    data = load_data(read())
    test = GlyphsData(DemoSettings(batch_size=8, classes=8), torch.device("cpu")).test
    assert torch.equal(torch.stack([image for image, _ in data.queries.items]), test.images)
    assert torch.equal(data.queries.labels, test.labels)
