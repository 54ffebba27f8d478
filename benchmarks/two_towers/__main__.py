"""Images of characters and their Unicode names, each to be found by the other: does a memory help two towers?

A network for images and one for names are trained on half of the characters of Glyphs, with a memory each
(`TwoTowerMemory`), and tested on the other half: Recall@1 of the names that an image finds, and of the images
that a name finds. All methods share seed, weights and batches.

    python -m benchmarks.two_towers
    python -m benchmarks.two_towers --seeds 3 4 --epochs 8 --results runs/two_towers
    python -m benchmarks.two_towers --seeds          (writes the table anew)

Writes ``two_towers_glyphs.csv``, to which it adds a line per run, and the table ``two_towers_glyphs.md`` that
follows from it. A run that the CSV holds is replaced.
"""

from __future__ import annotations

from statistics import fmean

import torch

from benchmarks.engine.command_line import errors_in_one_line, read
from benchmarks.engine.comparison import Comparison
from benchmarks.engine.history import History, Row
from benchmarks.engine.results import read_csv, write_csv
from benchmarks.engine.run import Run, progress_bar
from benchmarks.engine.settings import identity
from benchmarks.two_towers.report import NAME, write_report
from benchmarks.two_towers.settings import Settings
from benchmarks.two_towers.task import Pairs, TwoTowersTask, load_pairs


def main() -> None:
    # Networks this small gain little from more.
    torch.set_num_threads(1)
    with errors_in_one_line():
        settings, _ = read(Settings, __doc__)
        for folder in (settings.output, settings.results):
            folder.mkdir(parents=True, exist_ok=True)
        train, test = (load_pairs(split, settings.classes) for split in ("train", "test"))
    path = settings.results / f"{NAME}.csv"
    for seed in settings.seeds:
        with errors_in_one_line():
            comparison = compare(settings, train, test, seed)
            if settings.resume:
                comparison.resume()
        comparison.run(progress_bar, settings.output / f"logs_{seed}")
        rows = {(row["method"], int(row["seed"])): row for row in read_csv(path)}
        for method, history in comparison.histories.items():
            figures = {name: str(value) for name, value in _summary(history).items()}
            experiment = {name: str(value) for name, value in identity(settings).items()}
            rows[method, seed] = {"method": method, "seed": str(seed), **experiment, **figures}
        write_csv([rows[key] for key in sorted(rows)], path)
    print(write_report(settings.results))


def compare(settings: Settings, train: Pairs, test: Pairs, seed: int) -> Comparison:
    """The comparison of one seed."""
    return Comparison(
        lambda method: Run(TwoTowersTask(settings, train, test, method, seed)),
        settings.methods,
        settings.epochs,
        settings.output / f"checkpoint_{seed}.pt",
        {**identity(settings), "seed": seed, "glyphs": train.checksum},
        TwoTowersTask.device,
    )


def _summary(history: History) -> Row:
    """Accuracy after the last epoch; of the memory of names, if there is one, mean staleness; minutes."""
    last, stale = history.epochs[-1], history.diagnostics.get("staleness", [])
    summary = {name: last[name] for name in ("image_to_name", "name_to_image")}
    for moment in ("before", "after"):
        values = [row[f"{moment}_mean"] for row in stale if row[f"{moment}_mean"]]  # but of an empty memory
        summary[f"staleness_{moment}"] = fmean(values) if values else float("nan")
    return summary | {"minutes": sum(history.step_times) / 60}


if __name__ == "__main__":
    main()
