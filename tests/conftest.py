from __future__ import annotations

import os
from collections.abc import Iterator
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

# A busy machine takes long now and then.
settings.register_profile("no deadline", deadline=None)
settings.load_profile("no deadline")

# The tensors of the tests are too small to share between threads.
torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(0)


@pytest.fixture
def device() -> torch.device:
    return TEST_DEVICE


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
