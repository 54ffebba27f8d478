"""One run of the study: training, and what the diagnostics say along the way."""

from __future__ import annotations

from dataclasses import astuple, replace
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.demo.settings import Settings
from benchmarks.demo.task import GlyphsData
from benchmarks.engine import checkpoint
from benchmarks.engine.accuracy import embed, hits_by_class
from benchmarks.engine.history import History, Row
from benchmarks.engine.run import Run
from benchmarks.engine.saved_run import SavedRun
from benchmarks.study.budget import Budget
from benchmarks.study.cases import EVALUATE_EVERY, MILDER, MILESTONES, SLOW_RATE, Case, budget_of
from benchmarks.study.data_sets import PretrainedData, Roots, Source
from benchmarks.study.remedies import REMEDIES
from benchmarks.study.task import StudyTask

_RATES = {512: 8**0.5}  # of a rate from random weights; AdamW's is to grow as the root of the batch
_BY_EPOCH = ("epoch", "loss", "recall_at_1", "map_at_r")


class Pace(NamedTuple):
    """What is done how often in a run.

    Attributes:
        evaluations: of a budget.
        measured_every: steps between measurements; default 40 where runs are short, else 400.
        saved_after: seconds between checkpoints.
        warmup: steps before a memory is filled.
    """

    evaluations: float = 20
    measured_every: int | None = None
    saved_after: float = 60
    warmup: int = 1000


PACE = Pace()


ROOTS = Roots()


def warm_start_path(case: Case, folder: Path) -> Path:
    return folder / f"warm-{'-'.join(map(str, astuple(case.warm_start())))}.pt"


def checkpoint_path(case: Case, folder: Path) -> Path:
    """Returns where a run that is under way is saved."""
    return folder / f"{'-'.join(map(str, astuple(case)))}.pt"


def train_warm_start(case: Case, folder: Path, classes: int | None) -> None:
    """Trains without a memory, and saves the state that runs start from."""
    run = Run(StudyTask(_data(case, classes, is_warm_start=True), "no-xbm"))
    for _ in range(case.epochs[0]):
        run.train_epoch()
    folder.mkdir(parents=True, exist_ok=True)
    checkpoint.save(run.state_dict(), warm_start_path(case, folder))


def train(
    case: Case, folder: Path, classes: int | None, source: Source = ROOTS, pace: Pace = PACE
) -> dict[str, Any]:
    """Returns one run: ``result`` is a row of its figures, ``epochs`` are rows of accuracy along the way.

    A run that fails has an ``error`` in place of its figures, and no ``epochs``.

    ``classes``, of a pretrained network, holds hits and images of every test class.

    The folder holds warm starts, and what is left of runs that were stopped, which go on from there.
    """
    run = begin(case, folder, classes, source, pace)
    try:
        return _trained(run, sum(case.epochs), checkpoint_path(case, folder), pace)
    except (ArithmeticError, RuntimeError, ValueError) as error:  # training that diverges
        return {"result": {"error": f"{type(error).__name__}: {error}"}, "epochs": []}


def _trained(run: Run, num_epochs: int, path: Path, pace: Pace) -> dict[str, Any]:
    task = run.task
    assert isinstance(task, StudyTask)
    saved = SavedRun(run, path, {}, pause=pace.saved_after)  # the path says which run it is
    saved.train(num_epochs)
    if not task.evaluates_after(run.epoch):
        run.evaluate()
    cpu_seconds = saved.cpu_seconds
    epochs = run.history.epochs
    numbers = dict(run.history.diagnostics["embeddings"][-1])
    del numbers["epoch"]
    result: dict[str, Any] = {name: epochs[-1][name] for name in ("recall_at_1", "recall_at_10", "map_at_r")}
    result["best_recall_at_1"] = max(row["recall_at_1"] for row in epochs)
    result["drift"] = sum(row["drift"] for row in epochs) / len(epochs)
    result["minutes"] = sum(run.history.step_times) / 60
    result["cpu_minutes"] = cpu_seconds / 60
    result["device"] = task.device.type
    result |= _staleness(run.history, getattr(task, "warmup", 0))
    result |= {name: number for name, number in numbers.items() if not name.startswith("superclass")}
    result["superclass_nearest"] = numbers["superclass_within_1"]
    outcome = {"result": result, "epochs": [{name: row[name] for name in _BY_EPOCH} for row in epochs]}
    if isinstance(task.data, PretrainedData):
        test = task.data.test
        found = hits_by_class(embed(task.model, test.images), test.labels)
        outcome["classes"] = {name: " ".join(map(str, x)) for name, x in found.items()}
    return outcome


def begin(case: Case, folder: Path, classes: int | None, source: Source, pace: Pace = PACE) -> Run:
    """Returns the run before its first step."""
    data = _data(case, classes, source, measured_every=pace.measured_every)
    every = EVALUATE_EVERY.get((case.regime, case.batch_size), 1)
    has_budget = budget_of(case.regime) is not None
    if has_budget:
        every = max(1, int(case.epochs[1] // pace.evaluations))
    build = REMEDIES.get(case.beside, StudyTask)
    # With as many rows PML's class takes a quarter of an hour more; ours without an adapter has its values.
    options = {"warmup": 0} if (case.method, case.memory_ratio) == ("xbm", 1.0) else {}
    if case.beside.startswith("warm-up"):
        options["steps"] = pace.warmup
    task = build(data, case.memory, case.refresh_every, _milestones(case), every, **options)
    if has_budget:  # epochs that are short would each begin with a measurement
        task.measured = replace(task.measured, anew_each_epoch=False)
    run = Run(task)
    if case.regime == "slow":
        state = checkpoint.load(warm_start_path(case, folder))
        task.model.load_state_dict(state["model"])
        run.epoch = state["epoch"]
    elif not case.is_from_random_weights:
        state = checkpoint.load(warm_start_path(case, folder))
        run.start_from(state, keep=("history", "loss_fn", "diagnostics"))
    if case.beside == "proxies":
        task.add_proxies()
    return run


def _data(
    case: Case,
    classes: int | None,
    source: Source = ROOTS,
    is_warm_start: bool = False,
    measured_every: int | None = None,
) -> GlyphsData:
    budget = budget_of(case.regime) or Budget("glyphs", sum(case.epochs))
    rate = Settings.learning_rate * budget.rate
    if not budget.is_pretrained:
        rate *= _RATES.get(case.batch_size, 1)
    settings = Settings(
        batch_size=case.batch_size,
        memory_ratio=case.memory_ratio,
        seed=case.seed,
        norm=case.norm,
        learning_rate=rate * SLOW_RATE if case.regime == "slow" and not is_warm_start else rate,
        drift_every=measured_every or (40 if case.regime in ("fast", "slow") else 400),
        distortion=MILDER if case.is_from_random_weights else 1.0,
        classes=classes,
    )
    return source.open(settings, budget)


def _milestones(case: Case) -> list[int] | None:
    """Returns the epochs after which the learning rate falls, of runs from random weights."""
    if not case.is_from_random_weights:
        return None
    return [round(share * case.epochs[1]) for share in MILESTONES]


def _staleness(history: History, warmup: int) -> Row:
    """Means over the measured steps, but for the first and those of a warm-up, when the memory is empty."""
    rows = [row for row in history.diagnostics.get("staleness", [])[1:] if row["step"] > warmup]
    names = ("before", "after") if rows else ()
    return {f"staleness_{name}": sum(row[f"{name}_mean"] for row in rows) / len(rows) for name in names}
