"""One run of the study: training, and what the diagnostics say along the way."""

from __future__ import annotations

from dataclasses import astuple
from pathlib import Path
from typing import Any

import torch

from benchmarks.demo.settings import Settings
from benchmarks.demo.task import GlyphsData
from benchmarks.engine import checkpoint
from benchmarks.engine.history import History, Row
from benchmarks.engine.run import Run
from benchmarks.study.cases import EVALUATE_EVERY, MILDER, MILESTONES, SLOW_RATE, Case
from benchmarks.study.remedies import REMEDIES
from benchmarks.study.task import StudyTask

_MEASURE_EVERY = {"fast": 40, "slow": 40, "converged": 400}  # steps
_RATES = {512: 8**0.5}  # of the learning rate; AdamW's is to grow as the root of the batch
_BY_EPOCH = ("epoch", "loss", "recall_at_1", "map_at_r")


def warm_start_path(case: Case, folder: Path) -> Path:
    return folder / f"warm-{'-'.join(map(str, astuple(case.warm_start())))}.pt"


def train_warm_start(case: Case, folder: Path, classes: int | None) -> None:
    """Trains without a memory, and saves the state that runs start from."""
    run = Run(StudyTask(_data(case, classes, is_warm_start=True), "no-xbm", milestones=_milestones(case)))
    for _ in range(case.epochs[0]):
        run.train_epoch()
    folder.mkdir(parents=True, exist_ok=True)
    checkpoint.save(run.state_dict(), warm_start_path(case, folder))


def train(case: Case, folder: Path, classes: int | None) -> dict[str, Any]:
    """One run: ``result`` is a row of its figures, ``curve`` and ``ages`` are rows of measurements."""
    every = EVALUATE_EVERY.get((case.regime, case.batch_size), 1)
    build = REMEDIES.get(case.beside, StudyTask)
    # With as many rows PML's class takes a quarter of an hour more; ours without an adapter has its values.
    options = {"warmup": 0} if (case.method, case.memory_ratio) == ("xbm", 1.0) else {}
    task = build(_data(case, classes), case.memory, case.refresh_every, _milestones(case), every, **options)
    run = Run(task)
    state = checkpoint.load(warm_start_path(case, folder), task.device)
    if case.regime == "slow":
        task.model.load_state_dict(state["model"])
        run.epoch = state["epoch"]
    else:
        run.start_from(state, keep=("history", "loss_fn", "diagnostics"))
    if case.beside == "proxies":
        task.add_proxies()
    for _ in range(case.epochs[1]):
        run.train_epoch()
    epochs, curve = run.history.epochs, _curve(run.history)
    numbers = dict(run.history.diagnostics["embeddings"][-1])
    del numbers["epoch"]
    result = {name: epochs[-1][name] for name in ("recall_at_1", "recall_at_10", "map_at_r")}
    result["best_recall_at_1"] = max(row["recall_at_1"] for row in epochs)
    result["drift"] = sum(row["drift"] for row in epochs) / len(epochs)
    result["minutes"] = sum(run.history.step_times) / 60
    result |= _means(curve)
    result |= {name: number for name, number in numbers.items() if not name.startswith("superclass")}
    result["superclass_nearest"] = numbers["superclass_within_1"]
    drift = {row["step"]: row["drift"] for row in run.history.steps}
    return {
        "result": result,
        "curve": [{"drift": drift.get(row["step"]), **row} for row in curve],
        "epochs": [{name: row[name] for name in _BY_EPOCH} for row in epochs],
        "ages": [
            {"age_from": 2**age, "rows": rows, "before": before / rows, "after": after / rows}
            for age, (rows, before, after) in sorted(task.ages.items())
        ],
    }


def _data(case: Case, classes: int | None, is_warm_start: bool = False) -> GlyphsData:
    rate = Settings.learning_rate * _RATES.get(case.batch_size, 1)
    settings = Settings(
        batch_size=case.batch_size,
        memory_ratio=case.memory_ratio,
        seed=case.seed,
        norm=case.norm,
        learning_rate=rate * SLOW_RATE if case.regime == "slow" and not is_warm_start else rate,
        drift_every=_MEASURE_EVERY[case.regime],
        distortion=MILDER if case.regime == "converged" else 1.0,
        classes=classes,
    )
    return GlyphsData(settings, torch.device("cpu"))


def _milestones(case: Case) -> list[int] | None:
    """Of the regimes that go on to the end."""
    return [round(share * sum(case.epochs)) for share in MILESTONES] if case.regime == "converged" else None


def _curve(history: History) -> list[Row]:
    """The measurements of the memory, a row for every step that has any."""
    tables = (history.diagnostics.get(name, []) for name in ("staleness", "push", "valid_pairs"))
    return [
        {
            "step": stale["step"],
            "staleness_before": stale["before_mean"],
            "staleness_after": stale["after_mean"],
            **{f"push_{name}": value for name, value in push.items() if name != "step"},
            **{f"valid_{name}": value for name, value in pairs.items() if name != "step"},
        }
        for stale, push, pairs in zip(*tables, strict=True)
    ]


def _means(curve: list[Row]) -> Row:
    """Over the measured steps, but for the first, when the memory is empty."""
    rows = curve[1:]
    names = [name for name in rows[0] if name != "step"] if rows else []
    return {name: sum(row[name] for row in rows) / len(rows) for name in names}
