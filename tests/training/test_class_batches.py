from __future__ import annotations

from itertools import chain, product

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
    found = set()
    for seed, epoch in product((0, 1, 2, 2**31), range(3)):
        batches = ClassBatches(LABELS, 4, 32, seed=seed)
        batches.set_epoch(epoch)
        found.add(str(list(batches)))
    assert len(found) == 12  # another seed has no epoch of this one: a fill would store what comes next


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


UNEQUAL = torch.tensor([0] * 200 + [1 + k // 4 for k in range(160)] + [41] * 2 + [42] * 7)


def times_seen(batches: ClassBatches) -> torch.Tensor:
    return torch.bincount(torch.tensor(list(chain(*batches))), minlength=len(UNEQUAL))


def test_an_epoch_that_covers_images_sees_every_image() -> None:
    batches = ClassBatches(UNEQUAL, 4, 32, cover="images")
    for epoch in range(5):
        batches.set_epoch(epoch)
        assert len(list(batches)) == len(batches) == 12  # 50 + 40 + 1 + 2 groups of 4 in batches of 8
        seen = times_seen(batches)
        assert seen.min() == 1
        assert seen.sum() == 12 * 32
        assert all(len(batch) == 32 for batch in batches)
        # What is seen again fills up: 2 of a class of 2, 1 of 7, and 3 groups of the last batch.
        assert seen.sum() - len(UNEQUAL) == 2 + 1 + 3 * 4


def test_an_epoch_that_covers_classes_sees_hardly_any_of_a_large_one() -> None:
    seen = times_seen(ClassBatches(UNEQUAL, 4, 32)) > 0
    assert seen[:200].float().mean() < 0.2 < 0.5 < seen[200:].float().mean()


def test_of_equal_classes_an_epoch_that_covers_classes_sees_63_per_cent() -> None:
    labels = torch.arange(200).repeat(20)
    seen = len(set(chain(*ClassBatches(labels, 4, 64)))) / len(labels)
    assert abs(seen - (1 - torch.exp(torch.tensor(-1.0)))) < 0.02


def test_groups_of_a_class_are_spread_over_the_batches_of_an_epoch() -> None:
    batches = list(ClassBatches(UNEQUAL, 4, 32, cover="images"))
    of_large = [sum(index < 200 for index in batch) for batch in batches]
    assert max(of_large) - min(of_large) <= 4
    orders = [[batch[0] for batch in batches]]
    again = ClassBatches(UNEQUAL, 4, 32, cover="images")
    again.set_epoch(1)
    orders.append([batch[0] for batch in again])
    assert orders[0] != orders[1]


def test_no_image_is_twice_in_a_batch_of_all_images() -> None:
    labels = torch.arange(40).repeat(6)
    for batch in ClassBatches(labels, 4, 32, cover="images"):
        assert len(set(batch)) == 32
        assert labels[batch].unique(return_counts=True)[1].tolist() == [4] * 8


def test_ranks_divide_the_batches_of_all_images() -> None:
    whole = list(ClassBatches(UNEQUAL, 4, 32, cover="images"))
    parts = [list(ClassBatches(UNEQUAL, 4, 32, cover="images", num_ranks=2, rank=rank)) for rank in (0, 1)]
    assert [first + second for first, second in zip(*parts, strict=True)] == whole


def test_a_number_of_batches_with_all_images_is_refused() -> None:
    with pytest.raises(ValueError, match='num_batches=3 with cover="images"'):
        ClassBatches(LABELS, 4, 32, cover="images", num_batches=3)
    with pytest.raises(ValueError, match="cover='both': pass"):
        ClassBatches(LABELS, 4, 32, cover="both")  # type: ignore[arg-type]
