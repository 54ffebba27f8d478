from __future__ import annotations

import ast
import io
import json
import os
import re
import runpy
import shutil
import signal
import sys
import warnings
from contextlib import redirect_stdout
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
import torch
from at_step import at_step
from forked import run_script
from ranks import on_ranks
from script_on_few_glyphs import FewGlyphs
from tiny_han_fonts import draw_tiny_han
from torch import distributed
from training_script import assert_equal, has_timm

import pml_xbn.datasets

SUPPORT = Path(__file__).parents[1] / "support"
EXAMPLES = Path(__file__).parents[2] / "examples"
FRAMEWORKS = {  # of the examples that tests/integrations runs
    "accelerate_loop": {"accelerate"},
    "hugging_face_trainer": {"transformers"},
    "lightning_module": {"lightning"},
    "pml_trainer": set(),
    "sentence_transformers_loss": {"datasets", "sentence_transformers", "tokenizers", "transformers"},
}
SHORT = (
    *("swap", "train_sop", "fine_tune", "search", "moco", "distributed", "sharded", "fully_sharded"),
    *("diagnose", "own_adapter"),
    *FRAMEWORKS,
)
LIBRARIES = {
    *("pml_xbn", "pytorch_metric_learning", "torch", "torchvision", "timm", "numpy", "tqdm"),
    *("faiss", "matplotlib", "PIL"),
    *sys.stdlib_module_names,
}


@pytest.fixture
def few_glyphs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pml_xbn.datasets, "Glyphs", FewGlyphs)


def run(monkeypatch: pytest.MonkeyPatch, name: str, *arguments: str) -> None:
    monkeypatch.setattr(sys, "argv", [f"{name}.py", *arguments])
    runpy.run_path(str(EXAMPLES / f"{name}.py"), run_name="__main__")


def state_of(output: Path) -> dict[str, Any]:
    state: dict[str, Any] = torch.load(output / "last.pt", weights_only=True)
    return state


@pytest.mark.parametrize("name", SHORT)
def test_a_script_imports_nothing_of_ours_but_the_package(name: str) -> None:
    tree = ast.parse((EXAMPLES / f"{name}.py").read_text(encoding="utf-8"))
    imported = {a.name for node in ast.walk(tree) if isinstance(node, ast.Import) for a in node.names}
    imported |= {str(node.module) for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    assert {module.split(".")[0] for module in imported} <= LIBRARIES | FRAMEWORKS.get(name, set())
    assert f"examples/{name}.py" in (ast.get_docstring(tree) or "")


@pytest.fixture(scope="module")
def without_extras() -> dict[str, dict[str, Any]]:
    """What the examples say with the core install alone."""
    finished = run_script(SUPPORT / "examples_without_extras.py", str(EXAMPLES))
    assert finished.returncode == 0, finished.stderr
    return {said["name"]: said for said in map(json.loads, finished.stdout.splitlines())}


@pytest.mark.parametrize("name", SHORT)
def test_help_needs_the_core_install_alone_and_what_is_missing_is_named(
    name: str, without_extras: dict[str, dict[str, Any]]
) -> None:
    assert without_extras[name]["status"] == 0
    assert f"examples/{name}.py" in without_extras[name]["help"]
    assert re.fullmatch(r"\w+ is missing: pip install .*\.\[examples\]\"", without_extras[name]["error"])


@pytest.mark.skipif(not has_timm(), reason="timm cannot be imported")
def test_han_takes_the_place_of_products(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("fontTools")
    draw_tiny_han(tmp_path / "han")
    flags = ["--dataset", "han", "--root", str(tmp_path / "han"), "--epochs", "1", "--workers", "1"]
    run(monkeypatch, "train_sop", *flags, "--output", str(tmp_path / "out"))
    assert re.search(r"^epoch 1: Recall@1 \d+", capsys.readouterr().out, re.MULTILINE)


@pytest.mark.skipif(not has_timm(), reason="timm cannot be imported")
def test_frozen_batch_norm_keeps_its_statistics(
    monkeypatch: pytest.MonkeyPatch, few_glyphs: None, tmp_path: Path
) -> None:
    moved = {}
    for norm in ("trains", "frozen"):
        flags = ["--dataset", "glyphs", "--epochs", "1", "--workers", "1", "--batch-norm", norm]
        flags += ["--miner", "pair-margin"]
        run(monkeypatch, "train_sop", *flags, "--output", str(tmp_path / norm))
        network = torch.load(tmp_path / norm / "last.pt", weights_only=True)["network"]
        moved[norm] = [bool(network[name].any()) for name in network if name.endswith("running_mean")]
    assert all(moved["trains"])
    assert not any(moved["frozen"])


@pytest.mark.skipif(not has_timm(), reason="timm cannot be imported")
def test_a_run_is_neither_overwritten_nor_resumed_with_other_settings(
    monkeypatch: pytest.MonkeyPatch, few_glyphs: None, tmp_path: Path
) -> None:
    flags = ["--dataset", "glyphs", "--epochs", "1", "--workers", "0", "--output", str(tmp_path)]
    run(monkeypatch, "train_sop", *flags)
    before = (tmp_path / "last.pt").read_bytes()
    with pytest.raises(SystemExit, match="is of an earlier run: pass --resume"):
        run(monkeypatch, "train_sop", *flags)
    with pytest.raises(SystemExit, match=r"'batch_size': '64'.*: pass the same, or another --output"):
        run(monkeypatch, "train_sop", *flags, "--resume", "--batch-size", "32")
    assert (tmp_path / "last.pt").read_bytes() == before


def test_the_swap_gives_recall_before_and_after(
    monkeypatch: pytest.MonkeyPatch, few_glyphs: None, capsys: pytest.CaptureFixture[str]
) -> None:
    run(monkeypatch, "swap", "--epochs", "2", "--steps", "5")
    printed = capsys.readouterr().out
    for name in ("CrossBatchMemory", "XBNWrapper"):
        assert len(re.findall(rf"^{name}, epoch [12]: loss \d+\.\d+, Recall@1 \d", printed, re.M)) == 2
    assert re.search(r"Recall@1: \d+\.\d with CrossBatchMemory, \d+\.\d with XBNWrapper$", printed)


@pytest.mark.skipif(not has_timm(), reason="torchvision cannot be imported")
def test_moco_trains_on_glyphs(
    monkeypatch: pytest.MonkeyPatch, few_glyphs: None, capsys: pytest.CaptureFixture[str]
) -> None:
    run(monkeypatch, "moco", "--glyphs", "--epochs", "2", "--workers", "0")
    printed = capsys.readouterr().out
    accuracies = [float(x) for x in re.findall(r"kNN accuracy (\d+\.\d)", printed)]
    assert len(accuracies) == 2
    assert all(100 / 24 < accuracy <= 100 for accuracy in accuracies)


def test_two_memories_are_diagnosed_by_age_and_by_recall(
    monkeypatch: pytest.MonkeyPatch, few_glyphs: None, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setattr(sys, "argv", ["diagnose.py", "--steps", "80", "--output", str(tmp_path)])
    measured = runpy.run_path(str(EXAMPLES / "diagnose.py"), run_name="__main__")
    printed = capsys.readouterr().out
    assert "Before and after\nadaptation of one run do not tell" in printed
    for name in ("xbm", "xbn"):
        lines = printed.partition(f"{name.upper()}: Recall@1 ")[2]
        assert 0 < float(lines.split()[0]) <= 100
        before, after = measured[name]["staleness"]
        assert torch.equal(before.mean_by_age, after.mean_by_age) == (name == "xbm")
        ages = re.search(r"staleness (\S+) at age 1, (\S+) at age 31\n", lines)
        assert ages is not None
        assert [float(x) for x in ages.groups()] == [
            pytest.approx(after.mean_by_age[place].item(), abs=0.006) for place in (0, -1)
        ]
        late = [measured[name]["push"][step] for step in (40, 50, 60, 70)]
        push = re.search(r"share \* cosine ([+-]\S+)\n", lines)
        assert push is not None
        expected = sum(float(x.share * x.cosine) for x in late) / len(late)
        assert float(push[1]) == pytest.approx(expected, abs=0.006)
        # Of unit vectors no two means are farther from each other than this.
        assert all(0 <= x.displacement <= 2 for x in late)
    names = {"drift", "staleness", "valid_pairs", "push", "distances", "separability"}
    assert {path.name for path in tmp_path.iterdir()} == {f"{name}.png" for name in names}


def test_an_adapter_of_ones_own_is_checked_and_trained_with(
    monkeypatch: pytest.MonkeyPatch, few_glyphs: None, capsys: pytest.CaptureFixture[str]
) -> None:
    run(monkeypatch, "own_adapter", "--epochs", "2", "--steps", "5")
    lines = capsys.readouterr().out.splitlines()
    assert [line.split(":")[0] for line in lines[-2:]] == ["epoch 1", "epoch 2"]

    tree = ast.parse((EXAMPLES / "own_adapter.py").read_text(encoding="utf-8"))
    (adapter,) = (node for node in tree.body if isinstance(node, ast.ClassDef))
    assert adapter.end_lineno is not None
    assert adapter.end_lineno - adapter.lineno + 1 < 10


# -- ranks -------------------------------------------------------------------------------------------------

BATCH_SIZE = 32  # of train_sop


def run_on_rank(name: str, *arguments: str) -> str:
    """Runs a script as one of the ranks, which stay together afterwards, and returns what it prints."""
    with (
        patch.object(sys, "argv", [f"{name}.py", *arguments]),
        patch.object(pml_xbn.datasets, "Glyphs", FewGlyphs),
        patch.object(distributed, "init_process_group"),
        patch.object(distributed, "destroy_process_group"),
        warnings.catch_warnings(),
        redirect_stdout(io.StringIO()) as printed,
    ):
        warnings.simplefilter("default")
        runpy.run_path(str(EXAMPLES / f"{name}.py"), run_name="__main__")
    return printed.getvalue()


@on_ranks(2)
def test_two_processes_hold_equal_memories() -> None:
    printed = run_on_rank("distributed", "--epochs", "2", "--steps", "5")
    assert printed.count("equal memories") == (2 if distributed.get_rank() == 0 else 0)


@on_ranks(2)
def test_a_memory_is_spread_over_two_processes(tmp_path: Path) -> None:
    printed = run_on_rank("sharded", "--steps", "4", "--memory-size", "100", "--folder", str(tmp_path))
    assert printed.count("100 rows, room for 50 of them here") == 1
    assert (tmp_path / ".metadata").exists()


@pytest.mark.skipif(
    find_spec("torch.distributed.fsdp._fully_shard") is None, reason="fully_shard is public since torch 2.6"
)
@on_ranks(4)
def test_a_memory_is_spread_over_a_dimension_of_a_mesh_and_resumed_over_another(tmp_path: Path) -> None:
    arguments = ["--batch-size", "8", "--memory-size", "100", "--folder", str(tmp_path)]
    # Two steps of two batches of 8; then one more of four.
    printed = run_on_rank("fully_sharded", "--steps", "2", *arguments)
    assert printed.count("32 rows, room for 50 of them here") == 1
    printed = run_on_rank("fully_sharded", "--steps", "1", "--tensor-parallel", "1", "--resume", *arguments)
    assert printed.count("64 rows, room for 25 of them here") == 1


@pytest.mark.skipif(not has_timm(), reason="timm cannot be imported")
@on_ranks(2, timeout=300)
def test_a_run_that_is_killed_and_resumed_ends_as_a_whole_one(tmp_path: Path) -> None:
    def train_sop(output: str, workers: int) -> str:
        arguments = ["--dataset", "glyphs", "--epochs", "2", "--batch-size", str(BATCH_SIZE)]
        arguments += ["--warmup", "1", "--workers", str(workers)]
        return run_on_rank("train_sop", *arguments, "--resume", "--output", str(tmp_path / output))

    def keep(source: str, destination: str) -> None:
        if distributed.get_rank() == 0:
            shutil.copytree(tmp_path / source, tmp_path / destination)

    def end_second_rank() -> None:
        if distributed.get_rank() == 1:
            os.kill(os.getpid(), signal.SIGTERM)

    # What a kill in the second epoch leaves; from there one rank is told to end, and all go on to the end.
    with at_step(len(FewGlyphs("train")) // BATCH_SIZE + 2, keep, "whole", "stopped"):
        printed = train_sop("whole", workers=1)
    assert distributed.get_rank() == 1 or ", 0 rows in memory" in printed  # after the warm-up
    with at_step(2, end_second_rank):
        train_sop("stopped", workers=2)
    keep("stopped", "terminated")
    train_sop("stopped", workers=0)
    distributed.barrier()
    whole, terminated, resumed = (state_of(tmp_path / name) for name in ("whole", "terminated", "stopped"))
    assert (whole["epoch"], whole["done"] > 3) == (1, True)
    assert list((tmp_path / "whole").glob("events.*"))
    assert (terminated["epoch"], terminated["done"]) == (1, 2)
    assert terminated["loss_fn"]["queue.rows"].any(dim=1).all()  # filled, before the first of these steps
    assert_equal(resumed, whole)
