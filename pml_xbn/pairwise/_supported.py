"""Which of PML's losses and miners work with a memory, on one process and on many, and which are fused.

A fused one is never called. So it has to be PML's, as PML wrote it, and nobody may watch its calls by a hook.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

from pytorch_metric_learning import losses, miners, reducers
from torch import Tensor, nn

from .._tracing import is_compiling
from ._distances import DISTANCES
from ._fused_losses import FUSED_LOSSES, REDUCERS, Fused
from ._miners import FUSED_MINERS, SHARDED_MINERS, FusedMiner


def check_supported(loss: nn.Module, more: Iterable[str] = ()) -> None:
    """Raises a ValueError for a loss that cannot be computed between a batch and a memory of another size.

    Args:
        loss: it.
        more: names of losses that a subclass of a memory lets pass; they run by their own code.
    """
    name = type(loss).__name__
    refusal = f"{name} cannot be used with a cross-batch memory"
    fused = next((FUSED_LOSSES[kind] for kind in type(loss).__mro__ if kind in FUSED_LOSSES), None)
    if isinstance(loss, losses.MultipleLosses):
        raise ValueError(f"{refusal}: build a memory for each of its losses, and add what they return")
    if fused is None:
        if name in more:
            return
        supported = ", ".join([*losses.CrossBatchMemory.supported_losses(), *more])
        raise ValueError(f"{refusal}: pass one of {supported}, or a subclass")
    if getattr(loss, "swap", False):
        raise ValueError(f"{name}(swap=True) compares rows of a memory with each other: pass swap=False")
    check_divisors(loss)
    per_anchor = any(isinstance(module, reducers.PerAnchorReducer) for module in loss.modules())
    if per_anchor and not fused.has_term_per_anchor:
        raise ValueError(
            f"{name} with PerAnchorReducer assumes as many references as anchors, which a memory does "
            "not have: pass another reducer, such as MeanReducer or AvgNonZeroReducer"
        )


def check_divisors(loss: Any) -> None:
    """Raises a ValueError for a loss of PML's whose reducer divides by a number that the loss does not give.

    PML's error is a KeyError at the first call. Losses of a user's own may give the number.
    """
    kind = unchanged_class(type(loss), FUSED_LOSSES)
    fused = None if kind is None else FUSED_LOSSES[kind]
    if fused is None or fused.has_divisor:
        return
    for name in fused.parts:
        if isinstance(_reducer_of_part(loss, name), reducers.DivisorReducer):
            raise ValueError(
                f"{type(loss).__name__} with DivisorReducer, which divides by a number that this loss does "
                "not give: pass another reducer, such as MeanReducer, or MarginLoss, which gives one"
            )


def _reducer_of_part(loss: Any, name: str) -> Any:
    """Returns the reducer of a part of a loss."""
    reducer = loss.reducer
    if type(reducer) is reducers.MultipleReducers:
        return reducer.reducers._modules.get(name, reducer.default_reducer)
    return reducer


class FusedLoss(NamedTuple):
    """A loss that is computed from one matrix, without calling it."""

    loss: Any
    fused: Fused
    reducers: dict[str, Any]  # of its parts, by name
    learned: list[Tensor]  # what gets a gradient besides the anchors
    anchors_are_independent: bool  # an anchor's terms depend on no other anchor

    @property
    def has_terms(self) -> bool:
        """Whether its terms are computed from the matrix; those of ``AngularLoss`` are by PML's code."""
        return self.fused.terms is not None


def fused_loss_of(loss: Any) -> FusedLoss | None:
    """Returns how to compute a loss without a call; None if skipping the call has a visible effect.

    Raises:
        ValueError: its reducer divides by a number that the loss does not give.
    """
    kind = unchanged_class(type(loss), FUSED_LOSSES)
    if kind is None or type(loss.distance) not in DISTANCES:
        return None
    if loss.embedding_regularizer or _has_own_method(loss):
        return None
    parts = [*loss.modules()]
    if not are_unchanged(parts):
        return None
    learned = {id(x): x for part in parts for x in _learned_by(part)}
    fused, by_part = FUSED_LOSSES[kind], {}
    # The settings of a loss alone are learned here: PML's code computes what its distance or reducer learn,
    # and has no gradient for another module that a subclass holds.
    if learned and (fused.terms is None or any(_learns(child) for child in loss.children())):
        return None
    for name in fused.parts:
        by_part[name] = reducer = _reducer_of_part(loss, name)
        if type(reducer) not in REDUCERS:
            return None
        if type(reducer) is reducers.DivisorReducer:
            check_divisors(loss)  # it may have been set after the loss was checked
    # These would run, or be gone through, twice. What stands for a parameter in a graph is no leaf.
    if any(x._backward_hooks or not (x.is_leaf or is_compiling()) for x in learned.values()):
        return None
    anchors_are_independent = fused.anchors_are_independent and not getattr(loss, "learn_beta", False)
    return FusedLoss(loss, fused, by_part, list(learned.values()), anchors_are_independent)


def _learns(module: nn.Module) -> bool:
    """Returns whether a module or one of its parts holds something that gets a gradient."""
    return any(_learned_by(part) for part in module.modules())


def _learned_by(part: nn.Module) -> list[Tensor]:
    """Returns what a module, without its parts, holds that gets a gradient: parameters and plain tensors."""
    attributes = vars(part)
    found = [*part._parameters.values(), *(attributes[name] for name in _own_names(attributes))]
    return [x for x in found if isinstance(x, Tensor) and x.requires_grad]


def _has_own_method(loss: Any) -> bool:
    """Returns whether a loss of pairs calls another method than PML's two."""
    if not isinstance(loss, losses.GenericPairLoss):
        return False
    # torch.compile finds no two bound methods equal.
    methods, method = (type(loss).mat_based_loss, type(loss).pair_based_loss), loss.loss_method
    return getattr(method, "__func__", None) not in methods or method.__self__ is not loss


def fused_miner_of(miner: Any) -> FusedMiner | None:
    """Returns the function of one of the five miners; None if skipping its call has a visible effect."""
    kind = unchanged_class(type(miner), FUSED_MINERS)
    has_stats_of_pml = isinstance(miner, miners.TripletMarginMiner)  # which its call alone records
    if kind is None or not is_unchanged(miner, allow_stats=not has_stats_of_pml):
        return None
    return None if _learns(miner.distance) else FUSED_MINERS[kind]


def is_fused_miner(miner: Any) -> bool:
    """Returns whether the miner is one of the five, unchanged, or there is none: nobody misses a call."""
    return miner is None or fused_miner_of(miner) is not None


def draws_by_distance(miner: Any) -> bool:
    """Returns whether the miner is PML's DistanceWeightedMiner, unchanged, and skipping its call is not seen.

    It is none of the five: ranks cannot draw each for its own anchors.
    """
    is_of_pml = unchanged_class(type(miner), (miners.DistanceWeightedMiner,)) is not None
    return is_of_pml and is_unchanged(miner, allow_stats=True)


def can_share(loss: Any, miner: Any) -> bool:
    """Returns whether every rank can compute the terms of its own anchors, without the others'."""
    fused = fused_loss_of(loss)
    return is_fused_miner(miner) and fused is not None and fused.anchors_are_independent


def can_be_sharded(loss: Any, miner: Any) -> bool:
    """Returns whether the rows may be spread over ranks, all of which have all anchors."""
    fused = fused_loss_of(loss)
    can_mine = miner is None or (unchanged_class(type(miner), SHARDED_MINERS) and is_unchanged(miner))
    return bool(can_mine) and fused is not None and fused.fused.can_be_sharded


_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
OF_EVERY_MODULE = frozenset(vars(nn.Module()))
# What Python writes into every class.
_OF_EVERY_CLASS = {"__module__", "__qualname__", "__doc__", "__dict__", "__weakref__"}
_OF_EVERY_CLASS |= {"__annotations__", "__annotate__", "__annotate_func__", "__annotations_cache__"}
_OF_EVERY_CLASS |= {"__parameters__", "__orig_bases__", "__firstlineno__", "__static_attributes__"}


def unchanged_class(own: type, kinds: Iterable[type]) -> type | None:
    """Returns which of these classes a class is, or inherits from without a change; None if it is none.

    A subclass may have methods and attributes of its own, but none that its base class has too, except an
    ``__init__``: it sets attributes of the object, which are looked at as everybody's are. A property may
    stand for such an attribute.
    """
    if own in kinds:
        return own
    for kind in own.__mro__:
        if kind in kinds:
            subclasses = [other for other in own.__mro__ if other not in kind.__mro__]
            held = {name: value for other in subclasses for name, value in vars(other).items()}
            names = held.keys() - {*_OF_EVERY_CLASS, "__init__"}
            is_changed = any(hasattr(kind, x) or hasattr(type(held[x]), "__set__") for x in names)
            return None if is_changed else kind
    return None


def is_unchanged(module: nn.Module, *, allow_stats: bool = False) -> bool:
    """Returns whether a module and its parts have no hook, no method of their own, and keep no statistics."""
    return are_unchanged(module.modules(), allow_stats=allow_stats)


def are_unchanged(parts: Iterable[nn.Module], *, allow_stats: bool = False) -> bool:
    """Does what ``is_unchanged`` does for modules of which each stands for itself, without its parts."""
    for part in parts:
        attributes, kind = vars(part), type(part)
        for name in _HOOKS:
            if attributes[name]:
                return False
        for name in _own_names(attributes):
            if hasattr(kind, name):
                return False
        if not allow_stats and attributes.get("collect_stats"):
            return False
    return True


def _own_names(attributes: dict[str, Any]) -> set[str]:
    """Returns the names of attributes that not every module has."""
    return attributes.keys() - OF_EVERY_MODULE
