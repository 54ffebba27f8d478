"""Any sequence of calls leaves the memory that a slow model made of Python lists has.

``PML_XBN_SEQUENCES`` sets how many sequences are tried (default 100).
"""

from __future__ import annotations

import io
import os

import numpy as np
import torch
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from kinds import KINDS
from pytorch_metric_learning.reducers import MeanReducer
from troubled import TroubledHook, TroubledLoss

from pml_xbn.losses import AdaptiveCrossBatchMemory

D = 2
DTYPES = [torch.float16, torch.bfloat16, torch.float32, torch.float64]
# Exact in every dtype, and far enough apart that no spread is a rounding error.
values = st.integers(-16, 16).map(lambda n: n / 8)


def contrastive_loss(
    anchors: np.ndarray, labels: list[int], refs: np.ndarray, ref_labels: list[int], own: list[int] | None
) -> float:
    """Mean distance of positives plus mean shortfall of negatives to 1, between unit vectors."""

    def unit(x: np.ndarray) -> np.ndarray:
        return x / max(np.linalg.norm(x), 1e-12)

    positives, negatives = [], []
    for i, (anchor, label) in enumerate(zip(anchors, labels, strict=True)):
        for j, (ref, ref_label) in enumerate(zip(refs, ref_labels, strict=True)):
            distance = np.linalg.norm(unit(anchor) - unit(ref))
            if label != ref_label:
                negatives.append(max(0.0, 1 - distance))
            elif own is None or own[i] != j:
                positives.append(distance)
    if len(positives) <= 1 and len(negatives) <= 1:
        return 0.0  # PML takes fewer than two positive or negative pairs for none
    return sum(np.mean(x) for x in (positives, negatives) if x)


class AnySequence(RuleBasedStateMachine):
    @initialize(
        kind=st.sampled_from(sorted(KINDS)),
        memory_size=st.integers(1, 7),
        warmup=st.integers(0, 2),
        delay=st.integers(0, 2),
        unit_norm=st.booleans(),
        nonfinite=st.sampled_from(["raise", "skip"]),
    )
    def build(self, kind: str, memory_size: int, nonfinite: str, unit_norm: bool, **counts: int) -> None:
        self.hook = TroubledHook()

        def make() -> AdaptiveCrossBatchMemory:
            loss = TroubledLoss(pos_margin=0, neg_margin=1, reducer=MeanReducer())
            loss_fn = KINDS[kind].memory(
                loss, D, memory_size, nonfinite=nonfinite, normalize_memory=unit_norm, **counts
            )
            loss_fn.register_memory_hook(self.hook)
            return loss_fn

        self.make, self.ours, self.adapt = make, make(), KINDS[kind].equation()
        self.size, self.unit_norm, self.nonfinite = memory_size, unit_norm, nonfinite
        self.warmup, self.first_adapted = counts["warmup"], counts["warmup"] + counts["delay"]
        self.rows: list[np.ndarray] = []
        self.labels: list[int] = []
        self.next = self.calls = 0

    # -- the model ------------------------------------------------------------------------------------------

    def store(self, batch: list[np.ndarray], labels: list[int]) -> list[int]:
        indices = []
        for row, label in zip(batch, labels, strict=True):
            if len(self.rows) < self.size:
                self.rows.append(row)
                self.labels.append(label)
            else:
                self.rows[self.next], self.labels[self.next] = row, label
            indices.append(self.next)
            self.next = (self.next + 1) % self.size
        return indices

    def adapted(self, batch: np.ndarray, labels: list[int]) -> list[np.ndarray]:
        memory = self.adapt(np.array(self.rows).reshape(-1, D), self.labels, batch, labels)
        if not self.unit_norm:
            return list(memory)
        norms = np.linalg.norm(memory, axis=1, keepdims=True)
        # The direction of a row that is adapted to zero is that of its rounding: whichever ours has will do.
        ours = self.ours.embedding_memory[: len(memory)].double().numpy()
        is_free = (norms < 1e-5) & (np.linalg.norm(ours, axis=1, keepdims=True) < 1 + 1e-5)
        return list(np.where(is_free, ours, memory / np.maximum(norms, 1e-12)))

    # -- what may happen ------------------------------------------------------------------------------------

    @rule(
        data=st.data(),
        size=st.integers(0, 8),
        dtype=st.sampled_from(DTYPES),
        masked=st.booleans(),
        trouble=st.sampled_from(["", "", "", "", "loss", "hook", "nan"]),
    )
    def forward(self, data: st.DataObject, size: int, dtype: torch.dtype, masked: bool, trouble: str) -> None:
        batch = np.array(data.draw(st.lists(st.tuples(values, values), min_size=size, max_size=size)))
        batch = batch.reshape(size, D)
        labels = data.draw(st.lists(st.integers(0, 2), min_size=size, max_size=size))
        mask = np.array(data.draw(st.lists(st.booleans(), min_size=size, max_size=size)), dtype=bool)
        if not masked:
            mask = np.ones(size, dtype=bool)
        anchors = ~mask if masked else mask
        embeddings = torch.tensor(batch, dtype=dtype)
        has_nan = trouble == "nan" and size > 0
        if has_nan:
            embeddings[0, 0] = float("nan")
        for name, part in (("hook", self.hook), ("loss", self.ours.loss)):
            part.error = OSError("disk on fire") if trouble == name else None
        self.ours.loss.rows = None
        args = embeddings.requires_grad_(), torch.tensor(labels, dtype=torch.int64), None
        try:
            loss = self.ours(*args, torch.tensor(mask) if masked else None)
        except ValueError:
            assert mask.sum() > self.size or (has_nan and self.nonfinite == "raise")
            return
        except OSError:
            assert trouble in ("loss", "hook")
            return
        finally:
            self.hook.error = self.ours.loss.error = None
        assert mask.sum() <= self.size
        if has_nan:
            assert self.nonfinite == "skip"
            return
        assert trouble != "hook" or self.calls < self.first_adapted
        loss.backward()
        assert args[0].grad.dtype == dtype
        stored_labels = [label for label, is_stored in zip(labels, mask, strict=True) if is_stored]
        if self.calls >= self.warmup:
            if self.calls >= self.first_adapted:
                self.rows = self.adapted(batch[mask], stored_labels)
            indices = self.store(list(batch[mask]), stored_labels)
            anchor_labels = [label for label, is_anchor in zip(labels, anchors, strict=True) if is_anchor]
            # Of the rows as the loss has them, which the invariant compares with the model's: the direction
            # of a row that is where the model has zeros, to within rounding, is anybody's guess.
            rows = self.ours.loss.rows
            stored = np.empty((0, D)) if rows is None else rows.double().numpy()
            expected = contrastive_loss(
                batch[anchors], anchor_labels, stored, self.labels, None if masked else indices
            )
            np.testing.assert_allclose(loss.item(), expected, rtol=1e-3, atol=1e-3)
        self.calls += 1

    @rule(data=st.data(), size=st.integers(0, 8))
    def fill(self, data: st.DataObject, size: int) -> None:
        rows = data.draw(st.lists(st.tuples(values, values), min_size=size, max_size=size))
        labels = data.draw(st.lists(st.integers(0, 2), min_size=size, max_size=size))
        batch = np.array(rows).reshape(size, D)
        try:
            self.ours.fill_memory(torch.tensor(batch).float(), torch.tensor(labels, dtype=torch.int64))
        except ValueError:
            assert size > self.size
        else:
            self.store(list(batch), labels)

    @rule(read=st.sampled_from(["eval", "no_grad"]), has_nan=st.booleans())
    def read_only(self, read: str, has_nan: bool) -> None:
        batch = torch.full((3, D), float("nan")) if has_nan else torch.ones(3, D)
        self.ours.train(read != "eval")
        with torch.set_grad_enabled(read != "no_grad"):
            self.ours(batch, torch.tensor([0, 1, 2]))
        self.ours.train()

    @rule()
    def reset(self) -> None:
        self.ours.reset_queue()
        self.rows, self.labels, self.next = [], [], 0

    @precondition(lambda self: self.calls)
    @rule()
    def save_and_load(self) -> None:
        file = io.BytesIO()
        torch.save(self.ours.state_dict(), file)
        file.seek(0)
        self.ours = self.make()
        self.ours.load_state_dict(torch.load(file, weights_only=True))

    @rule(bad=st.sampled_from(["width", "labels", "mask"]))
    def bad_call(self, bad: str) -> None:
        embeddings = torch.ones(2, D + (bad == "width"))
        labels = torch.ones(2) if bad == "labels" else torch.tensor([0, 1])
        try:
            self.ours(embeddings, labels, None, torch.ones(2) if bad == "mask" else None)
        except ValueError:
            return
        raise AssertionError(f"bad {bad} was accepted")

    @invariant()
    def memory_is_the_models(self) -> None:
        if not hasattr(self, "ours"):
            return
        ours = self.ours
        assert (ours.num_rows, ours.queue_idx, ours.num_calls) == (len(self.rows), self.next, self.calls)
        assert ours.embedding_memory.dtype == torch.float32
        assert ours.label_memory[: ours.num_rows].tolist() == self.labels
        stored = ours.embedding_memory[: ours.num_rows].double().numpy()
        expected = np.array(self.rows).reshape(-1, D)
        np.testing.assert_allclose(stored, expected, rtol=1e-4, atol=1e-5)
        assert not ours.embedding_memory[ours.num_rows :].any()
        # From here on with the stored rows: what is rounding to float32 must not grow into a difference.
        self.rows = list(stored)


TestAnySequence = AnySequence.TestCase
TestAnySequence.settings = settings(
    max_examples=int(os.environ.get("PML_XBN_SEQUENCES", "100")),
    stateful_step_count=15,
    suppress_health_check=list(HealthCheck),
)
