from __future__ import annotations

import copy
from statistics import fmean

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from memories import MEMORIES
from pytorch_metric_learning.losses import AngularLoss, ContrastiveLoss, CrossBatchMemory, SupConLoss
from torch import Tensor

from pml_xbn import XBNWrapper
from pml_xbn.diagnostics import MemoryMeter, WatchedLoss, memory_outlook
from pml_xbn.diagnostics.memory_meter import COEFFICIENTS, EFFECTS


def batches(number: int) -> list[tuple[Tensor, Tensor]]:
    torch.manual_seed(0)
    return [(torch.randn(8, 4) + step, torch.arange(8) % 4) for step in range(number)]


@given(st.floats(0, 1), st.floats(0, 2), st.floats(0, 100))
def test_probabilities_are_the_softmax_of_the_fit(
    share: float, displacement: float, positives: float
) -> None:
    powers = np.exp(np.array(COEFFICIENTS) @ [1, share, displacement, np.log(1 + positives)])
    outlook = memory_outlook(share, displacement, positives)
    np.testing.assert_allclose(outlook.probabilities, powers / powers.sum(), rtol=1e-9)
    assert outlook.effect == EFFECTS[powers.argmax()]


@pytest.mark.parametrize("memory", MEMORIES)
def test_measures_what_a_watched_loss_does(memory: str) -> None:
    metered = MEMORIES[memory](SupConLoss(), 4, 20)
    watched, meter, seen = copy.deepcopy(metered), MemoryMeter(metered, every=2, measurements=3), []
    for embeddings, labels in batches(11):
        ours, theirs = (embeddings.clone().requires_grad_() for _ in range(2))
        with meter:
            loss = metered(ours, labels)
        with WatchedLoss(watched) as one:
            watched(theirs, labels).backward()
        loss.backward()
        assert torch.equal(ours.grad, theirs.grad)
        seen.append(one)
    # Not the first, which finds an empty memory, nor any after the third.
    push = [one.common_mode_push(normalize=True) for one in seen[2:8:2]]
    pairs = [one.valid_pairs() for one in seen[2:8:2]]
    outlook = meter.outlook()
    assert outlook.push_share == pytest.approx(fmean(float(one.share) for one in push))
    assert outlook.displacement == pytest.approx(fmean(float(one.displacement) for one in push))
    from_memory = sum(int(one.positives_from_memory) for one in pairs)
    from_batch = sum(int(one.positives_from_batch) for one in pairs)
    assert outlook.positives == pytest.approx(from_memory / from_batch)


def test_an_error_in_the_step_is_nobody_elses() -> None:
    loss_fn = XBNWrapper(ContrastiveLoss(), 4, 20)
    meter = MemoryMeter(loss_fn, every=1)
    for embeddings, labels in batches(3):
        with pytest.raises(ValueError, match="labels"), meter:
            loss_fn(embeddings, labels[1:])
        with meter:
            loss_fn(embeddings.requires_grad_(), labels).backward()
    assert len(meter._found) == 2
    assert not loss_fn._forward_hooks
    assert not loss_fn.loss._forward_hooks


def test_without_a_measurement_it_says_how_to_get_one() -> None:
    loss_fn = XBNWrapper(SupConLoss(), 4, 20)
    meter = MemoryMeter(loss_fn)
    with meter:
        loss_fn(*batches(1)[0])
    with pytest.raises(ValueError, match="for more than 40 steps"):
        meter.outlook()


def test_refuses_what_it_cannot_measure() -> None:
    with pytest.raises(TypeError, match="SupConLoss"):
        MemoryMeter(SupConLoss())
    with pytest.raises(ValueError, match="every"):
        MemoryMeter(XBNWrapper(SupConLoss(), 4, 20), every=0)
    loss_fn = XBNWrapper(AngularLoss(), 4, 20)
    meter = MemoryMeter(loss_fn, every=1)
    (first, labels), (second, _) = batches(2)
    with meter:
        loss_fn(first, labels)
    with pytest.raises(ValueError, match="AngularLoss computes no distances"), meter:
        loss_fn(second.requires_grad_(), labels)


@pytest.mark.parametrize(
    ("memory", "advice"), [(CrossBatchMemory, "XBNWrapper in its place"), (XBNWrapper, "without a memory")]
)
def test_advises_by_the_memory(memory: type[CrossBatchMemory], advice: str) -> None:
    meter = MemoryMeter(memory(SupConLoss(), 4, 20))
    meter._found = [(0.4, 0.8, 8.0, 16.0)]
    assert str(meter).startswith("the memory is likely to harm (")
    assert advice in str(meter)
    meter._found = [(0.2, 0.0, 1.0, 100.0)]
    assert str(meter).startswith("the memory is likely to help (")
    assert advice not in str(meter)
