"""The runs of the study."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from typing import Literal

from benchmarks.engine.results import read_runs
from benchmarks.study.budget import Budget
from benchmarks.study.data_sets import DATA_SETS

SEEDS = (0, 1, 2)
SIZES = ((64, 0.5), (64, 0.1), (16, 0.03))  # batch size, rows in memory as a share of the training images
METHODS = (
    *("no-xbm", "xbm", "xbm-star", "xbn", "axbn", "ema", "centre", "unit-norm", "delayed"),
    *("per-class", "super-class"),
)
# What the thesis A Study of Cross Batch Memory proposes (§6.1).
WITH_PROXIES = "+proxies"  # a classification loss beside that of the memory
PROPOSED = (
    *("clusters", "spherical", "recency"),
    *(method + WITH_PROXIES for method in ("xbn", "no-xbm", "per-class")),
)
PROPOSED_SIZES = SIZES[1:]
WITH_GROUP_NORM = ("no-xbm", "xbm", "xbn", "centre")
SLOW = ("no-xbm", "xbm", "xbn", "axbn", "centre", "per-class", "super-class")
# In the order in which a reader asks for them, with rows in memory as a share of the training images.
CONVERGED = (
    *((64, "no-xbm", 0.0), (64, "xbm", 0.5), (64, "xbn", 0.5), (512, "no-xbm", 0.0)),
    *((64, "xbm", 0.1), (64, "xbn", 0.1), (64, "axbn", 0.5)),
    *((16, "no-xbm", 0.0), (16, "xbm", 0.1), (16, "xbn", 0.1), (16, "axbn", 0.1), (16, "centre", 0.1)),
    *((64, "centre", 0.5), (64, "xbm-star", 0.5), (64, "unit-norm", 0.5), (64, "super-class", 0.5)),
    *((64, "xbm", 1.0), (64, "xbn", 1.0), (64, "axbn", 0.1), (64, "axbn", 1.0)),
)
# What else may repair a memory, without adaptation or beside it, and what re-embeds all rows.
REMEDIES = (
    *("xbm+warm-up", "xbm+momentum 0.9", "xbm+momentum 0.99", "xbn+oldest", "xbn+oldest, equal time"),
)
# Memories that are embedded anew, what they are called in tables.
REFRESHED = {"xbm": "always-fresh", "xbn": "always-fresh + matching"}
MORE_SEEDS = (3, 4)  # of what answers the first question
# Epochs without memory, and with it.
EPOCHS = {("fast", 64): (2, 4), ("fast", 16): (1, 3), ("slow", 64): (6, 4)}
EPOCHS |= {("converged", 512): (0, 30), ("converged", 64): (0, 30), ("converged", 16): (0, 12)}
EVALUATE_EVERY = {("converged", 512): 3, ("converged", 64): 3}  # epochs; else after each
EQUAL_TIME = {"xbn+oldest, equal time": 23}  # epochs that take as long as those of XBN alone
MILDER = 0.6  # strength of the distortion, with which training comes to its end
MILESTONES, DECAY = (0.6, 0.85), 0.2  # shares of the epochs after which the learning rate falls
SLOW_RATE = 0.1  # of the learning rate
# Re-embedding all of a large memory at every step would take hours.
REFRESH_EVERY = {0.5: 20, 0.1: 1, 0.03: 1}


EMOJI = Budget("emoji", 60)
EMOJI_SEEDS = (1, 2, 3)
MORE_EMOJI_SEEDS = (4, 5)
EMOJI_METHODS = (
    *("xbm", "xbm+warm-up", "xbm-star", "xbn", "axbn", "centre", "xbm+momentum 0.99", "super-class"),
)
PRETRAINED_METHODS = ("xbm", "xbm+warm-up of an epoch", "xbm-star", "xbn", "xbm+momentum 0.99")
PRETRAINED = (
    *(Budget("pretrained", 16, rate=rate) for rate in (0.3, 0.1, 1.0)),
    Budget("pretrained", 4, rate=0.3),
)
# What was asked afterwards: rows that move as the samples move that come again, and "own rows", which do not.
KINDS = ("own rows", "shift", "diagonal", "low rank")
AFTERWARDS = ("xbn+batch loss", *(f"{memory}+{kind}" for memory in ("xbm", "xbn") for kind in KINDS))
# And a memory that begins as soon as it can, as 1,000 steps are a third of 60 epochs of Emoji.
SOONER = ("xbm+warm-up of an epoch", "xbm-star+warm-up of an epoch")
BUDGET_METHODS = ("xbm+warm-up", "xbm-star", "xbn")
OTHER_EPOCHS = (30, 120, 240)
OTHER_RATES = (0.5, 2.0)  # of batch 512
BUDGETS = {
    str(budget): budget
    for budget in (
        EMOJI,
        *PRETRAINED,
        replace(EMOJI, side=64),
        *(Budget("emoji", epochs) for epochs in OTHER_EPOCHS),
        *(Budget("glyphs", epochs) for epochs in (60, *OTHER_EPOCHS[1:])),  # "converged" is that of 30
        *(Budget("emoji", epochs, rate=rate) for epochs in (60, *OTHER_EPOCHS) for rate in OTHER_RATES),
        *(Budget("glyphs", epochs, rate=rate) for epochs in (30, 60, 120, 240) for rate in OTHER_RATES),
    )
}
_WITHOUT_BUDGET = ("fast", "slow", "converged")
REGIMES = (*_WITHOUT_BUDGET, *BUDGETS)


def budget_of(regime: str) -> Budget | None:
    """Returns the budget that a regime is the name of; None for the regimes of the short and first runs."""
    if regime in BUDGETS:
        return BUDGETS[regime]
    if regime in _WITHOUT_BUDGET:
        return None
    budget = Budget.from_name(regime)
    if budget.data not in DATA_SETS:
        raise ValueError(f"regime is {regime!r}; its data set is one of {', '.join(DATA_SETS)}")
    return budget


@dataclass(frozen=True)
class Case:
    """One run.

    Attributes:
        method: a key of the methods of the demo, alone or followed by + and what is beside it: "proxies", or
            a key of `remedies.REMEDIES`.
        refresh_every: re-embed the whole memory with the current model every so many steps; 0 for never.
        batch_size: images per step.
        memory_ratio: rows in memory as a share of the training images; 0 without a memory.
        norm: normalization within the network, "batch" or "group"; of a pretrained network "batch" trains on
            batches, and "frozen" and "frozen weights" are those of `efficientnet.BatchNorm`; "layer" of a
            transformer, which has no other.
        regime: "fast", from a short warm start at the full learning rate, "slow", from a well trained
            model at a tenth of it, "converged", from random weights for 30 epochs (12 at batch 16), or the
            name of a `Budget`.
        seed: of the initial weights, the batches and the distortion of the training images.
    """

    method: str
    refresh_every: int
    batch_size: int
    memory_ratio: float
    norm: str
    regime: str
    seed: int

    @property
    def name(self) -> str:
        """What the method is called in tables."""
        if not self.refresh_every:
            return self.method
        name, every = REFRESHED.get(self.method, self.method), self.refresh_every
        return name if every == 1 else name.replace("always-fresh", f"fresh every {every} steps")

    @property
    def memory(self) -> str:
        """The method without what is beside it."""
        return self.method.partition("+")[0]

    @property
    def beside(self) -> str:
        """What is beside the method; empty for nothing."""
        return self.method.partition("+")[2]

    @property
    def epochs(self) -> tuple[int, int]:
        """Without memory, and with it."""
        if budget := budget_of(self.regime):
            return 0, budget.epochs
        without, with_memory = EPOCHS[self.regime, self.batch_size]
        return without, EQUAL_TIME.get(self.method, with_memory)

    @property
    def is_from_random_weights(self) -> bool:
        return not self.epochs[0]

    @property
    def setting(self) -> tuple[int, float, str, str]:
        """What is the same for all methods that are compared, but for the seed."""
        return self.batch_size, self.memory_ratio, self.norm, self.regime

    def warm_start(self) -> Case:
        """Returns the run without a memory that this one starts from; the same for many."""
        return replace(self, method="no-xbm", refresh_every=0, memory_ratio=0.0)


def read_cases(path: Path) -> list[Case]:
    """Returns the runs that a CSV file lists, in its order; its columns are the attributes of `Case`."""
    if not path.is_file():
        raise FileNotFoundError(f"there is no list of runs {path}")
    listed = [case for case, _ in read_runs(Case, path)]
    for case in listed:
        budget_of(case.regime)  # which names a regime that there is not
    return list(dict.fromkeys(listed))


def cases() -> Iterator[Case]:
    """Yields all runs, a seed after the other, so that an unfinished study has whole comparisons."""
    for seed in SEEDS:
        for (batch_size, ratio), norm in product(SIZES, ("batch", "group")):
            for method in METHODS if norm == "batch" else WITH_GROUP_NORM:
                if method != "no-xbm":
                    yield Case(method, 0, batch_size, ratio, norm, "fast", seed)
                elif ratio != 0.1:  # it is the same run for every memory size
                    yield Case(method, 0, batch_size, 0.0, norm, "fast", seed)
        for (batch_size, ratio), method in product(PROPOSED_SIZES, PROPOSED):
            case = Case(method, 0, batch_size, ratio, "batch", "fast", seed)
            yield case if case.memory != "no-xbm" else replace(case, memory_ratio=0.0)
        for method in SLOW:
            yield Case(method, 0, 64, 0.5 if method != "no-xbm" else 0.0, "batch", "slow", seed)
        for (batch_size, ratio), method in product(SIZES, ("xbm", "xbn")):
            yield Case(method, REFRESH_EVERY[ratio], batch_size, ratio, "batch", "fast", seed)
    for seed in (*SEEDS, *MORE_SEEDS):
        for batch_size, method, ratio in CONVERGED if seed in SEEDS else CONVERGED[:3]:
            yield Case(method, 0, batch_size, ratio, "batch", "converged", seed)
    for seed in SEEDS:
        for method in REMEDIES:
            yield Case(method, int("oldest" in method), 64, 0.5, "batch", "converged", seed)
        yield Case("xbn", REFRESH_EVERY[0.5], 64, 0.5, "batch", "converged", seed)
    for seeds in (EMOJI_SEEDS, MORE_EMOJI_SEEDS):
        for ratios in ((0.0, 0.5), (0.1, 1.0)):
            for seed in seeds:
                yield from _budget_cases(EMOJI, seed, ratios, EMOJI_METHODS)
    for budget, batch_size, seed in product(PRETRAINED, (16, 64), EMOJI_SEEDS):
        yield Case("no-xbm", 0, batch_size, 0.0, "batch", str(budget), seed)
        for method in PRETRAINED_METHODS:
            yield Case(method, 0, batch_size, 0.5, "batch", str(budget), seed)
    yield from _budget_curve("emoji", EMOJI_SEEDS, (60, *OTHER_EPOCHS))
    for seed in EMOJI_SEEDS:
        yield from _budget_cases(replace(EMOJI, side=64), seed, (0.0, 0.5), EMOJI_METHODS)
    for seed in EMOJI_SEEDS:  # a seed takes six hours of one core
        yield from _budget_curve("glyphs", (seed,), (60, 120, 240, 30))
    for seed, ratio, method in product(EMOJI_SEEDS, (0.5, 1.0), AFTERWARDS):
        yield Case(method, 0, 64, ratio, "batch", str(EMOJI), seed)
    for regime, seeds in ((str(EMOJI), EMOJI_SEEDS), ("converged", SEEDS)):
        for seed, method in product(seeds, SOONER):
            yield Case(method, 0, 64, 0.5, "batch", regime, seed)


def _budget_cases(
    budget: Budget, seed: int, ratios: tuple[float, ...], methods: tuple[str, ...]
) -> Iterator[Case]:
    """Yields a seed of the methods with memories of these sizes; 0 for none, at batch 64 and 512."""
    for ratio in ratios:
        runs = ((method, 64) for method in methods) if ratio else (("no-xbm", 64), ("no-xbm", 512))
        for method, batch_size in runs:
            yield Case(method, 0, batch_size, ratio, "batch", str(budget), seed)


def _budget_curve(
    data: Literal["glyphs", "emoji"], seeds: tuple[int, ...], all_epochs: tuple[int, ...]
) -> Iterator[Case]:
    """Memories of 50 % and none with every number of epochs; batch 512 at three learning rates."""
    for epochs, seed in product(all_epochs, seeds):
        if (data, epochs) not in (("emoji", 60), ("glyphs", 30)):  # which have more methods, and are made
            yield from _budget_cases(Budget(data, epochs), seed, (0.0, 0.5), BUDGET_METHODS)
        for rate in OTHER_RATES:
            yield Case("no-xbm", 0, 512, 0.0, "batch", str(Budget(data, epochs, rate=rate)), seed)
