"""Which of PML's losses and miners work with a memory, on one process and on many, and which need no call."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from pytorch_metric_learning import losses, miners, reducers
from torch import Tensor, nn

from ._distances import DISTANCES
from ._forms import FORMS, Form
from ._miners import MINERS
from ._terms import REDUCERS

SHARDED_LOSSES = tuple(kind for kind, form in FORMS.items() if form.is_reduced)

_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")


def check_supported(loss: nn.Module) -> None:
    """Raises a ValueError for a loss that cannot be computed between a batch and a memory of another size."""
    name = type(loss).__name__
    refusal = f"{name} cannot be used with a cross-batch memory"
    form = next((FORMS[kind] for kind in type(loss).__mro__ if kind in FORMS), None)
    if isinstance(loss, losses.MultipleLosses):
        raise ValueError(f"{refusal}: build a memory for each of its losses, and add what they return")
    if form is None:
        supported = ", ".join(losses.CrossBatchMemory.supported_losses())
        raise ValueError(f"{refusal}: pass one of {supported}, or a subclass")
    if getattr(loss, "swap", False):
        raise ValueError(f"{name}(swap=True) compares rows of a memory with each other: pass swap=False")
    check_divisors(loss)
    per_anchor = any(isinstance(module, reducers.PerAnchorReducer) for module in loss.modules())
    if per_anchor and not form.is_per_anchor:
        raise ValueError(
            f"{name} with PerAnchorReducer assumes as many references as anchors, which a memory does "
            "not have: pass another reducer, such as MeanReducer or AvgNonZeroReducer"
        )


def check_divisors(loss: Any) -> None:
    """Raises a ValueError for a loss of PML's whose reducer divides by a number that the loss does not give.

    PML's error is a KeyError at the first call. Losses of a user's own may give the number.
    """
    form = FORMS.get(type(loss))
    if form is None or form.has_divisor:
        return
    for name in form.parts:
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


class Recipe(NamedTuple):
    """How a loss is computed without calling it."""

    form: Form
    reducers: dict[str, Any]  # of its parts, by name
    learned: list[Tensor]  # what gets a gradient besides the anchors
    is_by_anchor: bool


def recipe_of(loss: Any) -> Recipe | None:
    """Returns the recipe of a loss of PML's, unchanged, if nobody could tell that it is not called."""
    form = FORMS.get(type(loss))
    if form is None or type(loss.distance) not in DISTANCES:
        return None
    is_pair_loss = isinstance(loss, losses.GenericPairLoss)
    has_own_method = is_pair_loss and loss.loss_method not in (loss.mat_based_loss, loss.pair_based_loss)
    if loss.embedding_regularizer or has_own_method or not is_plain(loss):
        return None
    by_part = {}
    for name in form.parts:
        by_part[name] = reducer = _reducer_of_part(loss, name)
        if type(reducer) not in REDUCERS:
            return None
        if type(reducer) is reducers.DivisorReducer:
            check_divisors(loss)  # it may have been set after the loss was checked
    learned = {}
    for part in loss.modules():
        for x in (*vars(part).values(), *part._parameters.values()):
            if isinstance(x, Tensor) and x.requires_grad:
                if x._backward_hooks or not x.is_leaf:  # which would run, or be gone through, twice
                    return None
                learned[id(x)] = x
    is_by_anchor = form.is_by_anchor and not getattr(loss, "learn_beta", False)
    return Recipe(form, by_part, list(learned.values()), is_by_anchor)


def is_function_of_pairs(miner: Any) -> bool:
    """Returns whether the miner is one of the five, unchanged, and nobody would notice a call."""
    allow_stats = type(miner) is not miners.TripletMarginMiner  # of which a function keeps none
    return type(miner) in MINERS and is_plain(miner, allow_stats=allow_stats)


def draws_by_distance(miner: Any) -> bool:
    """Returns whether the miner is PML's DistanceWeightedMiner, unchanged, and nobody would notice a call.

    It is none of the five: ranks cannot draw each for its own anchors.
    """
    return type(miner) is miners.DistanceWeightedMiner and is_plain(miner, allow_stats=True)


def recipe_to_share(loss: Any, miner: Any) -> Recipe | None:
    """Returns the recipe if every rank can compute the terms of its own anchors, without the others'."""
    recipe = recipe_of(loss)
    can_share = (miner is None or is_function_of_pairs(miner)) and not loss._forward_hooks  # which see all
    return recipe if can_share and recipe is not None and recipe.is_by_anchor else None


def can_be_sharded(loss: Any, miner: Any) -> bool:
    """Returns whether the rows may be spread over ranks, all of which have all anchors."""
    is_of_pairs = type(miner) in MINERS and type(miner) is not miners.TripletMarginMiner
    can_mine = miner is None or (is_of_pairs and is_plain(miner))
    is_reduced = type(loss) in SHARDED_LOSSES and recipe_of(loss) is not None
    return can_mine and is_reduced and not loss._forward_hooks


def is_plain(module: nn.Module, *, allow_stats: bool = False) -> bool:
    """Returns whether no method was replaced, no hook may change a result, and no statistics are kept."""
    for part in module.modules():
        attributes = vars(part)
        for name in _HOOKS:
            for hook in attributes[name].values():
                if not hasattr(hook, "only_looks"):
                    return False
        for name in attributes:
            if hasattr(type(part), name):
                return False
        if attributes.get("collect_stats") and not allow_stats:
            return False
    return True


def only_looks(hook: Callable[..., None]) -> Callable[..., None]:
    """Marks a hook of a loss that changes nothing: the loss is computed as without it, and then once more."""
    hook.only_looks = True  # type: ignore[attr-defined]
    return hook
