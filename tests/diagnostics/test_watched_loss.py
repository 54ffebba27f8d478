from __future__ import annotations

from typing import Any

import pytest
import torch
from kinds import MEMORIES, PLAIN
from pytorch_metric_learning import distances, losses
from pytorch_metric_learning.losses import ContrastiveLoss, CrossBatchMemory, SupConLoss
from pytorch_metric_learning.miners import PairMarginMiner
from pytorch_metric_learning.reducers import DoNothingReducer
from torch import Tensor, nn

from pml_xbn.diagnostics import WatchedLoss, memory_rows
from pml_xbn.losses import AdaptiveCrossBatchMemory

LOSSES = {
    "contrastive": ContrastiveLoss,
    "contrastive, unnormalised": lambda: ContrastiveLoss(
        distance=distances.LpDistance(normalize_embeddings=False), neg_margin=3
    ),
    "supcon": SupConLoss,
    "multi-similarity": losses.MultiSimilarityLoss,
    "triplet": losses.TripletMarginLoss,
    "ntxent": losses.NTXentLoss,
    "nca": losses.NCALoss,
    "lifted": losses.LiftedStructureLoss,
    "snr": losses.SignalToNoiseRatioContrastiveLoss,
}


def batch(size: int = 8) -> tuple[Tensor, Tensor]:
    return torch.randn(size, 4, dtype=torch.float64), torch.arange(size) % 4


def filled(memory: str, loss: nn.Module | None = None, **options: Any) -> CrossBatchMemory:
    """A memory of 20 rows that holds 16."""
    if memory != "pml":
        options["memory_dtype"] = torch.float64
    loss_fn = MEMORIES[memory](loss or ContrastiveLoss(), 4, 20, **options)
    for _ in range(2):
        loss_fn(*batch())
        loss_fn.add_to_memory(*batch(), 8)
    return loss_fn


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("memory", MEMORIES)
def test_gradients_are_those_of_the_training_step(memory: str, loss: str) -> None:
    loss_fn = filled(memory, LOSSES[loss]())
    embeddings, labels = batch()
    leaf = embeddings.requires_grad_()
    with WatchedLoss(loss_fn) as seen:
        value = loss_fn(leaf * 1.0, labels)
    value.backward()
    torch.testing.assert_close(seen.gradient, leaf.grad)
    assert seen.gradient.any()
    torch.testing.assert_close(seen.anchors, leaf.detach())
    rows, row_labels = memory_rows(loss_fn)
    torch.testing.assert_close(seen.rows, rows)  # which may have been stored anew after the loss
    assert torch.equal(seen.row_labels, row_labels)
    assert seen.is_from_batch.nonzero().flatten().tolist() == sorted(loss_fn.curr_batch_idx.tolist())
    torch.testing.assert_close(seen.rows[loss_fn.curr_batch_idx], leaf.detach())


@pytest.mark.parametrize("loss", LOSSES)
def test_memorys_part_of_the_gradient_is_that_of_its_pairs(loss: str) -> None:
    """Its distances, and only these, are let through to the anchors."""
    loss_fn = filled("pml", LOSSES[loss]())
    embeddings, labels = batch()
    with WatchedLoss(loss_fn) as seen:
        loss_fn(embeddings.requires_grad_(), labels)

    class Through(nn.Module):
        def __init__(self, distance: nn.Module, is_through: Tensor) -> None:
            super().__init__()
            self.distance, self.is_through = distance, is_through
            self.is_inverted = distance.is_inverted

        def forward(self, query: Tensor, ref: Tensor) -> Tensor:
            mat = self.distance(query, ref)
            return torch.where(self.is_through, mat, mat.detach())

        def __getattr__(self, name: str) -> Any:
            try:
                return super().__getattr__(name)
            except AttributeError:
                return getattr(super().__getattr__("distance"), name)

    parts = []
    for is_through in (~seen.is_from_batch, seen.is_from_batch):
        inner = LOSSES[loss]()
        inner.distance = Through(inner.distance, is_through)
        leaf = seen.anchors.clone().requires_grad_()
        indices = loss_fn.create_indices_tuple(leaf, labels, seen.rows, seen.row_labels, None, True)
        inner(leaf, labels, indices, seen.rows, seen.row_labels).backward()
        parts.append(leaf.grad)
    torch.testing.assert_close(seen.memory_gradient, parts[0])
    torch.testing.assert_close(seen.gradient, parts[0] + parts[1])
    assert seen.memory_gradient.any()


@pytest.mark.parametrize("memory", MEMORIES)
def test_training_goes_on_as_if_nobody_watched(memory: str) -> None:
    results = []
    for is_watched in (False, True):
        torch.manual_seed(1)
        model = nn.Linear(4, 4).double()
        loss_fn = filled(memory, SupConLoss(), miner=PairMarginMiner())
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(4):
            embeddings, labels = batch()
            optimizer.zero_grad()
            if is_watched:
                with WatchedLoss(loss_fn):
                    loss = loss_fn(model(embeddings), labels)
            else:
                loss = loss_fn(model(embeddings), labels)
            loss.backward()
            optimizer.step()
        results.append((loss.item(), model.weight.tolist(), memory_rows(loss_fn).embeddings.tolist()))
        hooks = [
            m for module in loss_fn.modules() for m in (module._forward_hooks, module._forward_pre_hooks)
        ]
        assert not any(hooks)
    assert results[0] == results[1]


@pytest.mark.parametrize("memory_only", [False, True])
@pytest.mark.parametrize("memory", PLAIN)
def test_push_on_directions_is_that_of_unit_embeddings(memory: str, memory_only: bool) -> None:
    def pushed(has_lengths: bool, normalize: bool) -> Tensor:
        torch.manual_seed(0)
        loss_fn = MEMORIES[memory](SupConLoss(), 4, 20)
        loss_fn.double()
        for _ in range(3):
            rows, labels = batch()
            rows = nn.functional.normalize(rows)
            lengths = 0.1 + torch.rand(8, 1, dtype=torch.float64)
            with WatchedLoss(loss_fn) as seen:
                loss_fn((rows * lengths if has_lengths else rows).requires_grad_(), labels)
        return torch.stack(seen.common_mode_push(memory_only=memory_only, normalize=normalize))

    expected = pushed(has_lengths=False, normalize=False)
    torch.testing.assert_close(pushed(has_lengths=True, normalize=True), expected)
    torch.testing.assert_close(pushed(has_lengths=False, normalize=True), expected)
    assert not torch.allclose(pushed(has_lengths=True, normalize=False), expected, rtol=0.01)


@pytest.mark.parametrize("memory", MEMORIES)
def test_what_was_seen_outlives_later_calls(memory: str) -> None:
    loss_fn = filled(memory)
    embeddings, labels = batch()
    with WatchedLoss(loss_fn) as seen:
        loss_fn(embeddings.requires_grad_(), labels)
    rows, anchors = seen.rows.clone(), seen.anchors.clone()
    for _ in range(3):
        loss_fn(*batch())
    with torch.no_grad():
        embeddings.zero_()
    torch.testing.assert_close(seen.rows, rows)  # which may have been stored anew after the loss
    assert torch.equal(seen.anchors, anchors)


def test_batch_loss_counts_for_the_gradient_and_not_for_the_pairs() -> None:
    (stored, labels), (embeddings, _), seen = batch(), batch(), {}
    for weight in (0.0, 3.0):
        loss_fn = AdaptiveCrossBatchMemory(
            SupConLoss(), 4, 20, batch_loss_weight=weight, memory_dtype=torch.float64
        )
        loss_fn(stored, labels)
        with WatchedLoss(loss_fn) as seen[weight]:
            loss_fn(embeddings.clone().requires_grad_(), labels)
    leaf = embeddings.clone().requires_grad_()
    SupConLoss()(leaf, labels).backward()
    torch.testing.assert_close(seen[3].gradient, seen[0].gradient + 3 * leaf.grad)
    assert torch.equal(seen[3].memory_gradient, seen[0].memory_gradient)
    assert seen[3].valid_pairs() == seen[0].valid_pairs()


def test_masked_rows_are_stored_and_the_others_are_the_anchors() -> None:
    for memory in MEMORIES:
        loss_fn = filled(memory)
        mask = torch.tensor([True, False, True, False, True, False, False, False])
        embeddings, labels = batch()
        with WatchedLoss(loss_fn) as seen:
            loss_fn(embeddings.requires_grad_(), labels, None, mask)
        assert torch.equal(seen.anchors, embeddings[~mask].detach())
        torch.testing.assert_close(seen.rows[seen.is_from_batch], embeddings[mask].detach())
        assert seen.gradient.shape == (5, 4)


def test_warmup_sees_the_batch_alone() -> None:
    for mask in (None, torch.arange(8) < 4):
        loss_fn = AdaptiveCrossBatchMemory(ContrastiveLoss(), 4, 20, warmup=2, memory_dtype=torch.float64)
        loss_fn.fill_memory(*batch())
        embeddings, labels = batch()
        with WatchedLoss(loss_fn) as seen:
            loss_fn(embeddings.requires_grad_(), labels, None, mask).backward()
        assert seen.is_from_batch.all()
        assert not seen.memory_gradient.any()
        torch.testing.assert_close(seen.gradient, embeddings.grad if mask is None else embeddings.grad[~mask])
        assert seen.common_mode_push().push == 0


def test_read_only_call_compares_with_old_rows_alone() -> None:
    loss_fn = filled("plain").eval()
    embeddings, labels = batch()
    with WatchedLoss(loss_fn) as seen:
        loss_fn(embeddings.requires_grad_(), labels)
    assert not seen.is_from_batch.any()
    torch.testing.assert_close(seen.memory_gradient, seen.gradient)
    given = torch.tensor([0, 1]), torch.tensor([4, 5]), torch.tensor([0, 1]), torch.tensor([1, 2])
    with WatchedLoss(loss_fn) as seen:
        loss_fn(embeddings, labels, given)
    torch.testing.assert_close(seen.rows[seen.is_from_batch], embeddings.detach())
    with pytest.raises(ValueError, match="has no gradient"), torch.no_grad(), WatchedLoss(loss_fn):
        loss_fn(embeddings, labels)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_is_raised(dtype: torch.dtype) -> None:
    loss_fn = MEMORIES["xbn"](ContrastiveLoss(), 4, 20)
    for _ in range(2):
        embeddings, labels = batch()
        with WatchedLoss(loss_fn) as seen:
            loss_fn(embeddings.to(dtype).requires_grad_(), labels)
    tensors = seen.gradient, seen.memory_gradient, seen.pair_gradient, *seen.common_mode_push()
    assert {tensor.dtype for tensor in tensors} == {torch.float32}
    assert seen.memory_gradient.any()


def test_calls_without_anchors_or_pairs_have_no_gradient() -> None:
    for memory in MEMORIES:
        loss_fn = MEMORIES[memory](ContrastiveLoss(), 4, 20)
        with WatchedLoss(loss_fn) as seen:
            loss_fn(torch.randn(1, 4, requires_grad=True), torch.tensor([0]))
        assert [int(count) for count in seen.valid_pairs()] == [0] * 4
        assert seen.common_mode_push() == seen.common_mode_push(memory_only=True) == (0,) * 4
    loss_fn, (embeddings, labels) = filled("xbn"), batch()
    for mask, size in ((None, 0), (torch.ones(8, dtype=torch.bool), 8)):
        with WatchedLoss(loss_fn) as seen:
            loss_fn(embeddings[:size].requires_grad_(), labels[:size], None, mask)
        assert [int(count) for count in seen.valid_pairs()] == [0] * 4
        assert seen.common_mode_push() == (0,) * 4


@pytest.mark.parametrize(
    ("memory", "loss"), [("pml", "AngularLoss"), ("xbn", "AngularLoss"), ("xbn", "LiftedStructureLoss")]
)
def test_loss_without_distances_says_so(memory: str, loss: str) -> None:
    loss_fn = filled(memory, getattr(losses, loss)())
    embeddings, labels = batch()
    with WatchedLoss(loss_fn) as seen:
        loss_fn(embeddings.requires_grad_(), labels).backward()
    torch.testing.assert_close(seen.gradient, embeddings.grad)
    assert seen.common_mode_push().share > 0
    with pytest.raises(ValueError, match=f"the pairs of {loss} cannot be told apart"):
        seen.valid_pairs()
    with pytest.raises(ValueError, match="pass memory_only=False"):
        seen.common_mode_push(memory_only=True)


def test_another_memory_of_the_same_loss_is_not_watched() -> None:
    loss, gradients = SupConLoss(), []
    other, watched = filled("xbn", loss), filled("xbn", loss)
    (first, labels), (second, _) = batch(), batch()
    state = watched.state_dict()
    for memories in ((watched,), (other, watched, other)):
        watched.load_state_dict(state)
        with WatchedLoss(watched) as seen:
            for memory in memories:
                memory((second if memory is watched else first).requires_grad_(), labels)
        assert torch.equal(seen.anchors, second)
        gradients.append(seen.gradient)
    torch.testing.assert_close(*gradients)


def test_a_subclass_of_a_loss_that_differs_from_pmls_has_no_pairs_either() -> None:
    class Own(losses.LiftedStructureLoss):
        def __init__(self) -> None:
            super().__init__(neg_margin=1.0, pos_margin=0.0)

    loss_fn, (embeddings, labels) = filled("xbn", Own()), batch()
    with WatchedLoss(loss_fn) as seen:
        loss_fn(embeddings.requires_grad_(), labels)
    assert seen.pair_gradient is None


def test_a_memory_that_a_hook_of_the_watched_one_calls_is_not_watched() -> None:
    other, watched = filled("xbn", SupConLoss()), filled("xbn", SupConLoss())
    (first, labels), (second, _) = batch(), batch()

    def call_other(*_: Any) -> None:
        other(second, labels)

    watched.register_memory_hook(call_other)
    with WatchedLoss(watched) as seen:
        watched(first.requires_grad_(), labels)
    assert torch.equal(seen.anchors, first)


def test_misuse_is_named() -> None:
    loss_fn = filled("pml")
    embeddings, labels = batch()
    embeddings.requires_grad_()
    with WatchedLoss(loss_fn) as watched:
        loss_fn(embeddings, labels)
    for seen in (WatchedLoss(loss_fn), watched):
        with pytest.raises(ValueError, match="was not called while it was watched"), seen:
            pass
    with pytest.raises(ValueError, match="called twice"), WatchedLoss(loss_fn):  # noqa: PT012
        loss_fn(embeddings, labels)
        loss_fn(embeddings, labels)
    terms = filled("xbn", ContrastiveLoss(reducer=DoNothingReducer()))
    with pytest.raises(ValueError, match="ContrastiveLoss with DoNothingReducer"):
        WatchedLoss(terms)
    with pytest.raises(TypeError, match="memory is a ContrastiveLoss"):
        WatchedLoss(ContrastiveLoss())
    with pytest.raises(AssertionError), WatchedLoss(loss_fn):  # the memory's own error comes through
        loss_fn(*batch(40))
    assert not loss_fn._forward_hooks
