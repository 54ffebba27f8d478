"""What two groups of two ranks have saved loads on any number of ranks."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import pytest
from on_ranks import on_ranks

pytestmark = pytest.mark.skipif(
    None in map(find_spec, ("safetensors", "torch.distributed.tensor")), reason="needs safetensors, torch 2.5"
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    import group_state_worker

    folder = tmp_path_factory.mktemp("groups")
    on_ranks(group_state_worker.save, folder, ranks=4)
    return folder


@pytest.mark.parametrize("ranks", [1, 2, 3, 4])
def test_it_loads_on_so_many_ranks(folder: Path, ranks: int) -> None:
    import group_state_worker

    on_ranks(group_state_worker.load, folder, ranks=ranks)


def test_it_loads_in_another_group(folder: Path) -> None:
    import group_state_worker

    on_ranks(group_state_worker.load_in_groups, folder, ranks=4)
