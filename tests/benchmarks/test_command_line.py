"""What a command line says when there is nothing to run."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from benchmarks.engine.command_line import errors_in_one_line, existing_device
from benchmarks.papers import __main__ as papers
from benchmarks.papers.experiments import EXPERIMENTS

ROOT = Path(__file__).parents[2]


def test_a_reader_that_leaves_ends_the_program_without_a_word() -> None:
    reading_end, writing_end = os.pipe()
    os.close(reading_end)
    command = [sys.executable, "-m", "benchmarks.papers", "--help"]
    try:
        ended = subprocess.run(command, cwd=ROOT, stdout=writing_end, stderr=subprocess.PIPE, timeout=120)
    finally:
        os.close(writing_end)
    assert ended.stderr == b""


def test_a_list_of_nothing_names_what_there_is(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["papers", "--list", "zzz"])
    with pytest.raises(SystemExit) as ended:
        papers.main()
    assert ended.value.code == 2
    printed, (line,) = (text.splitlines() for text in capsys.readouterr())
    assert printed == []
    assert "'zzz'" in line
    assert all(experiment.key in line for experiment in EXPERIMENTS)


@pytest.mark.parametrize("name", ["meta9", "nothing", *([] if torch.cuda.is_available() else ["cuda"])])
def test_a_device_that_is_not_there_gives_one_line(name: str) -> None:
    message = rf"^error: --device {name} cannot be used here .*--device cpu$"
    with pytest.raises(SystemExit, match=message), errors_in_one_line():
        existing_device(name)


def test_a_device_that_is_there_is_returned() -> None:
    assert existing_device("cpu") == torch.device("cpu")
