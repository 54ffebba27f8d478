"""What every adapter promises as a memory hook."""

from __future__ import annotations

import copy
import io
from collections.abc import Callable
from typing import Any

import pytest
import torch
from exact import exact
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from kinds import ADAPTERS
from pytorch_metric_learning.losses import ContrastiveLoss
from torch import Tensor, nn

from pml_xbn.adapters import (
    Affine,
    BaseAdapter,
    GroupMomentMatching,
    KalmanMomentMatching,
    MeasuredGain,
    MomentMatching,
    Moments,
    SuperclassLookup,
    match_moments,
    moments,
)
from pml_xbn.losses import AdaptiveCrossBatchMemory


@pytest.fixture(params=ADAPTERS)
def adapter(request: pytest.FixtureRequest) -> nn.Module:
    return ADAPTERS[request.param]()


def example(n: int = 20, b: int = 8, d: int = 3) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    return torch.randn(n, d), torch.arange(n) % 4, torch.randn(b, d) + 2, torch.arange(b) % 4


def test_inputs_are_not_written_to(adapter: nn.Module) -> None:
    inputs = example()
    before = [x.clone() for x in inputs]
    for _ in range(3):
        adapter(*inputs)
    assert all(torch.equal(a, b) for a, b in zip(inputs, before, strict=True))


def test_shape_dtype_and_order_are_kept(adapter: nn.Module) -> None:
    memory, labels, batch, batch_labels = example()
    out = adapter(memory, labels, batch, batch_labels)
    assert out.shape == memory.shape
    assert out.dtype == memory.dtype
    order = torch.randperm(len(memory))
    adapter_again = copy.deepcopy(adapter)
    shuffled = adapter_again(memory[order], labels[order], batch, batch_labels)
    torch.testing.assert_close(shuffled, adapter(memory, labels, batch, batch_labels)[order])


@pytest.mark.parametrize(("n", "b"), [(0, 8), (1, 8), (20, 1), (20, 0), (0, 0)])
def test_fewer_than_two_rows_leave_the_memory(adapter: nn.Module, n: int, b: int) -> None:
    assert adapter(*example(n, b)) is None


def test_a_single_row_batch_does_not_move_the_estimate(adapter: nn.Module) -> None:
    adapter(*example())
    before = copy.deepcopy(adapter.state_dict())
    adapter(*example(b=1))
    assert exact(adapter) == exact(before)


def test_state_dict_continues_where_it_was_saved(adapter: nn.Module) -> None:
    steps = [example() for _ in range(7)]
    for step in steps[:4]:
        adapter(*step)
    file = io.BytesIO()
    torch.save(adapter.state_dict(), file)
    file.seek(0)
    fresh = copy.deepcopy(adapter)
    fresh.load_state_dict(torch.load(file, weights_only=True))
    for step in steps[4:]:
        assert torch.equal(adapter(*step), fresh(*step))


@pytest.mark.parametrize("name", ADAPTERS)
def test_a_dimension_without_spread_is_only_shifted(name: str) -> None:
    adapter = ADAPTERS[name]()
    memory, labels, batch, batch_labels = example()
    memory[:, 1] = 0.1  # not exact in binary: a careless variance is not zero
    batch = batch.repeat(4, 1)
    out = adapter(memory, labels, batch, batch_labels.repeat(4))
    assert torch.isfinite(out).all()
    for group in range(4):
        assert len(out[labels == group][:, 1].unique()) == 1


def test_a_batch_without_spread_gives_rows_without_spread() -> None:
    out = MomentMatching()(torch.randn(9, 2), torch.zeros(9), torch.full((4, 2), 3.0), torch.zeros(4))
    torch.testing.assert_close(out, torch.full((9, 2), 3.0))


rows_of = st.tuples(st.integers(0, 9), st.integers(0, 6), st.integers(1, 3))


@pytest.mark.parametrize("name", ADAPTERS)
@settings(max_examples=120)
@given(data=st.data(), sizes=rows_of)
def test_finite_rows_stay_finite(name: str, data: st.DataObject, sizes: tuple[int, int, int]) -> None:
    n, b, d = sizes
    adapter = ADAPTERS[name]()
    floats = st.floats(-(2.0**127), 2.0**127, width=32)
    for _ in range(2):
        memory = torch.from_numpy(data.draw(arrays.arrays("float32", (n, d), elements=floats)))
        batch = torch.from_numpy(data.draw(arrays.arrays("float32", (b, d), elements=floats)))
        labels = data.draw(st.lists(st.integers(0, 3), min_size=n + b, max_size=n + b))
        stored, coming = torch.tensor(labels, dtype=torch.int64).tensor_split([n])
        out = adapter(memory, stored, batch, coming)
        assert out is None or torch.isfinite(out).all()


@settings(max_examples=60)
@given(
    n=st.integers(2, 40), b=st.integers(2, 20), loc=st.floats(-10, 10), scale=st.floats(0.1, 10),
    seed=st.integers(0, 999),
)  # fmt: skip
def test_matched_rows_have_the_moments_of_the_batch(
    n: int, b: int, loc: float, scale: float, seed: int
) -> None:
    generator = torch.Generator().manual_seed(seed)
    memory = torch.randn(n, 3, generator=generator, dtype=torch.float64)
    assume(memory.std(dim=0).min() > 1e-2)  # XBN's sums round a spread that is small beside the mean
    batch = torch.randn(b, 3, generator=generator, dtype=torch.float64) * scale + loc
    out = MomentMatching()(memory, torch.zeros(n), batch, torch.zeros(b))
    torch.testing.assert_close(out.mean(0), batch.mean(0))
    torch.testing.assert_close(out.std(0), batch.std(0))
    again = MomentMatching()(out, torch.zeros(n), batch, torch.zeros(b))
    torch.testing.assert_close(again, out)


def test_collected_stats_are_plain_floats_that_mean_what_they_say() -> None:
    memory, labels, batch, batch_labels = example()
    for name, make in ADAPTERS.items():
        adapter = make(collect_stats=True)
        adapter(memory, labels, batch, batch_labels)
        expected = (memory.mean(0) - batch.mean(0)).norm().item()
        assert adapter.mean_distance == pytest.approx(expected), name
        assert adapter.std_ratio == pytest.approx((batch.std(0) / memory.std(0)).mean().item()), name
        for stat in adapter._record_these_stats:
            assert type(getattr(adapter, stat)) is float, (name, stat)
        if name in ("per class", "super-class"):
            assert adapter.share_normalized_per_group == 1.0


def test_share_counts_the_rows_that_took_their_groups_map() -> None:
    adapter = GroupMomentMatching(collect_stats=True)
    labels = torch.tensor([0] * 5 + [1] * 4 + [2])
    adapter(torch.randn(10, 2), labels, torch.randn(5, 2), torch.tensor([0, 0, 1, 2, 2]))
    assert adapter.share_normalized_per_group == pytest.approx(0.5)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: MomentMatching(momentum=1.0), "momentum=1.0"),
        (lambda: MomentMatching(momentum=-0.1), "momentum=-0.1"),
        (lambda: KalmanMomentMatching(process_noise=-1), "process_noise=-1"),
        (lambda: KalmanMomentMatching(measurement_noise=float("nan")), "measurement_noise=nan"),
        (lambda: KalmanMomentMatching(initial_variance=float("inf")), "initial_variance=inf"),
        (lambda: KalmanMomentMatching(gain_update_interval=0), "gain_update_interval=0"),
        (lambda: MeasuredGain(window=0), "window=0"),
        (lambda: GroupMomentMatching(mean_lambda=1.5), "mean_lambda=1.5"),
        (lambda: GroupMomentMatching(std_lambda=-0.5), "std_lambda=-0.5"),
        (lambda: GroupMomentMatching(superclasses=[]), r"shape \(0,\)"),
        (lambda: GroupMomentMatching(superclasses=torch.zeros(2, 2).long()), r"\(2, 2\).* one dimension"),
        (lambda: GroupMomentMatching(superclasses=[0, -1]), "is -1"),
        (lambda: GroupMomentMatching(superclasses={-3: 0}), "label of superclasses is -3"),
        (lambda: GroupMomentMatching(superclasses={0: 0, 1: -2}), "value of superclasses is -2"),
        (lambda: GroupMomentMatching(superclasses=[0.5, 1.0]), "0.5.*float"),
        (lambda: GroupMomentMatching(superclasses=[True, False]), "bool"),
        (lambda: GroupMomentMatching(superclasses={"cat": 0}), "cat"),
        (lambda: GroupMomentMatching(superclasses={0: None}), "None"),
    ],
)
def test_bad_settings_name_the_value(make: object, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()


def test_lookup_tells_which_labels_it_lacks() -> None:
    lookup = SuperclassLookup({3: 1, 900: 0})
    labels = torch.tensor([900, 4, 3, -1, 10**12])
    assert lookup(labels).tolist() == [0, -1, 1, -1, -1]
    assert lookup.is_missing(labels).tolist() == [False, True, False, True, True]
    assert lookup.is_missing(labels.to("meta")).is_meta  # goes with the labels
    assert lookup(labels).tolist() == [0, -1, 1, -1, -1]  # and has lost nothing there


def test_half_precision_rows_have_float32_moments() -> None:
    rows = torch.randn(300, 2).half()
    assert moments(rows).mean.dtype == torch.float32
    identity = match_moments(rows, moments(rows), moments(rows))
    torch.testing.assert_close(identity, rows)
    shifted = match_moments(rows, moments(rows), Moments(torch.ones(2), torch.ones(2)))
    assert shifted.dtype == torch.float16


class ReturnsRows(BaseAdapter):
    def map(self, memory: Moments, target: Moments) -> Any:
        return target.mean - memory.mean


class ReturnsOneScale(BaseAdapter):
    def map(self, memory: Moments, target: Moments) -> Affine:
        return Affine(torch.tensor(2.0), target.mean)


class OverridesForward(BaseAdapter):
    def forward(self, *args: Any) -> Any:
        return args[0]


@pytest.mark.parametrize(
    ("adapter", "message"),
    [
        (ReturnsRows(), "returned a Tensor: return Affine"),
        (ReturnsOneScale(), "one number per dimension"),
        (OverridesForward(), "overrides forward"),
        (BaseAdapter(), "BaseAdapter has no map: define map"),
    ],
)
def test_an_adapter_that_is_no_map_is_refused_with_words(adapter: BaseAdapter, message: str) -> None:
    memory = AdaptiveCrossBatchMemory(ContrastiveLoss(), 4, 8)
    embeddings, labels = torch.randn(4, 4), torch.arange(4) % 2
    memory(embeddings, labels)

    def adapt() -> None:
        memory.register_memory_hook(adapter)
        memory(embeddings, labels)

    with pytest.raises((TypeError, ValueError), match=message):
        adapt()


class Eq6(BaseAdapter):
    """Eq. 6 as it is printed: 0 / 0 in a dimension without spread."""

    def map(self, memory: Moments, target: Moments) -> Affine:
        scale = target.std / memory.std
        return Affine(scale, target.mean - memory.mean * scale)


class Growing(BaseAdapter):
    """Finite maps, which together take the rows beyond float32."""

    def map(self, memory: Moments, target: Moments) -> Affine:
        return Affine(torch.full_like(memory.std, 1e25), torch.zeros_like(memory.mean))


class SpoiltGroups(GroupMomentMatching):
    def map_groups(self, memory: Moments, batch: Moments, target: Moments) -> Affine:
        scale = batch.std / memory.std
        return Affine(scale, batch.mean - memory.mean * scale)


class SpoiltEstimate(MomentMatching):
    """Keeps an estimate, which has to be given back too."""

    def estimate(self, batch: Moments, batch_size: int) -> Moments:
        target = super().estimate(batch, batch_size)
        return Moments(target.mean / (batch.std > 0), target.std)


# The adapter, how many steps it adapts well, and what is raised in the next one.
SPOILT: dict[str, tuple[Callable[[], BaseAdapter], int, str]] = {
    "map": (Eq6, 0, r"Eq6.map gave NaN or inf in dimensions \[1\]"),
    "overflow": (Growing, 1, r"Growing.map gave NaN or inf in dimensions \[0, 1, 2, 3\]"),
    "map_groups": (SpoiltGroups, 0, r"SpoiltGroups.map_groups gave NaN or inf in dimensions \[1\]"),
    "estimate": (SpoiltEstimate, 0, r"SpoiltEstimate.map gave NaN or inf in dimensions \[1\]"),
}


def spoilt_batches() -> list[tuple[Tensor, Tensor]]:
    """Batches with a dead unit from the first on."""
    random = torch.Generator().manual_seed(0)
    batches = [torch.randn(12, 4, generator=random) for _ in range(4)]
    for batch in batches:
        batch[:, 1] = 0.0
    return [(batch, torch.arange(12) % 3) for batch in batches]


def memory_with_rows(adapter: BaseAdapter, **options: Any) -> AdaptiveCrossBatchMemory:
    """A memory that holds rows, which the adapter has not adapted yet."""
    memory = AdaptiveCrossBatchMemory(ContrastiveLoss(), 4, 40, **options)
    memory.register_memory_hook(adapter)
    memory.fill_memory(*spoilt_batches()[0])
    return memory


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32], ids=str)
@pytest.mark.parametrize("name", SPOILT)
def test_a_map_that_is_not_finite_is_refused_and_changes_nothing(name: str, dtype: torch.dtype) -> None:
    kind, num_steps, message = SPOILT[name]
    memory = memory_with_rows(kind(), memory_dtype=dtype)
    _, *batches = spoilt_batches()
    for batch in batches[:num_steps]:
        memory(*batch)
    before = exact(memory)
    for _ in range(2):
        with pytest.raises(ValueError, match=message):
            memory(*batches[num_steps])
        assert exact(memory) == before


@pytest.mark.parametrize("name", [name for name in SPOILT if name != "overflow"])
def test_with_nonfinite_ignore_such_dimensions_are_not_adapted(name: str) -> None:
    memory = memory_with_rows(SPOILT[name][0](), nonfinite="ignore")
    first, second, *_ = spoilt_batches()
    memory(*second)
    rows = memory.embedding_memory[:12]
    torch.testing.assert_close(rows[:, 1], first[0][:, 1], rtol=0, atol=1e-6)
    assert rows.isfinite().all()
    assert not torch.allclose(rows, first[0], atol=1e-3)


@pytest.mark.parametrize("nonfinite", ["raise", "skip", "ignore"])
@pytest.mark.parametrize("name", ADAPTERS)
def test_a_row_of_nan_spoils_no_other_row(name: str, nonfinite: str) -> None:
    """As one that was assigned, or is of a checkpoint."""
    memory = memory_with_rows(ADAPTERS[name](), nonfinite=nonfinite)
    memory.embedding_memory[3, 2] = torch.nan
    first, second, *_ = spoilt_batches()
    memory(*second)
    rows = memory.embedding_memory[:12]
    assert rows.isnan().nonzero().tolist() == [[3, 2]]
    assert not torch.allclose(rows[:, 0], first[0][:, 0], atol=1e-3)
