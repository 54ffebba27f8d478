"""The runs on Han, in the order in which they are made; ``declared_han.md`` says why."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from benchmarks.engine.results import read_csv, run_of

EPOCH = 874  # steps of 64 that show as many images as there are to train on
STEPS = 6 * EPOCH


@dataclass(frozen=True)
class Case:
    """One run, and a row's first columns.

    Attributes:
        method: a key of `METHODS` of memories.py.
        batch_size: images of a step, two of each class.
        rate: the largest of AdamW's, in one cycle.
        begins: at which step a memory does: at "first", or at the first "after an epoch", filled.
        batch_loss: weight of the batch's own loss beside the memory's, or "ramp".
        memory: share of the training images.
        loss: "supcon" or "contrastive".
        classes: to train on; 0 for all.
        steps: of the run.
        weights: "random", or "glyphs" for those of a network that has seen other characters.
        seed: of weights, batches and shifts.
    """

    method: str
    batch_size: int = 64
    rate: float = 8e-3
    begins: str = "first"
    batch_loss: str = "0"
    memory: float = 1.0
    loss: str = "supcon"
    classes: int = 0
    steps: int = STEPS
    weights: str = "random"
    seed: int = 0

    @property
    def setting(self) -> Case:
        """What is compared: everything but rate and seed."""
        return replace(self, rate=0.0, seed=0)


def read_cases(rows: Sequence[dict[str, str]]) -> list[Case]:
    """Returns the runs of rows of a CSV file."""
    return [run_of(Case, row) for row in rows]


def memory(method: str, **settings: Any) -> Case:
    """Returns a case whose memory is warmed up and filled."""
    return Case(method, **({"begins": "after an epoch"} | settings))


def none(batch_size: int, epochs: float = 6) -> Case:
    """Returns the case of no memory, which shows as many images as so many epochs at 64."""
    return Case("none", batch_size, steps=round(EPOCH * epochs * 64 / batch_size))


EPOCHS_IN_EQUAL_TIME = 14  # of no memory, in the time of 6 with one
FRONT = (
    none(64),
    none(256),
    memory("xbm", batch_loss="1"),
    memory("xbn", batch_loss="1"),
    memory("xbm"),
    memory("xbn"),
    Case("xbn"),
    Case("xbm"),
)
WITHOUT_FIRST_STEP = tuple(case for case in FRONT if case.method == "none" or case.begins != "first")
EQUAL = (none(256, EPOCHS_IN_EQUAL_TIME), none(64, EPOCHS_IN_EQUAL_TIME))
# Added once the runs of equal minutes were there: the best memories of the front with as many images, and no
# memory for about as many minutes, at the rates that they were chosen with.
LONG = (
    Case("xbn", rate=1.6e-2, steps=EPOCHS_IN_EQUAL_TIME * EPOCH),
    replace(none(256, 2 * EPOCHS_IN_EQUAL_TIME), rate=1.6e-2),
    memory("xbm", rate=8e-3, steps=EPOCHS_IN_EQUAL_TIME * EPOCH),
)
LONG_AGAIN = replace(LONG[1], rate=3.2e-2)  # as for 24 epochs no memory was better at it
GAINS = tuple(
    case
    for method in ("gain", "gain per dimension", "gain of both")
    for case in (Case(method), memory(method), memory(method, batch_loss="1"))
)
RULE = "gain of both"  # the one that is level with the better of XBM and XBN
OTHERS = (
    memory("centre", batch_loss="1"),
    memory("centre"),
    Case("centre"),
    memory("xbm negatives", batch_loss="1"),
    memory("xbn negatives", batch_loss="1"),
    memory("xbm", batch_loss="ramp"),
    memory("xbn", batch_loss="ramp"),
    Case("norm-softmax"),
    Case("proxy-anchor"),
    Case("norm-softmax at one rate"),
    Case("proxy-anchor at one rate"),
    memory("axbn", batch_loss="1"),
    memory("axbn"),
    Case("axbn"),
    none(1024),
    Case("none", 256),  # as many steps as a memory at 64, and four times the images
    *(memory(name, batch_loss="1", memory=share) for share in (0.1, 0.5) for name in ("xbm", "xbn")),
    *(Case(name, memory=share) for share in (0.1, 0.5) for name in ("xbm", "xbn")),
)
CONTRASTIVE = tuple(replace(case, loss="contrastive") for case in FRONT)
PRETRAINED = tuple(replace(case, weights="glyphs") for case in FRONT)
# In the minutes of a memory, tried at the rate chosen for six epochs and those beside it.
EQUAL_PRETRAINED = replace(none(256, EPOCHS_IN_EQUAL_TIME), weights="glyphs")
EQUAL_PRETRAINED_RATES = (6.4e-2, 3.2e-2, 1.28e-1)
LARGE = (Case("none", 1024),)  # equal steps: 35 minutes
SWEEP = (350, 1400, 5500)
FEWER_CLASSES = tuple(replace(case, classes=classes) for classes in SWEEP for case in WITHOUT_FIRST_STEP)

LOST = 1.0  # points of MAP@R below no memory, from which on no seed would change that a setting lost
# The rate of proxies, in multiples of the network's. Ten was declared, and with it they learned badly or not.
PROXY_RATES = {
    "norm-softmax": 10.0,
    "proxy-anchor": 10.0,
    "norm-softmax at one rate": 1.0,
    "proxy-anchor at one rate": 1.0,
}
_BASE = {64: 8e-3, 256: 1.6e-2, 1024: 1.6e-2}


def rates(case: Case) -> tuple[float, float, float]:
    """Returns the three rates of a case, the middle one first."""
    middle = _BASE[case.batch_size]
    if case.begins == "first" and case.method != "none":
        middle = 4e-3  # rows of a fresh network drift fast
    if case.method in PROXY_RATES:
        middle = 8e-3
    return middle, middle / 2, middle * 2


def trials(cases: Sequence[Case]) -> Iterator[Case]:
    """Yields the runs that choose rates: the middle one of every case, then the lower, then the higher."""
    for place in range(3):
        yield from (replace(case, rate=rates(case)[place]) for case in cases)


def best_trials(rows: Sequence[dict[str, str]]) -> dict[Case, tuple[float, float]]:
    """Returns of each setting the highest MAP@R on the classes that choose, of seed 0, and its rate."""
    best: dict[Case, tuple[float, float]] = {}
    for case, row in zip(read_cases(rows), rows, strict=True):
        if case.seed == 0 and row["map_at_r_validation"]:
            found = float(row["map_at_r_validation"]), case.rate
            best[case.setting] = max(best.get(case.setting, found), found)
    return best


def best_rates(rows: Sequence[dict[str, str]]) -> dict[Case, float]:
    """Returns of each setting the rate with the highest MAP@R on the classes that choose, of seed 0."""
    return {setting: rate for setting, (_, rate) in best_trials(rows).items()}


def not_lost(cases: Sequence[Case], rows: Sequence[dict[str, str]]) -> list[Case]:
    """Returns the settings that are not far below no memory at batch 64 with seed 0, or have no trial yet."""
    best = best_trials(rows)

    def is_lost(case: Case) -> bool:
        rival = replace(none(64), loss=case.loss, weights=case.weights).setting
        both = best.keys() >= {case.setting, rival}
        return both and best[case.setting][0] < best[rival][0] - LOST

    return [case for case in cases if not is_lost(case)]


def beyond(cases: Sequence[Case], rows: Sequence[dict[str, str]]) -> Iterator[Case]:
    """Yields a further trial for every case whose best rate is at an edge of those tried."""
    best = best_rates(rows)
    tried: dict[Case, set[float]] = {}
    for case in read_cases(rows):
        if case.seed == 0:
            tried.setdefault(case.setting, set()).add(case.rate)
    for case in cases:
        rate, of_case = best.get(case.setting), tried.get(case.setting, set())
        if rate is not None and len(of_case) >= 3 and rate in (min(of_case), max(of_case)):
            yield replace(case, rate=2 * rate if rate == max(of_case) else rate / 2)


def chosen(cases: Sequence[Case], rows: Sequence[dict[str, str]], seeds: Sequence[int]) -> Iterator[Case]:
    """Yields the runs of chosen settings with other seeds, a seed after the other."""
    best = best_rates(rows)
    for seed in seeds:
        yield from (
            replace(case, rate=best[case.setting], seed=seed) for case in cases if case.setting in best
        )


def sweep_trials(rows: Sequence[dict[str, str]]) -> Iterator[Case]:
    """Yields the runs that choose with fewer classes: the rate chosen with all of them, and half of it."""
    best = best_rates(rows)
    for part in (1, 0.5):
        yield from (
            replace(case, rate=part * best[replace(case, classes=0).setting])
            for case in FEWER_CLASSES
            if replace(case, classes=0).setting in best
        )


def drift() -> Iterator[Case]:
    """Yields the runs of the figure of rates: five of them, a factor of two apart."""
    for rate in (1e-3, 2e-3, 4e-3, 8e-3, 1.6e-2):
        for case in (Case("xbn"), Case("xbm"), memory("xbn"), memory("xbm")):
            yield replace(case, rate=rate)


def planned(path: Path) -> Iterator[Case]:
    """Yields all runs in their order, some of which depend on rows that the file holds by then."""

    def trials_until_inside(cases: Sequence[Case]) -> Iterator[Case]:
        yield from trials(cases)
        for _ in range(3):
            yield from beyond(cases, read_csv(path))

    def trials_and_seeds(cases: Sequence[Case]) -> Iterator[Case]:
        yield from trials_until_inside(cases)
        rows = read_csv(path)
        yield from chosen(not_lost(cases, rows), rows, seeds=(1, 2, 3))

    yield from trials_until_inside(FRONT)
    yield from trials_until_inside(EQUAL)
    yield from (*LONG, LONG_AGAIN)
    yield from drift()
    yield from chosen((*FRONT, *EQUAL), read_csv(path), seeds=(1, 2, 3, 4, 5))
    yield from trials_and_seeds(PRETRAINED)
    yield from (replace(EQUAL_PRETRAINED, rate=rate) for rate in EQUAL_PRETRAINED_RATES)
    yield from beyond([EQUAL_PRETRAINED], read_csv(path))
    yield from chosen([EQUAL_PRETRAINED], read_csv(path), seeds=(1, 2, 3))
    yield from sweep_trials(read_csv(path))
    yield from chosen(FEWER_CLASSES, read_csv(path), seeds=(1, 2, 3))
    for cases in (GAINS, CONTRASTIVE, OTHERS):
        yield from trials_and_seeds(cases)
    yield from chosen([case for case in GAINS if case.method == RULE], read_csv(path), seeds=(4, 5))
    yield from trials(LARGE)
