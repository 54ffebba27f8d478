"""Reruns the papers' experiments: XBM, AXBN, the thesis on its variants, NormSoftmax and SGSL.

    python -m benchmarks.papers --dataset glyphs --backbone resnet18 --no-pretrained --method xbn
    python -m benchmarks.papers --dataset sop --root data/sop --method axbn --repeat 3
    torchrun --nproc_per_node=4 -m benchmarks.papers --preset xbm --dataset in-shop --root data/in-shop
    python -m benchmarks.papers --list          # all experiments of the papers
    python -m benchmarks.papers --list cub      # those in whose line this text is

The default is the protocol of the AXBN paper. A flag wins over --config, that over --preset, and that
over the default. A GPU is used where there is one, and with torchrun one per process; --batch-size is
that of all together.
"""

from __future__ import annotations

import shlex
import sys
from dataclasses import replace
from pathlib import Path

import torch

from benchmarks.engine import checkpoint
from benchmarks.engine.command_line import errors_in_one_line
from benchmarks.engine.history import History, Row
from benchmarks.engine.interruption import Interruption
from benchmarks.engine.ranks import Ranks
from benchmarks.engine.run import progress_bar, quietly
from benchmarks.papers.data import load_data
from benchmarks.papers.experiments import EXPERIMENTS
from benchmarks.papers.model import weights_name
from benchmarks.papers.presets import read_settings
from benchmarks.papers.reproducing import result_table, same_experiments, table
from benchmarks.papers.session import Session, draw
from benchmarks.papers.settings import Settings
from benchmarks.papers.task import PapersTask

_NOT_FOUND = 2  # as for flags that are wrong
_INTERRUPTED = 130  # what shells give to Ctrl-C


def main() -> None:
    with errors_in_one_line():
        if "--list" in sys.argv:
            _print_list(*sys.argv[sys.argv.index("--list") + 1 :][:1])
            return
        settings = read_settings(description=__doc__)
    output = settings.output or Path("runs", f"{settings.preset}-{settings.dataset}-{settings.method}")
    ranks = Ranks(settings.cpu)
    try:
        with errors_in_one_line(), Interruption(second_stops=ranks.world_size == 1) as interruption:
            results = _train_all(settings, output, ranks, interruption)
    finally:
        ranks.leave()
    if results is None:
        if ranks.is_first:
            resume = [] if settings.resume else ["--resume"]
            command = shlex.join(["python", "-m", "benchmarks.papers", *sys.argv[1:], *resume])
            print(f"stopped, and saved in {output}; to go on: {command}")
        raise SystemExit(_INTERRUPTED)
    if ranks.is_first:
        _print_results(settings, results)


def _print_list(text: str = "") -> None:
    rows = table(text)
    if not rows:
        names = ", ".join(dict.fromkeys(experiment.key for experiment in EXPERIMENTS))
        print(f"no experiment has {text!r} in its line; they are: {names}", file=sys.stderr)
        raise SystemExit(_NOT_FOUND)
    print(rows, end="")


def _train_all(
    settings: Settings, output: Path, ranks: Ranks, interruption: Interruption
) -> list[Row] | None:
    """Returns the results of all seeds; None when Ctrl-C came before the end."""
    seeds = range(settings.seed, settings.seed + settings.repeat)
    folders = [output / f"seed-{seed}" for seed in seeds]
    if ranks.device.type == "cpu" and ranks.world_size > 1:
        torch.set_num_threads(1)
    data = ranks.from_first_rank(lambda: load_data(settings))
    if settings.evaluate is not None:
        state = checkpoint.load(settings.evaluate)
        model = state["model"] if "model" in state else state["run"]["model"]
        epoch = state["epoch"] if "model" in state else state["run"]["epoch"]
        task = PapersTask(replace(settings, pretrained=False, weights=None), data, ranks)
        return [{"epoch": epoch, **task.model_accuracy(model)}]
    results: list[Row] = []
    histories: dict[str, History] = {}
    for seed, folder in zip(seeds, folders, strict=True):
        session = Session(PapersTask(replace(settings, seed=seed), data, ranks), folder)
        if ranks.is_first:
            _print_start(session.task, folder)
        result = session.train(
            progress_bar if ranks.is_first else quietly, lambda: ranks.any(interruption.wanted)
        )
        if result is None:
            return None
        results.append(result)
        histories[f"seed {seed}"] = session.run.history
    if ranks.is_first and settings.repeat > 1:
        draw(histories, settings, output / "curves.png")
    return results


def _print_start(task: PapersTask, folder: Path) -> None:
    settings, data, ranks = task.settings, task.data, task.ranks
    tests = f"{len(data.queries)} test images"
    if data.gallery is not None:
        tests = f"{len(data.queries)} queries in a gallery of {len(data.gallery)}"
    if data.drawn_galleries is not None:
        draws, size = len(data.drawn_galleries), int(data.drawn_galleries[0].sum())
        tests = f"{len(data.queries) - size} queries in a gallery of {size}, drawn {draws} times"
    print(
        f"{settings.method} on {settings.dataset}, seed {settings.seed}, "
        f"{weights_name(settings)}: {len(data.train)} training images "
        f"of {data.num_classes} classes, {tests}; {task.length.steps_per_epoch} steps in each of "
        f"{task.length.epochs} epochs, on {ranks.world_size} × {ranks.device.type}"
        f"{'' if task.images_per_norm is None else f', BN over {task.images_per_norm} images'}; into {folder}"
    )


def _print_results(settings: Settings, results: list[Row]) -> None:
    same = same_experiments(settings)
    weights = weights_name(settings)
    if not same:
        run_settings = {"pretrained weights": (weights, "–"), "select": (settings.select, "–")}
        print(result_table(results, {}, "", run_settings))
        print("No table of the papers has these settings; --list shows those that are there.")
        return
    experiment, differences = same[0]
    run_settings = {
        "pretrained weights": (weights, experiment.weights),
        "select": (settings.select, experiment.settings.select),
    }
    paper = dict(experiment.figures)
    others = [other for other, theirs in same[1:] if len(theirs) <= len(differences)]
    for other in others:
        for key, figure in other.figures.items():
            paper.setdefault(key, f"{figure} ({other.source})")
    print(result_table(results, paper, experiment.source, run_settings))
    for other in others:
        figures = ", ".join(other.figures.values()) or "a curve"
        print(f"Also there: {other.source} ({other.title}): {figures}")
    for difference in differences:
        print(f"Not as in the paper: {difference}")


if __name__ == "__main__":
    main()
