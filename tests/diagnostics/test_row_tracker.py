"""The tracker follows any sequence of calls as a slow model made of Python lists does."""

from __future__ import annotations

import io
from typing import Any

import pytest
import torch
from as_on_a_gpu import read_as
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from kinds import ADAPTED, MEMORIES, PLAIN
from pytorch_metric_learning.losses import ContrastiveLoss, CrossBatchMemory
from torch import Tensor, nn
from troubled import TroubledLoss

from pml_xbn import XBNWrapper
from pml_xbn.diagnostics import RowTracker
from pml_xbn.losses import AdaptiveCrossBatchMemory


class NamedLoss(TroubledLoss):
    """PML's class goes by the name."""


NamedLoss.__name__ = "ContrastiveLoss"


class AnySequence(RuleBasedStateMachine):
    """Every stored row is (image, step), so that an unadapted memory itself says what is in it."""

    @initialize(
        cls=st.sampled_from([CrossBatchMemory, AdaptiveCrossBatchMemory, XBNWrapper]),
        memory_size=st.integers(1, 6),
        warmup=st.integers(0, 2),
        first=st.integers(0, 4),
    )
    def build(self, cls: type, memory_size: int, warmup: int, first: int) -> None:
        self.is_ours = cls is not CrossBatchMemory
        self.is_adapted = cls is XBNWrapper
        options = {"warmup": warmup, "nonfinite": "skip"} if self.is_ours else {}
        self.make = lambda: cls(NamedLoss(), 2, memory_size, **options)
        self.memory, self.size, self.calls_left = self.make(), memory_size, warmup if self.is_ours else 0
        self.rows: list[tuple[int, int]] = []
        self.next, self.step, self.image = 0, 0, 0
        if 0 < first <= memory_size:  # from before there was a tracker
            self.memory.add_to_memory(torch.full((first, 2), -1.0), torch.zeros(first).long(), first)
            self.store([-1] * first, -1)
        self.tracker = RowTracker(self.memory)

    def store(self, images: list[int], step: int) -> None:
        for image in images:
            if len(self.rows) < self.size:
                self.rows.append((image, step))
            else:
                self.rows[self.next] = (image, step)
            self.next = (self.next + 1) % self.size

    def new_batch(self, size: int) -> tuple[Tensor, Tensor]:
        self.step += 1
        images = torch.arange(self.image, self.image + size)
        self.image += size
        rows = torch.stack([images.float(), torch.full((size,), float(self.step))], dim=1)
        return images, rows.requires_grad_()

    @rule(data=st.data(), masked=st.booleans(), trouble=st.sampled_from(["", "", "", "loss", "nan", "eval"]))
    def forward(self, data: st.DataObject, masked: bool, trouble: str) -> None:
        stored = data.draw(st.integers(0 if self.is_ours else 1, self.size))
        anchors = data.draw(st.integers(1, 3)) if masked else 0
        mask = torch.tensor(data.draw(st.permutations([True] * stored + [False] * anchors)), dtype=torch.bool)
        images, rows = self.new_batch(len(mask))
        if trouble in ("nan", "eval") and not self.is_ours:
            trouble = ""  # PML's class stores such batches
        if trouble == "nan" and len(rows):
            rows = rows.detach() * float("nan")
        self.memory.loss.error = OSError("disk on fire") if trouble == "loss" else None
        self.memory.train(trouble != "eval")
        try:
            self.memory(rows, images % 3, None, mask if masked else None)
        except OSError:
            if not self.is_ours:
                self.store(images[mask].tolist(), self.step)  # PML's class stores before the loss
                self.tracker.update(self.step, images, mask if masked else None)
            return
        finally:
            self.memory.loss.error = None
            self.memory.train()
        is_skipped = trouble == "eval" or (trouble == "nan" and len(images) > 0)
        if not is_skipped and self.calls_left == 0:
            self.store(images[mask].tolist(), self.step)
        self.calls_left = max(self.calls_left - (not is_skipped), 0)
        self.tracker.update(self.step, images, mask if masked else None)

    @rule(data=st.data())
    def fill(self, data: st.DataObject) -> None:
        images, rows = self.new_batch(data.draw(st.integers(1, self.size)))
        self.memory.add_to_memory(rows.detach(), images % 3, len(rows))
        self.store(images.tolist(), self.step)
        self.tracker.update(self.step, images)

    @rule(is_seen=st.booleans())
    def reset(self, is_seen: bool) -> None:
        self.memory.reset_queue()
        self.rows, self.next = [], 0
        if is_seen:
            self.tracker.update(self.step, torch.arange(0))
        else:
            images, rows = self.new_batch(1)
            self.memory.add_to_memory(rows.detach(), images % 3, 1)
            self.store(images.tolist(), self.step)
            self.tracker.update(self.step, images)

    @precondition(lambda self: self.is_ours)
    @rule()
    def save_and_load(self) -> None:
        file = io.BytesIO()
        torch.save([self.memory.state_dict(), self.tracker.state_dict()], file)
        file.seek(0)
        states = torch.load(file, weights_only=True)
        self.memory = self.make()
        self.tracker = RowTracker(self.memory)
        self.memory.load_state_dict(states[0])
        self.tracker.load_state_dict(states[1])

    @rule()
    def bad_updates(self) -> None:
        with pytest.raises(ValueError, match="images has dtype"):
            self.tracker.update(self.step, torch.zeros(1))
        with pytest.raises(ValueError, match="enqueue_mask"):
            self.tracker.update(self.step, torch.arange(2), torch.ones(3, dtype=torch.bool))

    @invariant()
    def tracker_is_the_models(self) -> None:
        if not hasattr(self, "tracker"):
            return
        unknown = [(-1, -1)] * (self.size - len(self.rows))
        tracked = list(zip(self.tracker.images.tolist(), self.tracker.stored_at.tolist(), strict=True))
        assert tracked == self.rows + unknown
        if not self.is_adapted:
            stored = self.memory.embedding_memory[: len(self.rows)].tolist()
            assert [tuple(row) for row in stored] == self.rows


TestAnySequence = pytest.mark.filterwarnings("ignore:the memory is empty and in eval")(AnySequence.TestCase)
TestAnySequence.settings = settings(
    max_examples=100, stateful_step_count=15, suppress_health_check=list(HealthCheck)
)


# -- staleness in a loop ------------------------------------------------------------------------------------


class Loop:
    """Training on fixed images, whose staleness can be measured after any call."""

    def __init__(self, memory: str, model: nn.Module, size: int = 20, **options: Any) -> None:
        self.images = torch.randn(24, 5, dtype=torch.float64)
        self.model = model.double()
        if memory != "pml":
            options["memory_dtype"] = torch.float64
        self.loss_fn = MEMORIES[memory](ContrastiveLoss(), 4, size, **options)
        self.tracker, self.step = RowTracker(self.loss_fn), 0

    def embed(self, indices: Tensor) -> Tensor:
        return self.model(self.images[indices])

    def call(self, indices: Tensor) -> None:
        self.step += 1
        self.stored = self.loss_fn.embedding_memory.clone()
        self.loss_fn(self.embed(indices), indices % 4)
        self.tracker.update(self.step, indices)

    def staleness(self, **options: Any) -> Any:
        return self.tracker.staleness(self.stored, self.embed, **options)


@pytest.mark.parametrize("memory", PLAIN)
def test_staleness_is_zero_while_the_model_rests(memory: str) -> None:
    loop = Loop(memory, nn.Linear(5, 4))
    for _ in range(5):
        loop.call(torch.randperm(24)[:8])
    before, after = loop.staleness()
    assert before.maximum < 1e-15
    assert after.maximum < 1e-15
    assert after.ages.tolist() == [1, 2]
    assert after.rows_by_age.tolist() == [8, 4]  # 20 rows, 8 of them new


@pytest.mark.parametrize("memory", PLAIN)
def test_staleness_of_what_nothing_adapts_is_the_drift_over_its_age(memory: str) -> None:
    loop = Loop(memory, nn.Linear(5, 4), size=24)
    for _ in range(4):
        with torch.no_grad():
            loop.model.bias += torch.tensor([3.0, 4.0, 0.0, 0.0])
        loop.call(torch.randperm(24)[:8])
    measured = loop.staleness()
    for part in measured:
        assert part.mean_by_age.tolist() == pytest.approx([5, 10])
        assert part.mean == pytest.approx(7.5)


@pytest.mark.parametrize("memory", ADAPTED)
def test_adaptation_undoes_a_drift_of_its_kind(memory: str) -> None:
    """The same images in every batch, and a drift that the adapter can express: what is left is rounding."""
    # The defaults of the other two draw rows towards the moments of the whole batch, drift or not.
    own_moments = {"mean_lambda": 0.0, "std_lambda": 0.0}
    sure = {"measurement_noise": 0.01, "gain_update_interval": 1}
    options = {"per class": own_moments, "super-class": own_moments, "axbn": sure}.get(memory, {})
    loop = Loop(memory, nn.Linear(5, 4), size=16, **options)
    batch = torch.arange(8)
    for shift in (0.0, 2.0):
        with torch.no_grad():
            loop.model.bias += shift
            if shift and memory == "xbn":
                loop.model.weight *= torch.tensor([[2.0], [0.5], [3.0], [1.0]])
                loop.model.bias *= torch.tensor([2.0, 0.5, 3.0, 1.0])
        loop.call(batch)
    before, after = loop.staleness()
    assert before.ages.tolist() == after.ages.tolist() == [1]
    assert before.mean > 2
    assert after.maximum < (0.1 if memory == "axbn" else 1e-9)  # r = 0.01 keeps a little


def test_staleness_of_directions_sees_no_lengths() -> None:
    loop = Loop("pml", nn.Linear(5, 4, bias=False))
    for _ in range(2):
        with torch.no_grad():
            loop.model.weight *= 2
        loop.call(torch.randperm(24)[:8])
    assert loop.staleness().before.mean > 0.1
    assert loop.staleness(normalize=True).before.maximum < 1e-12


def test_at_most_so_many_rows_are_embedded_each_image_once() -> None:
    loop = Loop("pml", nn.Linear(5, 4), size=16)
    for _ in range(3):
        loop.call(torch.tensor([3, 4, 3, 4]))
    asked = []

    def embed(indices: Tensor) -> Tensor:
        asked.append(indices.tolist())
        return loop.embed(indices)

    measured = loop.tracker.staleness(loop.stored, embed)
    assert asked == [[3, 4]]
    assert measured.after.rows_by_age.sum() == 8
    assert loop.tracker.staleness(loop.stored, embed, num_rows=3).after.rows_by_age.tolist() == [1, 2]
    assert loop.tracker.staleness(loop.stored, embed, num_rows=99).after.rows_by_age.sum() == 8


@pytest.mark.parametrize("memory", PLAIN)
def test_rows_of_at_most_so_many_steps_are_embedded(memory: str) -> None:
    loop = Loop(memory, nn.Linear(5, 4))
    batches = torch.randperm(24).split(4)
    for batch in batches:
        with torch.no_grad():
            loop.model.bias[0] += 1
        loop.call(batch)
    asked = []

    def embed(indices: Tensor) -> Tensor:
        asked.extend(indices.tolist())
        return loop.embed(indices)

    def ages(**options: int) -> list[int]:
        part = loop.tracker.staleness(loop.stored, embed, **options).before
        assert part.mean_by_age.tolist() == pytest.approx(part.ages.tolist())
        return part.ages.repeat_interleave(part.rows_by_age).tolist()

    # Of 6 batches of 4 images the memory of 20 rows has 5; the newest one is left out.
    assert ages(num_steps=3) == [1] * 4 + [3] * 4 + [4] * 4
    assert sorted(asked) == torch.cat([batches[1], batches[2], batches[4]]).sort().values.tolist()
    assert ages(num_steps=1) == [4] * 4
    assert ages(num_steps=99) == [age for age in (1, 2, 3, 4) for _ in range(4)]
    assert ages(num_steps=2, num_rows=3) == [1, 4, 4]


@pytest.mark.parametrize("memory", MEMORIES)
def test_first_call_finds_no_rows(memory: str) -> None:
    loop = Loop(memory, nn.Linear(5, 4))
    loop.call(torch.arange(8))
    for part in loop.staleness():
        assert (part.mean, part.maximum, len(part.ages)) == (0, 0, 0)


def test_missed_update_is_refused_and_changes_nothing() -> None:
    loop = Loop("pml", nn.Linear(5, 4))
    loop.call(torch.arange(8))
    tracked = loop.tracker.images.clone()
    for _ in range(2):
        loop.loss_fn(loop.embed(torch.arange(4)), torch.arange(4))
    with pytest.raises(ValueError, match="stored rows 8 to 12 without an update"):
        loop.tracker.update(2, torch.arange(4))
    assert torch.equal(loop.tracker.images, tracked)


def test_bad_input_is_named() -> None:
    loop = Loop("pml", nn.Linear(5, 4))
    loop.call(torch.arange(8))
    loop.loss_fn(loop.embed(torch.arange(4)), torch.arange(4))
    with pytest.raises(ValueError, match="5 images do not fit the 4 rows that the memory stored"):
        loop.tracker.update(2, torch.arange(5))
    loop.tracker.update(2, torch.arange(4))
    loop.loss_fn(loop.embed(torch.arange(4)), torch.arange(4), None, torch.zeros(4, dtype=torch.bool))
    with pytest.raises(ValueError, match="4 images do not fit the 0 rows"):
        loop.tracker.update(3, torch.arange(4))
    loop.tracker.update(3, torch.arange(4), torch.zeros(4, dtype=torch.bool))
    with pytest.raises(ValueError, match=r"stored has shape \(3, 4\): pass \(20, 4\)"):
        loop.tracker.staleness(torch.zeros(3, 4), loop.embed)
    with pytest.raises(ValueError, match=r"what embed returned has shape \(8, 2\): pass \(8, 4\)"):
        loop.tracker.staleness(loop.stored, lambda indices: torch.zeros(len(indices), 2))
    with pytest.raises(ValueError, match="num_rows=0"):
        loop.staleness(num_rows=0)
    with pytest.raises(ValueError, match="num_steps=0"):
        loop.staleness(num_steps=0)
    with pytest.raises(ValueError, match="memory_size=20"):
        RowTracker(CrossBatchMemory(ContrastiveLoss(), 4, 10)).load_state_dict(loop.tracker.state_dict())
    with pytest.raises(TypeError, match="memory is a Linear"):
        RowTracker(nn.Linear(1, 1))


def test_checkpoint_of_pmls_class_starts_over() -> None:
    """Its state lacks the position of the queue, so the memory loses its rows and the tracker follows."""
    loop = Loop("pml", nn.Linear(5, 4))
    for _ in range(2):
        loop.call(torch.arange(8))
    fresh = Loop("pml", loop.model)
    fresh.loss_fn.load_state_dict(loop.loss_fn.state_dict())
    fresh.tracker.load_state_dict(loop.tracker.state_dict())
    fresh.call(torch.arange(6))
    assert fresh.tracker.images.tolist() == [*range(6), *[-1] * 14]


def test_batches_that_are_refused_on_a_device_are_not_noted(monkeypatch: pytest.MonkeyPatch) -> None:
    read_as(monkeypatch, lambda _: False)
    memory = XBNWrapper(ContrastiveLoss(), 4, 6, nonfinite="skip")
    tracker = RowTracker(memory)
    for step, bad in enumerate([True, False, True, True, False, True]):
        images = torch.arange(2) + 2 * step
        embeddings = torch.randn(2, 4)
        embeddings[0, 0] = torch.inf if bad else 0.0
        memory(embeddings.requires_grad_(), images % 2)
        tracker.update(step, images)
    assert tracker.images.tolist() == [2, 3, 8, 9, -1, -1]


def test_rows_of_samples_that_return_are_of_their_last_step() -> None:
    memory = XBNWrapper(ContrastiveLoss(), 4, 6)
    tracker = RowTracker(memory)
    batches = [[0, 1, 2, 3], [1, 4, 1, 0], [5, 0, 6, 7], [7, 7, 4, 6]]
    for step, samples in enumerate(batches):
        images = torch.tensor(samples)
        memory(torch.randn(len(images), 4), images % 2, sample_ids=images)
        tracker.update(step, images)
        assert tracker.images[: memory.num_rows].tolist() == memory.id_memory[: memory.num_rows].tolist()
    assert tracker.images.tolist() == [0, 6, 7, 3, 4, 5]
    for image, step in zip(tracker.images.tolist(), tracker.stored_at.tolist(), strict=True):
        assert step == max(number for number, samples in enumerate(batches) if image in samples)
    for samples in ([8, 9], [10, 11, 8]):
        memory(torch.randn(len(samples), 4), torch.tensor(samples) % 2, sample_ids=torch.tensor(samples))
    with pytest.raises(ValueError, match="without an update"):
        tracker.update(9, torch.tensor([10, 11, 8]))
