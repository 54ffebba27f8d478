"""Rows belong to samples: every update against a memory of Python lists, in float64.

``PML_XBN_SEQUENCES`` sets how many sequences are tried (default 60).
"""

from __future__ import annotations

import io
import os
from typing import Any

import numpy as np
import pytest
import torch
from every_memory import EVERY, are_equal, state
from float64 import Adapt, Xbn
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from kinds import KINDS
from pytorch_metric_learning.losses import ContrastiveLoss, LiftedStructureLoss, SupConLoss
from pytorch_metric_learning.miners import PairMarginMiner
from torch import Tensor
from troubled import TroubledLoss

from pml_xbn import XBNWrapper
from pml_xbn.adapters import CovarianceMatching
from pml_xbn.losses import AdaptiveCrossBatchMemory

D = 3
KINDS_OF_SAMPLES = ("plain", "xbn", "axbn", "per class")
UPDATES: list[dict[str, Any]] = [
    {},
    {"update": "average"},
    {"update": "average", "update_momentum": 0.9},
]


def unit(row: np.ndarray) -> np.ndarray:
    return row / np.linalg.norm(row)


class SampleMemory:
    """A memory as the supplement has it: lists of rows, of their labels and of their samples."""

    def __init__(self, size: int, adapt: Adapt, update: str = "queue", m: float = 0.0):
        self.size, self.adapt, self.update, self.m = size, adapt, update, m
        self.rows: list[np.ndarray] = []
        self.labels: list[int] = []
        self.ids: list[int] = []
        self.next = 0

    def pairs(self, ids: list[int]) -> list[tuple[int, int]]:
        """Indices in memory and in the batch of the samples that come again."""
        last = {sample: number for number, sample in enumerate(ids) if sample >= 0}
        return [(self.ids.index(sample), last[sample]) for sample in sorted(last) if sample in self.ids]

    def store(self, batch: np.ndarray, labels: list[int], ids: list[int]) -> list[int]:
        """Returns the index of every row of the batch in memory."""
        last = {sample if sample >= 0 else (n,): n for n, sample in enumerate(ids)}
        kept = sorted(last.values())
        index_of = {ids[number]: index for index, number in self.pairs(ids)}
        new = {number: batch[number] for number in kept}
        for sample, index in index_of.items():
            number = last[sample]
            if self.m:
                new[number] = self.m * self.rows[index] + (1 - self.m) * batch[number]
            if self.m or self.update == "average":
                new[number] = unit(new[number])
        coming: list[int] = []
        while True:
            written = {(self.next + k) % self.size for k in range(len(coming))}
            wanted = [n for n in kept if ids[n] not in index_of or index_of[ids[n]] in written]
            if wanted == coming:
                break
            coming = wanted
        indices = {number: index_of[ids[number]] for number in kept if number not in coming}
        for number in coming:
            indices[number] = self.next
            if len(self.rows) < self.size:
                self.rows.append(new[number])
                self.labels.append(labels[number])
                self.ids.append(ids[number])
            self.next = (self.next + 1) % self.size
        for number, index in indices.items():
            self.rows[index], self.labels[index], self.ids[index] = new[number], labels[number], ids[number]
        return [indices[last[sample if sample >= 0 else (n,)]] for n, sample in enumerate(ids)]

    def loss(self, loss: Any, anchors: Tensor, labels: list[int], own: list[int] | None) -> Tensor:
        """PML's, on plain tensors."""
        rows = torch.tensor(np.array(self.rows))
        pairs: tuple[list[tuple[int, int]], list[tuple[int, int]]] = ([], [])
        for i, label in enumerate(labels):
            for j, other in enumerate(self.labels):
                if own is None or own[i] != j:
                    pairs[label != other].append((i, j))
        lists = [torch.tensor([pair[k] for pair in of_kind]).long() for of_kind in pairs for k in (0, 1)]
        value: Tensor = loss(anchors, torch.tensor(labels), tuple(lists), rows, torch.tensor(self.labels))
        return value

    def nearest(self, anchors: Tensor, own: list[int] | None) -> float:
        """The least distance of an anchor to another's row, of unit vectors."""
        rows = torch.tensor(np.array(self.rows))
        distances = torch.cdist(torch.nn.functional.normalize(anchors), torch.nn.functional.normalize(rows))
        if own is not None:
            distances[torch.arange(len(anchors)), own] = torch.inf
        return float(distances.min())


samples = st.integers(-1, 9)
CALLS = st.fixed_dictionaries(
    {
        "what": st.sampled_from(["step", "step", "step", "mask", "fill", "fail", "eval", "save"]),
        "ids": st.lists(samples, max_size=6),
        "has_ids": st.sampled_from([True, True, True, False]),
        "shift": st.integers(0, 1),
    }
)


@settings(
    max_examples=int(os.environ.get("PML_XBN_SEQUENCES", "60")),
    suppress_health_check=list(HealthCheck),
)
@given(
    kind=st.sampled_from(KINDS_OF_SAMPLES),
    options=st.sampled_from(UPDATES),
    size=st.integers(3, 8),
    calls=st.lists(CALLS, min_size=3, max_size=14),
    is_supcon=st.booleans(),
    seed=st.integers(0, 2**16),
)
def test_any_sequence_leaves_the_memory_of_the_supplement(
    kind: str, options: dict[str, Any], size: int, calls: list[dict[str, Any]], is_supcon: bool, seed: int
) -> None:
    plain_loss: Any = SupConLoss() if is_supcon else ContrastiveLoss(pos_margin=0, neg_margin=1)
    seen: list[tuple[Tensor, Tensor]] = []

    def make() -> AdaptiveCrossBatchMemory:
        loss = SupConLoss() if is_supcon else TroubledLoss(pos_margin=0, neg_margin=1)
        memory = KINDS[kind].memory(loss, D, size, memory_dtype=torch.float64, **options)

        def look(rows: Tensor, labels: Tensor, batch: Tensor, batch_labels: Tensor) -> None:
            in_memory, in_batch = memory.returning_samples
            seen.append((rows[in_memory], batch[in_batch]))

        memory.register_memory_hook(look)
        return memory

    memory = make()
    model = SampleMemory(
        size,
        KINDS[kind].equation(),
        options.get("update", "queue"),
        options.get("update_momentum", 0.0),
    )
    averages = model.update == "average" or model.m > 0
    draw = np.random.default_rng(seed)
    for call in calls:
        ids = call["ids"][:size]
        has_ids = call["has_ids"] or averages
        labels = [int(draw.integers(3)) if i < 0 or not has_ids else (i + call["shift"]) % 3 for i in ids]
        batch = draw.normal(size=(len(ids), D)) + 1
        embeddings = torch.tensor(batch, requires_grad=True)
        given_ids = torch.tensor(ids, dtype=torch.int64) if has_ids else None
        arguments = embeddings, torch.tensor(labels, dtype=torch.int64)
        if not has_ids:
            ids = [-1] * len(ids)
        if call["what"] == "save":
            file = io.BytesIO()
            torch.save(memory.state_dict(), file)
            file.seek(0)
            memory = make()
            memory.load_state_dict(torch.load(file, weights_only=True))
        elif call["what"] == "eval":
            before = state(memory)
            memory.eval()(embeddings.detach(), arguments[1], sample_ids=given_ids)
            memory.train()
            assert are_equal(state(memory), before)
        elif call["what"] == "fill":
            memory.fill_memory(*arguments, given_ids)
            model.store(batch, labels, ids)
        elif call["what"] == "fail" and not is_supcon:
            before, memory.loss.error = state(memory), OSError("disk on fire")
            try:
                memory(*arguments, sample_ids=given_ids)
            except OSError:
                assert are_equal(state(memory), before)
            memory.loss.error = None
            if not are_equal(state(memory), before):  # no loss was asked for
                assert not ids
        else:
            is_masked = call["what"] == "mask"
            mask = draw.integers(2, size=len(ids)).astype(bool) if is_masked else np.ones(len(ids), bool)
            anchors = ~mask if is_masked else mask
            stored = [number for number in range(len(ids)) if mask[number]]
            stored_labels, stored_ids = ([x[number] for number in stored] for x in (labels, ids))
            seen.clear()
            loss = memory(*arguments, None, torch.tensor(mask) if is_masked else None, sample_ids=given_ids)
            before_rows = np.array(model.rows).reshape(-1, D)
            if len(stored):
                adapted = model.adapt(before_rows, model.labels, batch[mask], stored_labels)
                model.rows = list(adapted)
            # The hook runs behind the adapter, and sees what that has left.
            old, new = seen[-1]
            wanted = model.pairs(stored_ids)
            rows_of_pairs = {(tuple(a.tolist()), tuple(b.tolist())) for a, b in zip(old, new, strict=True)}
            assert len(rows_of_pairs) == len(wanted)
            for index, number in wanted:
                gap = min(
                    np.abs(np.array(a) - model.rows[index]).max()
                    + np.abs(np.array(b) - batch[mask][number]).max()
                    for a, b in rows_of_pairs
                )
                assert gap < 1e-6
            indices = model.store(batch[mask], stored_labels, stored_ids)
            if anchors.any() and model.rows and memory.curr_batch_idx is not None:
                of_anchors = torch.tensor(batch[anchors], requires_grad=True)
                # The gradient of a distance of zero has the direction of its rounding.
                assume(model.nearest(of_anchors.detach(), None if is_masked else indices) > 1e-7)
                expected = model.loss(
                    plain_loss,
                    of_anchors,
                    [label for label, is_anchor in zip(labels, anchors, strict=True) if is_anchor],
                    None if is_masked else indices,
                )
                torch.testing.assert_close(loss, expected, rtol=1e-6, atol=1e-8)
                (found,) = torch.autograd.grad(loss, embeddings)
                (wanted_gradient,) = torch.autograd.grad(expected, of_anchors)
                torch.testing.assert_close(
                    found[torch.tensor(anchors)], wanted_gradient, rtol=1e-5, atol=1e-7
                )
        n = len(model.rows)
        assert (memory.num_rows, memory.queue_idx) == (n, model.next)
        assert memory.label_memory[:n].tolist() == model.labels
        assert memory.id_memory.tolist() == model.ids + [-1] * (size - n)
        rows = memory.embedding_memory[:n].numpy()
        np.testing.assert_allclose(rows, np.array(model.rows).reshape(-1, D), rtol=1e-6, atol=1e-8)
        model.rows = list(rows.copy())  # what is rounding must not grow into a difference


# -- what the docs say, case by case ---------------------------------------------------------------------


def plain(size: int = 8, loss: Any = None, **options: Any) -> AdaptiveCrossBatchMemory:
    loss = ContrastiveLoss(pos_margin=0, neg_margin=1) if loss is None else loss
    return AdaptiveCrossBatchMemory(loss, D, size, memory_dtype=torch.float64, **options)


def rows_of(*numbers: float) -> Tensor:
    """One row for each number, in another direction each."""
    angles = torch.tensor(numbers, dtype=torch.float64)
    return torch.stack([angles.cos(), angles.sin(), torch.zeros_like(angles)], dim=1).requires_grad_()


def test_rows_without_ids_forget_those_of_the_rows_that_they_overwrite() -> None:
    memory, labels = plain(size=2), torch.tensor([0, 1])
    memory(rows_of(0.1, 0.2), labels, sample_ids=torch.tensor([5, 6]))
    memory(rows_of(0.3), labels[:1])
    assert memory.id_memory.tolist() == [-1, 6]
    memory.reset_queue()
    assert memory.id_memory.tolist() == [-1, -1]


@pytest.mark.parametrize("loss", [SupConLoss, ContrastiveLoss, LiftedStructureLoss])
def test_of_many_rows_of_a_sample_the_last_is_stored_and_none_is_compared_with_it(loss: Any) -> None:
    ids, labels = torch.tensor([4, 4, 8, 9]), torch.tensor([0, 0, 0, 1])
    memory, embeddings = plain(loss=loss()), rows_of(0.1, 1.2, 0.5, 2.0)
    found = memory(embeddings, labels, sample_ids=ids)
    assert memory.id_memory[:3].tolist() == [4, 8, 9]
    torch.testing.assert_close(memory.embedding_memory[:3], embeddings[1:].detach())
    # Rows 0, 1, 2 are those of the batch's rows 1, 2, 3.
    positives = torch.tensor([[0, 1], [1, 1], [2, 0]]).T
    negatives = torch.tensor([[0, 2], [1, 2], [2, 2], [3, 0], [3, 1]]).T
    if loss is LiftedStructureLoss:  # whose positives have the negatives of their own anchors
        twice = memory(rows_of(0.1, 1.2, 0.5, 2.0), labels, sample_ids=ids)
        torch.testing.assert_close(twice, found)
        assert torch.isfinite(found)
        return
    expected = loss()(embeddings, labels, (*positives, *negatives), embeddings[1:].detach(), labels[1:])
    torch.testing.assert_close(found, expected)


def test_given_pairs_of_rows_of_one_sample_are_left_out() -> None:
    ids, labels = torch.tensor([4, 4, 8, 9]), torch.tensor([0, 0, 0, 0])
    none = torch.zeros(0, dtype=torch.int64)
    given = torch.tensor([0, 1, 0, 1]), torch.tensor([1, 0, 2, 3]), none, none
    memory = plain(miner=PairMarginMiner(pos_margin=9, neg_margin=-9))  # which chooses nothing
    embeddings = rows_of(0.1, 1.2, 0.5, 2.0)
    found = memory(embeddings, labels, given, sample_ids=ids)
    first, second = (embeddings[:2] - embeddings[2:]).norm(dim=1)
    torch.testing.assert_close(found, (first + second) / 2)


def test_a_query_is_compared_with_its_own_key() -> None:
    memory, mask = plain(), torch.tensor([False, False, True, True])
    ids, labels = torch.tensor([3, 4, 3, 4]), torch.tensor([0, 1, 0, 1])
    for first in (0.1, 0.7):
        embeddings = rows_of(first, first + 2, first + 0.2, first + 2.4)
        found = memory(embeddings, labels, None, mask, sample_ids=ids)
        positives = (embeddings[:2] - embeddings[2:]).norm(dim=1)
        torch.testing.assert_close(found, positives.mean())
        assert memory.num_rows == 2


def test_in_eval_mode_ids_are_not_looked_at() -> None:
    memory, labels, ids = plain(), torch.tensor([0, 1]), torch.tensor([1, 2])
    memory(rows_of(0.1, 0.2), labels, sample_ids=ids)
    memory.eval()
    assert torch.equal(memory(rows_of(0.5, 0.9), labels, sample_ids=ids), memory(rows_of(0.5, 0.9), labels))


def test_labels_that_differ_within_a_sample_are_refused_and_those_of_another_day_replace() -> None:
    memory, ids = plain(), torch.tensor([4, 8, 4])
    memory(rows_of(0.1, 0.2, 0.3), torch.tensor([0, 1, 0]), sample_ids=ids)
    before = state(memory)
    with pytest.raises(ValueError, match=r"samples in rows \[0\] of the batch that have another label"):
        memory(rows_of(0.1, 0.2, 0.3), torch.tensor([0, 1, 1]), sample_ids=ids)
    assert are_equal(state(memory), before)
    memory(rows_of(0.1, 0.2, 0.3), torch.tensor([2, 1, 2]), sample_ids=ids)
    assert memory.label_memory[:2].tolist() == [1, 2]


@pytest.mark.parametrize(
    ("ids", "error", "message"),
    [
        ([1, 2], TypeError, "sample_ids is a list: pass a tensor"),
        (torch.tensor([1]), ValueError, r"sample_ids has shape \(1,\): pass one number per embedding"),
        (torch.tensor([1.0, 2.0]), ValueError, "sample_ids has dtype torch.float32: pass integers"),
    ],
)
def test_ids_that_do_not_fit_are_refused(ids: Any, error: type[Exception], message: str) -> None:
    memory = plain()
    for call in (memory, memory.fill_memory):
        with pytest.raises(error, match=message):
            call(rows_of(0.1, 0.2), torch.tensor([0, 1]), sample_ids=ids)
    assert memory.num_rows == 0


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"update": "mean"}, "update='mean': pass one of queue, average"),
        (
            {"update": "average", "update_momentum": 1.0},
            r"update_momentum=1\.0: pass a number from 0 to below 1",
        ),
        ({"update_momentum": 0.5}, r"update_momentum=0\.5 has no effect .* pass update='average'"),
    ],
)
def test_numbers_without_effect_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        plain(**options)


@pytest.mark.parametrize("options", UPDATES, ids=str)
def test_delay_puts_off_hooks_alone_and_warm_up_everything(options: dict[str, Any]) -> None:
    delayed = XBNWrapper(SupConLoss(), 4, 14, delay=99, **options)
    unadapted = AdaptiveCrossBatchMemory(SupConLoss(), 4, 14, **options)
    warming = XBNWrapper(SupConLoss(), 4, 14, warmup=99, **options)
    for number in range(6):
        for a, b in zip(sample_step(delayed, number), sample_step(unadapted, number), strict=True):
            assert torch.equal(a, b)
        assert torch.equal(delayed.embedding_memory, unadapted.embedding_memory)
        sample_step(warming, number)
    assert warming.num_rows == 0
    assert warming.id_memory.unique().tolist() == [-1]


def test_averages_need_ids_where_something_is_stored() -> None:
    memory = plain(update="average", update_momentum=0.5)
    for call in (memory, memory.fill_memory):
        with pytest.raises(ValueError, match="averages the rows of a sample: pass sample_ids"):
            call(rows_of(0.1, 0.2), torch.tensor([0, 1]))
    with torch.no_grad():
        memory(rows_of(0.1, 0.2), torch.tensor([0, 1]))


def test_returning_samples_are_the_hooks() -> None:
    memory = plain()
    with pytest.raises(RuntimeError, match="ask for it in a memory hook"):
        _ = memory.returning_samples
    seen = []
    memory.register_memory_hook(lambda *_: seen.append(memory.returning_samples))
    for ids in (None, torch.tensor([4, 7]), torch.tensor([7, 7])):
        memory(rows_of(0.1, 0.2), torch.tensor([0, 0]), sample_ids=ids)
    assert [[x.tolist() for x in pair] for pair in seen] == [[[], []], [[], []], [[3], [1]]]


@pytest.mark.parametrize("options", UPDATES, ids=str)
def test_rows_of_a_hook_that_mixes_dimensions_are_replaced(options: dict[str, Any]) -> None:
    """Against the same adapter on plain tensors."""
    memory, adapter = plain(size=20, **options), CovarianceMatching()
    memory.register_memory_hook(CovarianceMatching())

    def adapt(rows: np.ndarray, labels: Any, batch: np.ndarray, batch_labels: Any) -> np.ndarray:
        arguments = (torch.tensor(x) for x in (rows, labels, batch, batch_labels))
        new = adapter(*arguments)
        return rows if new is None else new.numpy()

    model = SampleMemory(20, adapt, options.get("update", "queue"), options.get("update_momentum", 0.0))
    draw = np.random.default_rng(0)
    for step in range(30):
        batch = draw.normal(size=(9, D)) @ draw.normal(size=(D, D)) + step
        ids = draw.integers(-1, 24, size=9).tolist()
        labels = [max(sample, 0) % 3 for sample in ids]
        memory(torch.tensor(batch, requires_grad=True), torch.tensor(labels), sample_ids=torch.tensor(ids))
        model.rows = list(adapt(np.array(model.rows).reshape(-1, D), model.labels, batch, labels))
        model.store(batch, labels, ids)
        found = memory.embedding_memory[: memory.num_rows].numpy()
        np.testing.assert_allclose(found, np.array(model.rows), rtol=1e-6, atol=1e-6)
        assert memory.id_memory[: memory.num_rows].tolist() == model.ids
        model.rows = list(found.copy())


# -- state -----------------------------------------------------------------------------------------------


def sample_step(memory: AdaptiveCrossBatchMemory, number: int) -> list[Tensor]:
    """A step in which some samples return, some do not, and some have no id."""
    generator = torch.Generator().manual_seed(number)
    embeddings = torch.randn(5, 4, generator=generator) * (1 + 0.1 * number) + number
    ids = torch.randint(-1, 20, (5,), generator=generator)
    loss = memory(embeddings.requires_grad_(), ids % 3, sample_ids=ids)
    loss.backward()
    return [loss.detach(), embeddings.grad]


@pytest.mark.parametrize("options", UPDATES, ids=str)
@pytest.mark.parametrize("dtype", [torch.float16, torch.float32], ids=str)
@pytest.mark.parametrize("kind", ["plain", "xbn", "axbn", "per class"])
def test_a_resumed_run_goes_on_bit_for_bit(kind: str, dtype: torch.dtype, options: dict[str, Any]) -> None:
    memory, resumed = (EVERY[kind](memory_dtype=dtype, **options) for _ in range(2))
    layout = {name: (value.shape, value.dtype) for name, value in state(memory).items()}
    for number in range(9):
        sample_step(memory, number)
    saved = state(memory)
    assert {name: (value.shape, value.dtype) for name, value in saved.items()} == layout
    resumed.load_state_dict(saved)
    for number in range(9, 18):
        for a, b in zip(sample_step(memory, number), sample_step(resumed, number), strict=True):
            assert torch.equal(a, b)
        assert are_equal(state(memory), state(resumed))
    assert (memory.id_memory >= 0).sum() > 5


def test_rows_that_are_stored_in_inference_mode_are_replaced_outside_of_it() -> None:
    memory, ids = EVERY["xbn"](), torch.arange(5)
    for number in range(3):
        with torch.inference_mode(number % 2 == 0):
            memory.fill_memory(torch.full((5, 4), float(number)), ids % 3, ids)
    sample_step(memory, 0)
    assert memory.num_rows < 14
    assert len(set(memory.id_memory.tolist()) - {-1}) == (memory.id_memory >= 0).sum()


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32], ids=str)
def test_rows_whose_samples_always_return_do_not_drift(dtype: torch.dtype) -> None:
    """No row is new, so that the queue never wraps around; XBN in float64 says where they are."""
    size, batch_size, draw = 24, 8, np.random.default_rng(0)
    memory = XBNWrapper(ContrastiveLoss(), D, size, memory_dtype=dtype)
    adapt, rows, order = Xbn(), np.zeros((0, D)), np.arange(size)
    for step in range(450):
        part = step % (size // batch_size)
        if step >= size // batch_size and part == 0:
            order = draw.permutation(size)
        ids = order[part * batch_size : (part + 1) * batch_size]
        batch = draw.normal(size=(batch_size, D)) * (1 + 0.5 * np.sin(step / 50)) + 3 * np.cos(step / 70)
        batch = batch.astype(np.float32).astype(np.float64)
        embeddings = torch.tensor(batch, dtype=torch.float32, requires_grad=True)
        memory(embeddings, torch.tensor(ids % 3), sample_ids=torch.tensor(ids))
        rows = adapt(rows, [], batch, [])
        if len(rows) < size:
            rows = np.concatenate([rows, batch])
        else:
            rows[ids] = batch
    assert memory.id_memory.tolist() == list(range(size))
    found = memory.embedding_memory.numpy()
    assert np.abs(found - rows).max() < (1e-2 if dtype == torch.float16 else 5e-6)
