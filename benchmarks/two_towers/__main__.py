"""Queries and documents, each to be found by the other: does a memory help two towers?

Two networks are trained with a memory each (`TwoTowerMemory`), and tested on classes that neither has seen:
Recall@1 of the documents that a query finds, and of the queries that a document finds. The data are images
of characters and their Unicode names (``glyphs``), Emoji and their names in one and in ten languages, and
the words of WordNet and their definitions; with ``frozen-`` before it, only projectors train, on features of
texts that are given. All methods share seed, weights and batches.

    python -m benchmarks.two_towers
    python -m benchmarks.two_towers --data definitions --epochs 20 --constant-rate --batch-size 128
    python -m benchmarks.two_towers --seeds          (writes the tables anew)

Writes ``two_towers.csv``, to which it adds a line per run, and the page ``two_towers.md`` that follows from
it. The same line goes on where it was stopped: a run that the CSV holds is not repeated, one that was under
way goes on from its last checkpoint. One program at a time may write to a folder.
"""

from __future__ import annotations

from dataclasses import replace
from statistics import fmean

import torch

from benchmarks.engine.command_line import errors_in_one_line, read
from benchmarks.engine.history import History, Row
from benchmarks.engine.interruption import Interruption
from benchmarks.engine.randomness import seed_for
from benchmarks.engine.results import append_csv, read_csv
from benchmarks.engine.run import Run, progress_bar
from benchmarks.engine.saved_run import SavedRun
from benchmarks.engine.settings import identity
from benchmarks.two_towers.pairs import load_pairs
from benchmarks.two_towers.report import NAME, write_report
from benchmarks.two_towers.settings import Settings
from benchmarks.two_towers.task import TwoTowersTask

_SAVED_AFTER = 60  # seconds
_LATE = 0.75  # share of the epochs behind which a curve is to be flat


def main() -> None:
    torch.set_num_threads(1)  # networks this small gain little from more
    with errors_in_one_line():
        settings, _ = read(Settings, __doc__)
        settings.results.mkdir(parents=True, exist_ok=True)
        path = settings.results / f"{NAME}.csv"
        runs = [
            {"method": method, "seed": str(seed), **{k: str(v) for k, v in identity(settings).items()}}
            for seed in settings.seeds
            for method in settings.methods
        ]
        finished = [{name: row.get(name) for name in runs[0]} for row in read_csv(path)] if runs else []
        todo = [run for run in runs if run not in finished]
        halves = load_pairs(settings.data, settings.root, settings.classes) if todo else None
    for row in todo:
        assert halves is not None
        epochs = settings.epochs * (2 if row["method"] == "no-memory-twice" else 1)
        run = Run(TwoTowersTask(replace(settings, epochs=epochs), *halves, row["method"], int(row["seed"])))
        # Its name says which run it is.
        unfinished = settings.results / f"{NAME}_{seed_for(repr(sorted(row.items())))}.pt"
        saved = SavedRun(run, unfinished, row, pause=_SAVED_AFTER)
        with Interruption(second_stops=True) as interruption:
            if not saved.train(epochs, progress_bar, lambda: interruption.wanted):
                raise SystemExit("stopped; the same command goes on")
        minutes = {"cpu_minutes": saved.cpu_seconds / 60}
        append_csv([{**row, **_summary(run.history), **minutes}], path)
        unfinished.unlink(missing_ok=True)
    print(write_report(settings.results))


def _summary(history: History) -> Row:
    """Returns last accuracy, what the last quarter added, mean staleness of documents, and minutes."""
    last, stale = history.epochs[-1], history.diagnostics.get("staleness", [])
    summary = {name: last[name] for name in ("query_to_document", "document_to_query")}
    early = [row for row in history.epochs if row["epoch"] <= _LATE * last["epoch"]]
    if early:
        summary["last_quarter"] = last["recall_at_1"] - early[-1]["recall_at_1"]
    for moment in ("before", "after"):
        values = [row[f"{moment}_mean"] for row in stale if row[f"{moment}_mean"]]  # but of an empty memory
        summary[f"staleness_{moment}"] = fmean(values) if values else float("nan")
    return summary | {"minutes": sum(history.step_times) / 60}


if __name__ == "__main__":
    main()
