"""What every test has: a seed, and the device and dtypes of the environment.

Tests that take the fixture ``device`` are those of ``pytest -m device``. On a GPU:

    TEST_DEVICE=cuda pytest -m device --junitxml=benchmarks/results/gpu/tests.xml

needs torch, pytorch-metric-learning, pytest and hypothesis.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import torch
from hypothesis import settings

if TYPE_CHECKING:
    from ranks import Pools

# The variables that PML's own tests read.
TEST_DEVICE = torch.device(os.environ.get("TEST_DEVICE", "cpu"))
TEST_DTYPES = [
    getattr(torch, name) for name in os.environ.get("TEST_DTYPES", "float16,float32,float64").split(",")
]

TAKES_DEVICE = re.compile(r"def test_\w+\([^)]*\bdevice: torch\.device")
if TEST_DEVICE.type == "cuda":  # without it products of matrices may differ from one run to the next
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")

# A busy machine takes long now and then.
settings.register_profile("no deadline", deadline=None)
settings.load_profile("no deadline")

# The tensors of the tests are too small to share between threads.
torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(0)


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Of ``-m device`` imports only files that need it: a machine with a GPU may lack what others import."""
    if config.getoption("markexpr") != "device" or collection_path.suffix != ".py":
        return None
    return None if TAKES_DEVICE.search(collection_path.read_text(encoding="utf-8")) else True


@pytest.hookimpl(tryfirst=True)  # before pytest chooses by marks
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if "device" in getattr(item, "fixturenames", ()):
            item.add_marker("device")
            if not TAKES_DEVICE.search(item.path.read_text(encoding="utf-8")):
                raise pytest.UsageError(
                    f"{item.path} has a test with a device, and no parameter `device: torch.device` by which "
                    "`-m device` finds the file: annotate it so"
                )


@pytest.fixture(autouse=True, scope="session")
def _name_machine(record_testsuite_property: Callable[[str, object], None]) -> None:
    """Writes the device, its driver and torch into a junit file, for the page that shows it."""
    from benchmarks.cost.machine import describe  # which takes time, and which few files import

    for name, value in describe(TEST_DEVICE).items():
        record_testsuite_property(name, value)


@pytest.fixture(scope="session")
def device() -> torch.device:
    return TEST_DEVICE


@pytest.fixture
def deterministic(device: torch.device) -> Iterator[None]:
    """A GPU otherwise adds some sums in another order at every call."""
    torch.use_deterministic_algorithms(device.type == "cuda")
    yield
    torch.use_deterministic_algorithms(False)


@pytest.fixture(params=TEST_DTYPES, ids=str)
def dtype(request: pytest.FixtureRequest) -> torch.dtype:
    return request.param


@pytest.fixture(scope="module")
def pools() -> Iterator[Pools]:
    """The ranks of a file, for tests under ``@on_ranks``."""
    from ranks import Pools

    pools = Pools()
    yield pools
    pools.kill()
