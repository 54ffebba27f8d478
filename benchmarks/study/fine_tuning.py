"""The runs that `declared_fine_tuning.md` declares, in stages, each of which follows from those before.

    python -m benchmarks.study.fine_tuning --stage select > benchmarks/study/lists/select.csv
    python -m benchmarks.study --cases benchmarks/study/lists/select.csv
    python -m benchmarks.study.fine_tuning --stage again > benchmarks/study/lists/again.csv

and so on for the other stages.
"""

from __future__ import annotations

import csv
import sys
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, fields, replace
from functools import partial
from itertools import product
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Literal, NamedTuple

import tyro

from benchmarks.engine.results import RESULTS, read_runs
from benchmarks.study.budget import Budget
from benchmarks.study.cases import PRETRAINED, Case
from benchmarks.study.files import RUNS

FIGURE = "recall_at_1"
NONE = "no-xbm"
CACHED = "no-xbm+cached in parts of 64"
LIKE_XBM = "xbm+warm-up of an epoch"
LIKE_XBM_STAR = "xbm-star+warm-up of an epoch"
OTHER_PASS = ("centre+evaluation rows", "centre+momentum 0.99")
METHODS = (NONE, LIKE_XBM, "xbn", "centre", "centre+batch loss", *OTHER_PASS)
NORMS = ("frozen", "batch")
RATES = (1.0, 0.3, 0.1)  # of 1e-3
OTHER_RATES = {8: (0.3, 0.1, 0.03), 256: (3.0, 1.0, 0.3), 512: (3.0, 1.0, 0.3)}  # of these batch sizes
STAR_RATES = (1.0, 0.3, 0.1, 0.03)  # where XBM's best was the lowest of three
STAGE_RATES = {16: (0.3, 0.1, 0.03), 64: (0.3, 0.1, 0.03), 256: (1.0, 0.3, 0.1)}  # where three stages train
STAGE_EPOCHS = {16: 8, 64: 8, 256: 9}
WHOLE_RATES = (1.0, 0.3, 0.1)  # where the whole network trains
WHOLE_EPOCHS = {64: 4, 256: 5}
SENSE_RATES = (1.0, 0.3, 0.1, 0.03, 0.01, 0.003)  # of 1e-3; a transformer has no batch norm to freeze
SENSE_EPOCHS = 8
EPOCHS = {256: 17, 512: 18}  # of as many images as 16 of batch 64, which divides them with a smaller rest
EQUAL_TIME = 20  # epochs without memory that take at least as long as 16 with any
MEMORY = 0.5  # rows, as a share of the training images
FIRST_SEED, SECOND_SEED = 0, 6  # of the choice
CONFIRMED_SEEDS = (1, 2, 3, 4, 5)
DOMAINS: tuple[str, ...] = ("pretrained", "pretrained icons")
FINALISTS = 2
# In the order of their worth: what the goals are of comes first.
FIRST_CONFIRMED = ((NONE, 16), ("centre", 16), (NONE, 64), ("centre", 64), (CACHED, 256), (CACHED, 512))


class Method(NamedTuple):
    """What is chosen for: a method, with a batch size, a loss, a data set that chooses, and what trains.

    With None the loss is SupCon, the last stage trains, and settings and epochs are the method's own.
    """

    name: str
    batch_size: int
    loss: Literal["multi-similarity"] | None = None
    data: str = "pretrained"
    trained: Literal["last three stages", "whole network"] | None = None
    settings_of: Literal["last three stages"] | None = None
    epochs: int | None = None  # of the trials too; None: those of what trains


SUPCON = (
    *(Method(name, size) for size in (16, 64) for name in METHODS),
    *(Method(CACHED, s) for s in EPOCHS),
)
OTHER_SIZES = tuple(Method(name, size) for size in (8, 32) for name in (NONE, "xbn"))
LARGE_BATCH = (Method(CACHED, 256), Method("xbn+cached in parts of 64", 256))
XBM_STAR = (
    *(Method(name, size) for size in (16, 64) for name in (NONE, LIKE_XBM_STAR, "xbn")),
    Method(CACHED, 256),
)
MULTI_SIMILARITY = (
    *(
        Method(name, size, "multi-similarity")
        for size in (16, 64)
        for name in (NONE, LIKE_XBM, "xbn", "centre")
    ),
    Method(CACHED, 256, "multi-similarity"),
)
THREE_STAGES = tuple(
    Method(name, size, trained="last three stages")
    for name, size in ((NONE, 16), ("xbn", 16), (NONE, 64), ("xbn", 64), (CACHED, 256))
)
WHOLE_NETWORK = tuple(m._replace(trained="whole network") for m in THREE_STAGES if m.batch_size != 16)
LONG_EPOCHS = {64: 16, 256: 17}  # of as many images
WHOLE_NETWORK_LONG = tuple(m._replace(epochs=LONG_EPOCHS[m.batch_size]) for m in WHOLE_NETWORK)
AS_THREE_STAGES = tuple(m._replace(settings_of="last three stages") for m in WHOLE_NETWORK)
# What is beside a memory in the settings in which it lost (see the declaration's last section but one).
DECIDED = tuple(
    f"{memory}+{beside}"
    for beside in ("batch loss", "negatives only", "warm-up of an epoch")
    for memory in ("xbn", "centre")
)
# Their controls: the batch's own loss beside a memory without adaptation, which is used to want a warm-up.
UNADAPTED = ("xbm-star", LIKE_XBM_STAR)
SECOND_CHANCE = (*DECIDED, *UNADAPTED)
DECIDING = {
    "-deciding-multi-similarity": (
        *(m for m in MULTI_SIMILARITY if m[:2] in ((NONE, 64), ("xbn", 64), (CACHED, 256))),
        *(Method(name, 64, "multi-similarity") for name in SECOND_CHANCE),
    ),
    "-deciding-large-batch": (*LARGE_BATCH, *(Method(name, 256) for name in SECOND_CHANCE)),
    "-deciding-three-stages": (
        *(m for m in THREE_STAGES if m.batch_size != 16),
        *(Method(name, 64, trained="last three stages") for name in SECOND_CHANCE),
    ),
    "-deciding-whole-network": (
        *WHOLE_NETWORK,
        *(Method(name, 64, trained="whole network") for name in SECOND_CHANCE),
    ),
}
MORE_EPOCHS = (8, 16)  # of the whole network, where it trained for 4
SENSES = (
    *(
        Method(name, size, data="pretrained senses")
        for size in (16, 64)
        for name in (NONE, LIKE_XBM, "xbn", "centre", "centre+momentum 0.99")
    ),
    Method(CACHED, 256, data="pretrained senses"),
)


def grid(method: Method) -> tuple[tuple[str, ...], tuple[float, ...], int]:
    """Returns what batch normalization does in a method's trials, their rates, and their number of epochs."""
    size = method.batch_size
    if method.data == "pretrained senses":
        return ("layer",), SENSE_RATES, SENSE_EPOCHS
    if method.epochs:
        return ("frozen",), STAGE_RATES[size], method.epochs
    if method.trained == "whole network":
        return ("frozen",), WHOLE_RATES, WHOLE_EPOCHS[size]
    if method.trained:
        return ("frozen",), STAGE_RATES[size], STAGE_EPOCHS[size]
    is_decided = method.name in SECOND_CHANCE and (method.loss or size == 256)
    if method.name == LIKE_XBM_STAR and not is_decided:
        return NORMS, STAR_RATES, 16
    norms = ("frozen",) if is_decided else NORMS  # frozen won without a memory
    return norms, OTHER_RATES.get(size, RATES), EPOCHS.get(size, 16)


def trials(method: Method) -> Iterator[Case]:
    """Yields the settings that a method is tried with, with the first seed.

    With frozen batch normalization rows of an evaluation pass are the batch's own: the trials are centring's.
    A method whose settings are another's has none.
    """
    if method.settings_of:
        return
    norms, rates, epochs = grid(method)
    for norm, rate in product(norms, rates):
        name = method.name
        if norm == "frozen" and name == "centre+evaluation rows":
            name = "centre"
        budget = Budget(method.data, epochs, rate=rate, loss=method.loss, trained=method.trained)
        share = 0.0 if name.startswith(NONE) else MEMORY
        yield Case(name, 0, method.batch_size, share, norm, str(budget), FIRST_SEED)


class Runs:
    """Recall@1 of the runs that have been made; a run that failed has zero."""

    def __init__(self, folder: Path) -> None:
        self._found = {case: float(row[FIGURE] or 0) for case, row in read_runs(Case, folder / RUNS)}

    def of(self, case: Case) -> float:
        if case not in self._found:
            raise ValueError(f"there is no run of {case}; make all runs of the stage before")
        return self._found[case]

    def finalists(self, method: Method) -> list[Case]:
        """Returns the trials that were best with the first seed, best first."""
        return sorted(trials(method), key=lambda case: -self.of(case))[:FINALISTS]

    def chosen(self, method: Method) -> Case:
        """Returns the trial that is best in the mean of both seeds."""
        if method.settings_of:
            case = self.chosen(method._replace(trained=method.settings_of, settings_of=None))
            budget, epochs = Budget.from_name(case.regime), WHOLE_EPOCHS[method.batch_size]
            return replace(case, regime=str(replace(budget, trained=method.trained, epochs=epochs)))
        return max(
            self.finalists(method),
            key=lambda case: fmean([self.of(case), self.of(replace(case, seed=SECOND_SEED))]),
        )


def select(methods: tuple[Method, ...], _: Runs | None = None) -> Iterator[Case]:
    """Yields all trials."""
    for method in methods:
        yield from trials(method)


def again(methods: tuple[Method, ...], runs: Runs) -> Iterator[Case]:
    """Yields the two best trials of every method with a second seed."""
    for method in methods:
        for case in runs.finalists(method):
            yield replace(case, seed=SECOND_SEED)


def confirm(methods: tuple[Method, ...], runs: Runs) -> Iterator[Case]:
    """Yields the chosen setting of every method with five seeds, on classes that no choice has seen."""
    for method in methods:
        for data, seed in product(domains(method), CONFIRMED_SEEDS):
            yield confirmed(runs.chosen(method), data, seed)


def confirm_on_emoji(methods: tuple[Method, ...], runs: Runs) -> Iterator[Case]:
    """Yields the chosen settings on Emoji's classes kept back alone, a seed after the other."""
    for seed, method in product(CONFIRMED_SEEDS, methods):
        yield confirmed(runs.chosen(method), method.data, seed)


def domains(method: Method) -> tuple[str, ...]:
    """Returns the data sets that confirm a choice: of pictures Emoji's classes kept back, and icons."""
    return DOMAINS if method.data == "pretrained" else (method.data,)


def equal_time(runs: Runs) -> Iterator[Case]:
    """Yields no memory, trained for the time of the most expensive memory."""
    for size, data, seed in product((16, 64), DOMAINS, CONFIRMED_SEEDS):
        yield confirmed(runs.chosen(Method(NONE, size)), data, seed, EQUAL_TIME)


def confirmed(chosen: Case, data: str, seed: int, epochs: int | None = None) -> Case:
    """Returns a run of a chosen setting that is scored on classes that no choice has seen."""
    budget = Budget.from_name(chosen.regime)
    is_kept_back = data != "pretrained icons"  # of which no class has chosen
    budget = replace(budget, data=data, epochs=epochs or budget.epochs, is_kept_back=is_kept_back)
    return replace(chosen, regime=str(budget), seed=seed)


def more_epochs(runs: Runs) -> Iterator[Case]:
    """Yields no memory and XBN in the whole network, with the chosen settings, in longer training."""
    for epochs, seed, data, name in product(MORE_EPOCHS, CONFIRMED_SEEDS, DOMAINS, (NONE, "xbn")):
        chosen = runs.chosen(Method(name, 64, trained="whole network"))
        yield confirmed(chosen, data, seed, epochs)


def mended(_: Runs) -> Iterator[Case]:
    """Yields the study's runs with rows of a momentum encoder, which was in evaluation mode by accident."""
    budgets = sorted(PRETRAINED, key=lambda budget: (-budget.epochs, -budget.rate))
    for budget, batch_size, seed in product(budgets, (16, 64), (1, 2, 3)):
        yield Case("xbm+momentum 0.99", 0, batch_size, 0.5, "batch", str(budget), seed)


def _rest(runs: Runs) -> Iterator[Case]:
    yield from confirm(tuple(m for m in SUPCON if m[:2] not in FIRST_CONFIRMED), runs)
    yield from equal_time(runs)


_METHODS = {
    "": SUPCON,
    "-multi-similarity": MULTI_SIMILARITY,
    "-other-sizes": OTHER_SIZES,
    "-large-batch": LARGE_BATCH,
    "-xbm-star": XBM_STAR,
    "-three-stages": THREE_STAGES,
    "-whole-network": WHOLE_NETWORK,
    "-whole-network-long": WHOLE_NETWORK_LONG,
    "-senses": SENSES,
    **DECIDING,
}
_RULES: dict[str, Callable[[tuple[Method, ...], Runs], Iterator[Case]]] = {
    "select": select,
    "again": again,
    "confirm": confirm,
}
STAGES: dict[str, Callable[[Runs], Iterator[Case]]] = {
    f"{stage}{name}": partial(rule, methods)
    for name, methods in _METHODS.items()
    for stage, rule in _RULES.items()
}
STAGES |= {
    "confirm": partial(confirm, tuple(Method(*one) for one in FIRST_CONFIRMED)),
    "confirm-others": _rest,
    "mended": mended,
    "whole-network": partial(confirm_on_emoji, AS_THREE_STAGES),
    "confirm-whole-network": partial(confirm_on_emoji, WHOLE_NETWORK),
    "more-epochs": more_epochs,
}
if TYPE_CHECKING:
    Stage = str
else:
    Stage = Literal[tuple(STAGES)]


@dataclass(frozen=True)
class Settings:
    """Which list, and where the runs are that it follows from."""

    stage: Stage
    output: Path = RESULTS  # folder of the CSV files


def main() -> None:
    settings = tyro.cli(Settings, prog="python -m benchmarks.study.fine_tuning", description=__doc__)
    writer = csv.DictWriter(sys.stdout, [field.name for field in fields(Case)], lineterminator="\n")
    writer.writeheader()
    for case in dict.fromkeys(STAGES[settings.stage](Runs(settings.output))):
        writer.writerow(asdict(case))


if __name__ == "__main__":
    main()
