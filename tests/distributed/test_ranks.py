"""Two and three ranks hold one memory, and train as one process on the global batch does."""

from __future__ import annotations

from typing import Any

import pytest
import rank_worker
import torch
from on_ranks import on_ranks
from rank_worker import MEMORIES, D, M, batch_of, make_loss, train

Results = list[dict[str, Any]]


@pytest.fixture(scope="module", params=[2, 3], ids=["2 ranks", "3 ranks"])
def ranks(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Results:
    """What each of the ranks saw."""
    folder = tmp_path_factory.mktemp("ranks")
    on_ranks(rank_worker.main, folder, ranks=request.param)
    return [torch.load(folder / f"rank{rank}.pt", weights_only=True) for rank in range(request.param)]


RUNS = [(name, equal, masked) for name in MEMORIES for equal in (True, False) for masked in (False, True)]


@pytest.mark.parametrize(("name", "equal", "masked"), RUNS)
def test_ranks_hold_the_memory_and_gradient_of_one_process(
    ranks: Results, name: str, equal: bool, masked: bool
) -> None:
    key = f"{name}, {'equal' if equal else 'unequal'}{', masked' if masked else ''}"
    loss_fn = MEMORIES[name](make_loss(), D, M, memory_dtype=torch.float64)
    alone = train(loss_fn, None, len(ranks), equal, masked)
    for step, expected in enumerate(alone):
        first, *others = (rank[key][step] for rank in ranks)
        for field in ("rows", "labels", "gradient"):
            assert all(torch.equal(first[field], other[field]) for other in others)
            torch.testing.assert_close(first[field], expected[field], rtol=1e-9, atol=1e-9)
        assert {rank[key][step]["queue_idx"] for rank in ranks} == {expected["queue_idx"]}


def test_a_batch_that_one_rank_skips_is_stored_by_none(ranks: Results) -> None:
    assert_same_memory([rank["skipped"] for rank in ranks])
    assert ranks[0]["skipped"]["num_rows"] == 4 * len(ranks)


def test_fill_memory_gathers_in_rank_order(ranks: Results) -> None:
    expected = torch.cat([batch_of(rank, 0, 3 + rank)[0] for rank in range(len(ranks))])
    assert_same_memory([rank["filled"] for rank in ranks])
    torch.testing.assert_close(ranks[0]["filled"]["rows"][: len(expected)], expected)


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("name", MEMORIES)
def test_inside_pmls_distributed_wrapper_they_are_its_memory(ranks: Results, name: str, masked: bool) -> None:
    for rank in ranks:
        pml, ours = rank[f"pml, {masked}"], rank[f"{name} inside, {masked}"]
        for field in ("rows", "labels", "losses", "gradients"):
            torch.testing.assert_close(ours[field], pml[field])


def test_b14_pmls_ranks_differ_and_ours_do_not(ranks: Results) -> None:
    first, second = ranks[0]["pml, False"], ranks[1]["pml, False"]
    assert not torch.equal(first["rows"], second["rows"])
    # Other rows, not only another order: 17 is no multiple of the global batch.
    assert not torch.equal(first["rows"].sort(dim=0).values, second["rows"].sort(dim=0).values)
    assert_same_memory([rank["xbn, equal"][-1] for rank in ranks])


def assert_same_memory(memories: list[dict[str, Any]]) -> None:
    first, *others = memories
    for other in others:
        assert torch.equal(first["rows"], other["rows"])
        assert torch.equal(first["labels"], other["labels"])
        assert first["queue_idx"] == other["queue_idx"]
