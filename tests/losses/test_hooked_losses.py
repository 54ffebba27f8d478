"""Losses and miners are used as they are, with their hooks; nothing of PML's or of the user's is replaced."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from pytorch_metric_learning import distances, losses, miners, reducers
from pytorch_metric_learning.utils import common_functions as c_f
from pytorch_metric_learning.utils import loss_and_miner_utils as lmu
from torch import Tensor, nn

from pml_xbn import XBNWrapper
from pml_xbn.losses import AdaptiveCrossBatchMemory
from pml_xbn.pairwise import _pairs
from pml_xbn.pairwise._ranges import Ranges

D, M = 4, 20
LOSSES = losses.CrossBatchMemory.supported_losses()
MINERS: dict[str, Callable[..., Any]] = {
    "none": lambda **_: None,
    "angular": miners.AngularMiner,
    "easy": lambda **options: miners.BatchEasyHardMiner("easy", "semihard", **options),
    "hard": miners.BatchHardMiner,
    "distance": miners.DistanceWeightedMiner,
    "hdc": miners.HDCMiner,
    "histogram": miners.UniformHistogramMiner,
    "multi-similarity": miners.MultiSimilarityMiner,
    "pair margin": lambda **options: miners.PairMarginMiner(0.3, 0.9, **options),
    "triplet margin": miners.TripletMarginMiner,
}


def batch(step: int, size: int = 8) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(step)
    return torch.randn(size, D, generator=generator, requires_grad=True), torch.arange(size) % 4


def train(loss_fn: nn.Module, steps: int = 4) -> list[Tensor]:
    out = []
    for step in range(steps):
        torch.manual_seed(step)
        embeddings, labels = batch(step)
        value = loss_fn(embeddings, labels)
        value.backward()
        out += [value.detach(), embeddings.grad]
    with torch.no_grad():
        out.append(loss_fn(*batch(steps)))
    return out


def assert_close(first: list[Tensor], second: list[Tensor]) -> None:
    for one, other in zip(first, second, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)


# -- nothing is replaced -----------------------------------------------------------------------------------


def contents(*modules: Any) -> list[dict[str, Any]]:
    """What all objects in play hold, and their classes and PML's modules do."""
    parts = [part for module in modules if module is not None for part in module.modules()]
    classes = {cls for part in parts for cls in type(part).__mro__}
    pmls = [cls for cls in classes if cls.__module__.startswith("pytorch_metric_learning")]
    return [dict(vars(x)) for x in (*parts, *sorted(pmls, key=lambda cls: cls.__name__), lmu, c_f)]


@pytest.mark.parametrize(
    ("loss", "miner"), [(name, list(MINERS)[k % len(MINERS)]) for k, name in enumerate(LOSSES)]
)
def test_nothing_is_assigned_to_a_loss_or_miner_or_pml(loss: str, miner: str) -> None:
    inner, chooser = getattr(losses, loss)(), MINERS[miner]()
    loss_fn = XBNWrapper(inner, D, M, chooser)
    before = contents(inner, chooser)
    train(loss_fn)
    after = contents(inner, chooser)
    if chooser is not None:
        number = len(list(inner.modules()))
        # What miners note, HDCMiner its choice.
        for name in ("num_pos_pairs", "num_neg_pairs", "num_triplets", "a1", "p", "a2", "n"):
            before[number].pop(name, None)
            after[number].pop(name, None)
    for one, other in zip(before, after, strict=True):
        other.pop("divisor", None)  # that of DivisorReducer
        assert one.keys() == other.keys()
        assert all(one[name] is other[name] for name in one)


# -- the user's hooks --------------------------------------------------------------------------------------


@pytest.mark.parametrize("miner", ["none", "pair margin", "hard"])
@pytest.mark.parametrize("loss", LOSSES)
def test_a_hook_sees_rows_and_indices_and_changes_nothing(loss: str, miner: str) -> None:
    seen: list[tuple[Any, ...]] = []

    def steps(hooks: str) -> list[Tensor]:
        inner = getattr(losses, loss)()
        if hooks:
            inner.register_forward_pre_hook(
                lambda module, args, kwargs: seen.append((module, *args)), with_kwargs=True
            )
            inner.register_forward_hook(lambda module, args, out: setattr(module, "last_loss", out))
            inner.distance.register_forward_hook(lambda _, __, mat: seen.append((mat,)))
        loss_fn = XBNWrapper(inner, D, M, MINERS[miner]())
        out = train(loss_fn)
        assert hasattr(inner, "last_loss") == bool(hooks)
        return out

    plain, hooked = steps(""), steps("hooks")
    if loss != "LiftedStructureLoss":  # of which PML's own code has the value of other pairs (B15)
        assert_close(plain, hooked)
    calls, mats = ([args for args in seen if (len(args) == 1) is is_mat] for is_mat in (False, True))
    assert len(calls) == 5
    for _, _, labels, indices, rows, row_labels in calls:
        assert rows.shape == (len(row_labels), D)
        assert rows.any(dim=1).all()
        assert all(numbers.dtype == torch.int64 for numbers in indices)
        a1, p, a2, n = lmu.convert_to_pairs(indices, labels)
        assert (labels[a1] == row_labels[p]).all()
        assert (labels[a2] != row_labels[n]).all()
    if loss not in ("AngularLoss", "NCALoss"):  # which measure more, or otherwise
        assert mats[-1][0].shape == (8, M)


def test_a_hook_that_chooses_other_pairs_is_heeded() -> None:
    def first_pairs(_: nn.Module, args: tuple[Any, ...]) -> tuple[Any, ...]:
        embeddings, labels, indices, *refs = args
        return embeddings, labels, tuple(numbers[:3] for numbers in indices), *refs

    for make in (losses.SupConLoss, losses.ContrastiveLoss):
        hooked, plain = make(), make()
        hooked.register_forward_pre_hook(first_pairs)
        stored = XBNWrapper(hooked, D, M)
        stored.fill_memory(*batch(0))
        stored.eval()
        anchors, labels = batch(1)
        rows, row_labels = stored.embedding_memory[:8], stored.label_memory[:8]
        pairs = tuple(numbers[:3] for numbers in lmu.get_all_pairs_indices(labels, row_labels))
        expected = plain(anchors, labels, pairs, rows, row_labels)
        torch.testing.assert_close(stored(anchors, labels), expected, rtol=1e-4, atol=1e-5)


def twice(_: nn.Module, args: tuple[Any, ...]) -> tuple[Any, ...]:
    return 2 * args[0], *args[1:]


def shifted(_: nn.Module, args: tuple[Any, ...]) -> tuple[Any, ...]:
    return args[0] + 1, *args[1:]


def other_rows(_: nn.Module, args: tuple[Any, ...]) -> tuple[Any, ...]:
    return *args[:3], 2 * args[3], args[4]


def doubled(_: nn.Module, gradients: tuple[Tensor | None, ...], __: Any) -> tuple[Tensor | None, ...]:
    return tuple(x if x is None or not x.is_floating_point() else 2 * x for x in gradients)


HOOKS: dict[str, Callable[[nn.Module], Any]] = {
    "embeddings": lambda loss: loss.register_forward_pre_hook(twice),
    "rows": lambda loss: loss.register_forward_pre_hook(other_rows),
    "what is measured": lambda loss: loss.distance.register_forward_pre_hook(shifted),
    "gradients": lambda loss: loss.register_full_backward_hook(doubled),
}


@pytest.mark.parametrize("name", HOOKS)
@pytest.mark.parametrize("loss", ["MultiSimilarityLoss", "TripletMarginLoss", "ContrastiveLoss"])
def test_a_hook_that_changes_something_is_heeded(loss: str, name: str) -> None:
    values = []
    for cls in (losses.CrossBatchMemory, AdaptiveCrossBatchMemory):
        inner = getattr(losses, loss)(distance=distances.LpDistance(normalize_embeddings=False))
        plain, hooked = cls(inner, D, M), cls(copy.deepcopy(inner), D, M)
        HOOKS[name](hooked.loss)
        values.append([train(hooked)[:-1], train(plain)[:-1]])
    (pml, pml_plain), (ours, ours_plain) = values
    assert_close(ours + ours_plain, pml + pml_plain)
    assert not all(torch.equal(one, other) for one, other in zip(ours, ours_plain, strict=True))


@pytest.mark.parametrize("miner", ["hard", "multi-similarity", "pair margin", "triplet margin"])
def test_hooks_of_a_miner_are_called_and_change_nothing(miner: str) -> None:
    seen = []

    def steps(is_hooked: bool) -> list[Tensor]:
        chooser = MINERS[miner]()
        if is_hooked:
            chooser.register_forward_hook(lambda _, given, chosen: seen.append((given, chosen)))
        return train(XBNWrapper(losses.SupConLoss(), D, M, chooser))

    assert_close(steps(False), steps(True))
    assert len(seen) == 5
    for (_, _, rows, _), chosen in seen:
        assert rows.any(dim=1).all()
        assert all(numbers.dtype == torch.int64 for numbers in chosen)


# -- what miners note --------------------------------------------------------------------------------------


@pytest.mark.parametrize("loss", ["SupConLoss", "ContrastiveLoss", "TripletMarginLoss"])
@pytest.mark.parametrize("miner", [name for name in MINERS if name != "none"])
def test_a_miner_counts_what_it_chose(loss: str, miner: str) -> None:
    inner, chooser = getattr(losses, loss)(), MINERS[miner]()
    chosen = []
    inner.register_forward_pre_hook(lambda _, args: chosen.append(args[2]))
    loss_fn = XBNWrapper(inner, D, M, chooser)
    for step in range(3):
        loss_fn(*batch(step))
        if len(chosen[-1]) == 3:
            assert chooser.num_triplets == len(chosen[-1][0])
        else:
            assert chooser.num_pos_pairs == len(chosen[-1][0])
            assert chooser.num_neg_pairs == len(chosen[-1][2])


STATS = {
    "easy": "hardest_pos_pair",
    "hard": "hardest_neg_pair",
    "pair margin": "pos_pair_dist",
    "angular": "average_angle",
}


@pytest.mark.parametrize("miner", STATS)
def test_a_miner_shows_its_statistics(miner: str) -> None:
    """Of the pairs without those of an anchor and its own row."""
    chooser, plain = MINERS[miner](collect_stats=True), MINERS[miner]()
    values = []
    for miner_of in (chooser, plain):
        values.append(train(XBNWrapper(losses.TripletMarginLoss(), D, M, miner_of)))
    torch.testing.assert_close(*values)  # one lists its triplets
    assert getattr(chooser, STATS[miner]) > 0
    if miner == "hard":
        assert chooser.easiest_pos_pair > 0  # and not 0, between an anchor and its copy


def test_a_loss_shows_its_statistics() -> None:
    inner = losses.TupletMarginLoss(collect_stats=True)
    train(XBNWrapper(inner, D, M))
    assert inner.avg_pos_angle > 0
    assert inner.avg_neg_angle > 0


# -- the user's own losses and miners ----------------------------------------------------------------------


class OwnHardMiner(miners.BatchEasyHardMiner):
    """A subclass that notes what it sees."""

    def mine(self, embeddings: Tensor, labels: Tensor, ref_emb: Tensor, ref_labels: Tensor) -> Any:
        self.num_rows = len(ref_emb)
        self.chosen = super().mine(embeddings, labels, ref_emb, ref_labels)
        return self.chosen


class OwnMiner(miners.BaseMiner):
    """Lists its pairs by PML's function, own pairs included."""

    def mine(self, embeddings: Tensor, labels: Tensor, ref_emb: Tensor, ref_labels: Tensor) -> Any:
        self.seen = ref_emb, ref_labels
        return lmu.get_all_pairs_indices(labels, ref_labels)


def test_a_subclass_of_pmls_miner_keeps_what_it_notes() -> None:
    chooser, pmls = OwnHardMiner("hard", "hard"), miners.BatchEasyHardMiner("hard", "hard")
    steps = [train(XBNWrapper(losses.TripletMarginLoss(), D, M, miner)) for miner in (chooser, pmls)]
    assert_close(*steps)
    assert steps[0][-1] > 0
    assert chooser.num_rows == M
    assert len(chooser.chosen[0]) == chooser.num_pos_pairs == 8


OWN_MINERS = {
    "module": OwnMiner(),
    "function": lambda _, labels, __, ref_labels: lmu.get_all_pairs_indices(labels, ref_labels),
}


@pytest.mark.parametrize("name", OWN_MINERS)
def test_self_pairs_of_a_miner_of_the_users_own_are_dropped(name: str) -> None:
    values = [train(XBNWrapper(losses.ContrastiveLoss(), D, M, miner)) for miner in (OWN_MINERS[name], None)]
    assert_close(*values)


def test_a_loss_of_the_users_own_gets_rows_and_indices() -> None:
    class Own(losses.SupConLoss):
        def compute_loss(self, *args: Any) -> Any:
            self.given = args
            return super().compute_loss(*args)

    own = Own()
    values = [train(XBNWrapper(loss, D, M)) for loss in (own, losses.SupConLoss())]
    assert_close(*values)
    _, labels, indices, rows, row_labels = own.given
    assert rows.shape == (M, D)
    assert len(indices) == 4
    assert (labels[indices[0]] == row_labels[indices[1]]).all()


@pytest.mark.parametrize("loss", ["ContrastiveLoss", "MarginLoss", "TripletMarginLoss"])
def test_a_distance_with_a_margin_of_its_own_is_heeded(loss: str) -> None:
    class Doubled(distances.LpDistance):
        def margin(self, x: Tensor, y: Tensor) -> Tensor:
            return 2 * super().margin(x, y)

    pml, ours = (
        train(cls(getattr(losses, loss)(distance=Doubled()), D, M))[:-1]
        for cls in (losses.CrossBatchMemory, AdaptiveCrossBatchMemory)
    )
    assert_close(ours, pml)


@pytest.mark.parametrize("name", ["compute_loss", "_compute_loss", "loss_method"])
def test_a_method_that_the_user_has_replaced_is_called(name: str) -> None:
    inner, calls = losses.SupConLoss(), []
    method = getattr(inner, name)
    setattr(inner, name, lambda *args: calls.append(1) or method(*args))
    train(XBNWrapper(inner, D, M))
    assert len(calls) == 5


def test_one_distance_may_serve_the_loss_and_the_miner() -> None:
    shared = distances.LpDistance()
    pairs = [(shared, shared), (distances.LpDistance(), distances.LpDistance())]
    values = [
        train(
            XBNWrapper(
                losses.GeneralizedLiftedStructureLoss(distance=of_loss, reducer=reducers.MeanReducer()),
                D,
                M,
                miners.PairMarginMiner(0.3, 0.9, distance=of_miner),
            )
        )
        for of_loss, of_miner in pairs
    ]
    assert_close(*values)


def test_pairs_of_both_kinds_are_refused_as_by_pml() -> None:
    both = (torch.tensor([0, 1]), torch.tensor([1, 0])) * 2
    given = XBNWrapper(losses.SupConLoss(), D, M)
    mined = XBNWrapper(losses.SupConLoss(), D, M, lambda *_: both)
    if hasattr(losses.SupConLoss, "_assert_either_pos_or_neg"):
        with pytest.raises(AssertionError, match="either be positive or negative"):
            given(*batch(0), both)
        with pytest.raises(AssertionError, match="either be positive or negative"):
            mined(*batch(0))


# -- what users change -------------------------------------------------------------------------------------


class Weighted(reducers.MultipleReducers):
    def sub_loss_reduction(self, sub_losses: list[Tensor], *_: Any) -> Tensor:
        return 10 * sub_losses[0] + sub_losses[1]


def weighted() -> nn.Module:
    parts = {name: reducers.MeanReducer() for name in ("pos_loss", "neg_loss")}
    return losses.ContrastiveLoss(reducer=Weighted(parts))


def learned_margin() -> nn.Module:
    loss = losses.TupletMarginLoss()
    loss.margin = nn.Parameter(torch.tensor(0.1))
    return loss


def hooked_beta() -> nn.Module:
    loss = losses.MarginLoss(learn_beta=True)
    loss.beta.register_hook(lambda gradient: 10 * gradient)
    return loss


def beta_of_classes() -> nn.Module:
    """Whose regularization PML divides by the number of triplets that violate the margin: of none it is 0."""
    return losses.MarginLoss(margin=-10.0, nu=0.5, beta=2.0, learn_beta=True, num_classes=4)


@pytest.mark.parametrize("make", [weighted, learned_margin, hooked_beta, beta_of_classes])
def test_value_and_gradients_stay_pmls(make: Callable[[], nn.Module]) -> None:
    results = []
    for cls in (losses.CrossBatchMemory, AdaptiveCrossBatchMemory):
        loss_fn = cls(make(), D, M)
        results.append(train(loss_fn)[:-1])  # in eval mode PML's class stores rows
        results[-1] += [torch.zeros_like(x) if x.grad is None else x.grad for x in loss_fn.parameters()]
    assert_close(*results)


@pytest.mark.parametrize("function", [torch.exp, lambda x: x + 0.1])
def test_a_setting_that_follows_from_a_parameter_of_the_loss_is_learned(function: Callable) -> None:
    gradients = []
    for cls in (losses.CrossBatchMemory, AdaptiveCrossBatchMemory):
        inner = losses.SupConLoss()
        inner.logarithm, loss_fn = nn.Parameter(torch.tensor(0.3)), cls(inner, D, M)
        for step in range(3):
            inner.temperature = function(inner.logarithm)
            loss_fn(*batch(step)).backward()
        gradients.append(inner.logarithm.grad)
    torch.testing.assert_close(*gradients)


def test_triplets_are_listed_of_few_anchors_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(_pairs._PAIRS_AT_ONCE, "cpu", 300)
    sizes, lists = [], Ranges.lists

    def counted(ranges: Ranges) -> tuple[Tensor, ...]:
        sizes.append(len(lists(ranges)[0]))
        return lists(ranges)

    monkeypatch.setattr(Ranges, "lists", counted)
    results = []
    for cls in (losses.CrossBatchMemory, AdaptiveCrossBatchMemory):
        loss_fn = cls(losses.TripletMarginLoss(smooth_loss=True), D, M)
        results.append(train(loss_fn)[:-1])
    assert_close(*results)
    assert 1 < max(sizes) <= 300


@pytest.mark.parametrize("miner", ["easy", "hard", "multi-similarity", "pair margin"])
def test_the_distance_of_a_miner_shows_its_statistics(miner: str) -> None:
    norms = []
    for cls in (losses.CrossBatchMemory, AdaptiveCrossBatchMemory):
        chooser = MINERS[miner](collect_stats=True, distance=distances.LpDistance(collect_stats=True))
        train(cls(losses.ContrastiveLoss(), D, M, chooser))
        norms.append(
            torch.tensor([chooser.distance.final_avg_query_norm, chooser.distance.final_avg_ref_norm])
        )
    assert norms[0].all()
    torch.testing.assert_close(*norms)
