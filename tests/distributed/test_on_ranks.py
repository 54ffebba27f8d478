"""A rank test fails where one rank fails, and says which one and why."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest
import torch
from across_ranks import of_all_ranks
from ranks import Pools, on_ranks
from torch import distributed


def raise_on_second_rank() -> None:
    number = distributed.get_rank()
    assert number == 0
    distributed.barrier()


def die_on_second_rank() -> None:
    if distributed.get_rank() == 1:
        os._exit(3)


def stay_on_second_rank() -> None:
    if distributed.get_rank() == 1:
        time.sleep(60)


def note(folder: Path) -> None:
    (folder / str(os.getpid())).touch()


def test_the_traceback_of_the_rank_that_raised_is_shown(pools: Pools) -> None:
    with pytest.raises(pytest.fail.Exception, match=r"(?s)Rank 1 of 2 raised:.*assert 1 == 0") as failure:
        pools.run(raise_on_second_rank, 2)
    assert f'test_on_ranks.py", line {raise_on_second_rank.__code__.co_firstlineno + 2}' in str(failure.value)
    assert "Rank 0 of 2 had not ended, and was here:" in str(failure.value)


def test_a_rank_that_dies_is_told(pools: Pools) -> None:
    with pytest.raises(pytest.fail.Exception, match="Rank 1 of 2 died, with exit code 3"):
        pools.run(die_on_second_rank, 2)


def test_where_a_rank_is_after_its_time_is_told(pools: Pools) -> None:
    with pytest.raises(pytest.fail.Exception, match=r"(?s)Rank 1 .*not ended.*in stay_on_second_rank"):
        pools.run(stay_on_second_rank, 2, timeout=2)


def test_after_a_failure_ranks_are_new_and_the_next_tests_share_them(pools: Pools, tmp_path: Path) -> None:
    with pytest.raises(pytest.fail.Exception):
        pools.run(raise_on_second_rank, 2)
    for _ in range(2):
        pools.run(note, 2, folder=tmp_path)
    assert len(list(tmp_path.iterdir())) == 2


@pytest.mark.parametrize("number", [3, 4])
@on_ranks(2, 3)
def test_a_test_runs_on_every_rank_with_its_parameters_and_the_same_seed(number: int) -> None:
    assert number in (3, 4)
    assert of_all_ranks(number) == [number] * distributed.get_world_size()
    torch.testing.assert_close(*of_all_ranks(torch.rand(number))[:2], rtol=0, atol=0)
