"""A rank that dies or stays away ends the step of the others with an error."""

from __future__ import annotations

from pathlib import Path

import lost_rank_worker
import pytest
from on_ranks import start_ranks


@pytest.mark.parametrize("option", ["gather_distributed", "shard_distributed"])
@pytest.mark.parametrize("way", ["die", "stay"])
def test_a_lost_rank_ends_the_step_of_the_others(option: str, way: str, tmp_path: Path) -> None:
    lose = getattr(lost_rank_worker, way)
    arguments = tmp_path, option, lose, 30
    with start_ranks(lost_rank_worker.check, *arguments, ranks=3, group_timeout=5) as processes:
        for rank in (0, 2):
            processes[rank].join(40)
            assert processes[rank].exitcode == 0
    assert {path.name for path in tmp_path.glob("rank *")} == {"rank 0", "rank 2"}


@pytest.mark.parametrize("option", ["gather_distributed", "shard_distributed"])
def test_a_rank_without_batches_in_join_ends_the_step_of_the_others(option: str, tmp_path: Path) -> None:
    arguments = tmp_path, option, 30
    with start_ranks(lost_rank_worker.check_uneven_inputs, *arguments, ranks=2, group_timeout=3) as processes:
        for process in processes:
            process.join(40)
            assert process.exitcode == 0
    assert {path.name for path in tmp_path.glob("rank *")} == {"rank 0", "rank 1"}


@pytest.mark.parametrize("option", ["gather_distributed", "shard_distributed"])
def test_a_lost_rank_ends_no_step_of_another_group(option: str, tmp_path: Path) -> None:
    arguments = tmp_path, option, 30
    with start_ranks(lost_rank_worker.check_groups, *arguments, ranks=4, group_timeout=5) as processes:
        for rank in (0, 1, 2):
            processes[rank].join(40)
            assert processes[rank].exitcode == 0
    assert {path.name for path in tmp_path.glob("rank *")} == {"rank 0", "rank 1", "rank 2"}
