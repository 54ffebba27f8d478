from __future__ import annotations

import pytest
import torch

from pml_xbn.training import ClassBatches

LABELS = torch.arange(40).repeat(5)


def test_a_batch_holds_m_different_images_of_each_of_its_classes() -> None:
    for batch in ClassBatches(LABELS, m=4, batch_size=32):
        assert len(set(batch)) == 32
        assert LABELS[batch].unique(return_counts=True)[1].tolist() == [4] * 8


def test_a_class_of_few_images_repeats_some() -> None:
    (batch,) = ClassBatches([7, 9], m=3, batch_size=6, num_batches=1)
    assert sorted(batch).count(0) == 3


def test_batches_depend_on_seed_and_epoch_alone() -> None:
    first, second = ClassBatches(LABELS, 4, 32), ClassBatches(LABELS, 4, 32)
    list(first)
    torch.manual_seed(1)
    first.set_epoch(3)
    second.set_epoch(3)
    assert list(first) == list(second)
    second.set_epoch(4)
    assert list(first) != list(second)
    of_seeds = [str(list(ClassBatches(LABELS, 4, 32, seed=seed))) for seed in (0, 1, 2, 2**31)]
    assert len(set(of_seeds)) == 4


def test_accelerate_sets_the_epoch_through_the_sampler() -> None:
    """Among ranks it asks the batch sampler for its sampler, and sets the epoch of that alone."""
    batches, expected = ClassBatches(LABELS, 4, 32), ClassBatches(LABELS, 4, 32)
    batches.sampler.set_epoch(3)
    expected.set_epoch(3)
    assert list(batches) == list(expected)


def test_there_is_a_batch_even_of_few_images() -> None:
    assert len(list(ClassBatches([7, 9], m=3, batch_size=6))) == 1


def test_a_rank_beyond_the_last_is_refused() -> None:
    with pytest.raises(ValueError, match="rank=2: pass a number below num_ranks=2"):
        ClassBatches(LABELS, 4, 32, num_ranks=2, rank=2)


def test_labels_in_a_column_are_refused() -> None:
    with pytest.raises(ValueError, match=r"labels has shape \(200, 1\): pass one label per image"):
        ClassBatches(LABELS.unsqueeze(1), 4, 32)


def test_ranks_divide_the_batches_of_one_process() -> None:
    whole = list(ClassBatches(LABELS, 4, 32))
    parts = [list(ClassBatches(LABELS, 4, 32, num_ranks=2, rank=rank)) for rank in (0, 1)]
    assert [first + second for first, second in zip(*parts, strict=True)] == whole


@pytest.mark.parametrize(
    ("m", "batch_size", "num_ranks", "message"),
    [(4, 30, 1, "of m=4"), (2, 6, 4, "num_ranks=4"), (2, 100, 1, "takes 50 classes"), (0, 4, 1, "m=0")],
)
def test_batches_that_do_not_fit_are_refused(m: int, batch_size: int, num_ranks: int, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        ClassBatches(LABELS, m, batch_size, num_ranks=num_ranks)
