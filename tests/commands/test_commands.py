"""The commands of the docs as they are written there, and every benchmark without a flag.

Each from a copy of the repository. PML_XBN_MAX_STEPS cuts them short.
"""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest
from forked import run_command
from training_script import has_timm

from benchmarks.cost.__main__ import TABLES
from benchmarks.papers.reproducing import table

ROOT = Path(__file__).parents[2]
PAPERS = table()
COMMAND = re.compile(
    r"(?:^\$ |`)((?:python|torchrun)[^`\n]* -?-?m?\s?benchmarks\.[^`\n…]+?)(?:`|$)", re.MULTILINE
)
ENVIRONMENT = {"PML_XBN_MAX_STEPS": "1", "HF_HUB_OFFLINE": "1"}


def read(page: str) -> str:
    return (ROOT / page).read_text(encoding="utf-8")


def without_flags() -> list[str]:
    """Every benchmark that can be started."""
    names = [path.parent.name for path in (ROOT / "benchmarks").glob("*/__main__.py")]
    names.remove("cost")
    names += [f"cost {name}" for name in TABLES]
    return [f"python -m benchmarks.{name}" for name in sorted(names)]


def first_row_on_glyphs() -> list[str]:
    """The first command of the table, with the ending that the page says to try it with."""
    first = re.search(r"`(python [^`]*--method xbn [^`]*)`", PAPERS)
    ending = re.search(r"end its command with\s+`([^`]+)`", PAPERS)
    assert first is not None
    assert ending is not None
    return [f"{first[1]} {ending[1]}"]


COMMANDS = list(
    dict.fromkeys(
        [
            *COMMAND.findall(read("docs/getting_started.md")),
            *COMMAND.findall(read("docs/papers.md")),
            *COMMAND.findall(PAPERS.split("\n| ")[0]),
            *first_row_on_glyphs(),
            *without_flags(),
        ]
    )
)


def test_ci_runs_what_the_readme_says_letter_for_letter() -> None:
    of_readme = re.findall(r"^pip install tox .*$", read("README.md"), re.MULTILINE)
    of_ci = re.findall(r"^pip install .*$", read(".ci/run"), re.MULTILINE)
    assert of_readme == of_ci == ["pip install tox && tox -e demo", "pip install tox && tox"]


def test_the_workflows_run_every_environment_of_tox() -> None:
    tox, workflows = (
        read("tox.ini"),
        "".join(map(read, (".github/workflows/tests.yml", ".github/workflows/docs.yml"))),
    )
    (matrix,) = re.findall(r"^    matrix = (.*)$", tox, re.MULTILINE)
    environments = {"py", *matrix.split(", "), *re.findall(r"^\[testenv:(\w+)\]$", tox, re.MULTILINE)}
    run = re.findall(r'env: "(.*)"|tox run -e (\w+)', workflows)
    assert {name for names in run for name in ",".join(names).split(",") if name} == environments


# What ends with a line that says what is missing, where it is.
MISSING = {
    "python -m benchmarks.han": "pass download=True on Debian 12",
    "python -m benchmarks.on_gpu": "--output is missing: pass a folder",
    "python -m benchmarks.papers": "the weights resnet50.a1_in1k are not here",
    "python -m benchmarks.cost ranks": "torchrun --nproc_per_node=2 -m benchmarks.cost ranks",
    "python -m benchmarks.study": "run npm pack emoji-datasource-apple",
    "python -m benchmarks.tuning": "run npm pack emoji-datasource-apple",
}


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    for folder in ("benchmarks", "pml_xbn"):
        shutil.copytree(ROOT / folder, tmp_path / folder)
    return tmp_path


@pytest.mark.skipif(not has_timm(), reason="timm cannot be imported")
@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_does_as_it_is_written(command: str, clone: Path) -> None:
    ended = run_command(command, clone, **ENVIRONMENT)
    assert "Traceback" not in ended.stderr, ended.stderr
    if ended.returncode == 0:
        assert ended.stdout
    else:
        last = ended.stderr.splitlines()[-1]
        assert last.startswith("error: ")
        assert MISSING[command] in last
