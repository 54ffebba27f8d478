"""The page of the runs that fine-tune: what was chosen, and what the chosen settings came to elsewhere."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from operator import attrgetter
from pathlib import Path
from statistics import fmean

import numpy as np

from benchmarks.engine.intervals import bootstrap, paired
from benchmarks.engine.results import markdown, spread
from benchmarks.study.budget import Budget
from benchmarks.study.cases import Case
from benchmarks.study.fine_tuning import (
    AS_THREE_STAGES,
    CACHED,
    CONFIRMED_SEEDS,
    DECIDED,
    DECIDING,
    EQUAL_TIME,
    FIGURE,
    LARGE_BATCH,
    MORE_EPOCHS,
    MULTI_SIMILARITY,
    NONE,
    OTHER_SIZES,
    SECOND_SEED,
    SENSES,
    SUPCON,
    THREE_STAGES,
    UNADAPTED,
    WHOLE_EPOCHS,
    WHOLE_NETWORK,
    WHOLE_NETWORK_LONG,
    XBM_STAR,
    Method,
    Runs,
    confirmed,
    domains,
    trials,
)
from benchmarks.study.measured import Study

PAGE = "fine_tuning.md"
_BY_CLASS_OF = ("centre", "xbn")
_TITLES = {
    "pretrained": "Emoji, classes kept back",
    "pretrained icons": "Icons",
    "pretrained senses": "Senses, classes kept back",
}
_DECIDED = {
    "-deciding-multi-similarity": "What may save a memory with MultiSimilarity",
    "-deciding-large-batch": "What may save a memory at batch 256",
    "-deciding-three-stages": "What may save a memory where three stages train",
    "-deciding-whole-network": "What may save a memory in the whole network",
}
_NORMS = {"batch": "trains", "frozen": "frozen", "layer": "none"}
_HEAD = """# Fine-tuning a pretrained network

Written by `python -m benchmarks.study --report` from the study's CSV files; the rules were
declared in `declared_fine_tuning.md` before the runs. The last stage of EfficientNet-Lite0 trains,
from ImageNet weights, where no other is named. All figures are per cent, differences points of Recall@1;
± is half of the 95 % interval of a difference, of its own pairs alone (Student's t), and sd the standard
deviation over seeds. Minutes are those of a core, on a machine that other work shared."""


def write_fine_tuning(study: Study, folder: Path) -> None:
    """Writes the page beside the CSV files, as far as there are runs; none before the first."""
    pages = [
        part
        for title, methods in (
            ("SupCon", tuple(sorted(SUPCON + OTHER_SIZES, key=attrgetter("batch_size")))),
            ("A memory at batch 256", LARGE_BATCH),
            ("`CrossBatchMemory` with the batch's own loss", XBM_STAR),
            ("MultiSimilarity", MULTI_SIMILARITY),
            ("Three stages that train", THREE_STAGES),
            ("The whole network", WHOLE_NETWORK),
            ("The whole network, 16 epochs", WHOLE_NETWORK_LONG),
            ("The whole network, with the settings of three stages", AS_THREE_STAGES),
            ("A text transformer", SENSES),
            *((_DECIDED[name], methods) for name, methods in DECIDING.items() if _has_begun(study, methods)),
        )
        for part in _sections(Report(study, folder, methods), title)
    ]
    pages += _longer_training(Report(study, folder, WHOLE_NETWORK))
    if pages:
        (folder / PAGE).write_text("\n\n".join([_HEAD, *pages]) + "\n", encoding="utf-8")


class Report:
    """What has been measured so far of some methods."""

    def __init__(self, study: Study, folder: Path, methods: tuple[Method, ...]) -> None:
        self.study, self.runs, self.methods = study, Runs(folder), methods

    @property
    def has_unadapted(self) -> bool:
        """Whether all controls, memories without adaptation, are among the methods."""
        return {method.name for method in self.methods}.issuperset(UNADAPTED)

    def value(self, case: Case, figure: str = FIGURE) -> float | None:
        """Returns a figure of a run; None where it has not been made, or failed."""
        text = self.study.all_runs.get(case, {}).get(figure)
        return float(text) if text else None

    def chosen(self, method: Method) -> Case | None:
        """Returns the setting of a method; None while the runs that choose it are not all made."""
        try:
            return self.runs.chosen(method)
        except ValueError:
            return None

    def confirmed(
        self, method: Method, data: str, figure: str = FIGURE, epochs: int | None = None
    ) -> dict[int, float]:
        """Returns the figure of a method's chosen setting on other classes, by seed."""
        case = self.chosen(method)
        found = (
            {}
            if case is None
            else {s: self.value(confirmed(case, data, s, epochs), figure) for s in CONFIRMED_SEEDS}
        )
        return {seed: value for seed, value in found.items() if value is not None}

    def by_class(self, method: Method, other: Method, data: str) -> str:
        """Returns a difference, and its interval over seeds and classes drawn anew."""
        cases = [self.chosen(one) for one in (method, other)]
        gaps, images = [], None
        for seed in CONFIRMED_SEEDS:
            found = [
                self.study.classes.get(confirmed(case, data, seed)) for case in cases if case is not None
            ]
            if len(found) == 2 and found[0] is not None and found[1] is not None:
                gaps.append(np.subtract(found[0][0], found[1][0]))
                images = np.array(found[0][1])
        if images is None:
            return "–"
        mean, low, high = bootstrap(np.array(gaps), images)
        return f"{mean:+.1f} ({low:+.1f} to {high:+.1f})"

    def best_without_memory(self, data: str) -> Method | None:
        """Returns no memory at the batch size where its mean on a domain is highest."""
        found = {m: self.confirmed(m, data).values() for m in self.methods if m.name in (NONE, CACHED)}
        means = {method: fmean(values) for method, values in found.items() if values}
        return max(means, key=lambda method: means[method]) if means else None


def _has_begun(study: Study, methods: tuple[Method, ...]) -> bool:
    """Whether there is a run of what is tried beside a memory, and not only of its rivals."""
    tried = (case for method in methods if method.name in DECIDED for case in trials(method))
    return any(case in study.all_runs for case in tried)


def _sections(report: Report, loss: str) -> Iterable[str]:
    if lines := [line for method in report.methods if (line := _choice(report, method))]:
        yield f"## {loss}: the choice"
        yield (
            "Recall@1 on the classes that choose, seed 0, by batch norm and rate. *Again* is the mean with "
            f"seed {SECOND_SEED}, of the two best."
        )
        most = max(map(len, lines))
        lines = [[*line[:-2], *["–"] * (most - len(line)), *line[-2:]] for line in lines]
        numbers = [f"trial {number}" for number in range(1, most - 3)]
        columns = ["batch", "method", *numbers, "again", "chosen"]
        yield markdown(columns, lines, ["method", *numbers, "chosen"])
    for data in domains(report.methods[0]):
        lines = [line for method in report.methods if (line := _confirmation(report, method, data))]
        if lines:
            best = report.best_without_memory(data)
            yield f"## {loss}: {_TITLES[data]}"
            yield (
                "The chosen settings, trained with seeds that no choice has seen. *Best none* is "
                f"no memory at batch {best.batch_size if best else '–'}."
            )
            columns = ["batch", "method", "batch norm, rate", "seeds", "Recall@1", "to none, same batch"]
            columns += ["to best none", "to XBN", "MAP@R", "minutes"]
            if report.has_unadapted:
                columns += ["to `xbm-star`", "to it, warmed up"]
            yield markdown(columns, lines, columns[1:3])
            if by_class := _by_class(report, data):
                yield by_class


def _choice(report: Report, method: Method) -> list[str]:
    values = [report.value(case) for case in trials(method)]
    if all(value is None for value in values):
        return []
    case = report.chosen(method)
    again = "–"
    if case is not None:
        pairs = [
            [report.runs.of(one), report.runs.of(replace(one, seed=SECOND_SEED))]
            for one in report.runs.finalists(method)
        ]
        again = ", ".join(f"{fmean(pair):.1f}" for pair in pairs)
    settings = [_setting(case) for case in trials(method)]
    cells = [f"{setting}: {_number(value)}" for setting, value in zip(settings, values, strict=True)]
    return [str(method.batch_size), method.name, *cells, again, _setting(case)]


def _number(value: float | None) -> str:
    return "–" if value is None else f"{value:.1f}"


def _longer_training(report: Report) -> list[str]:
    """Returns the section of the whole network for more epochs; none before the first of these runs."""
    none, xbn = Method(NONE, 64, trained="whole network"), Method("xbn", 64, trained="whole network")
    lines = []
    for data in domains(none):
        for epochs in (None, *MORE_EPOCHS):  # those of the choice, and more
            ours, theirs = (report.confirmed(method, data, epochs=epochs) for method in (xbn, none))
            gap = paired(ours, theirs)
            if gap is None:
                continue
            seeds = ours.keys() & theirs.keys()
            cells = [_TITLES[data], str(epochs or WHOLE_EPOCHS[64]), str(len(seeds))]
            cells += [spread([found[seed] for seed in seeds]) for found in (theirs, ours)]
            of_map = paired(*(report.confirmed(method, data, "map_at_r", epochs) for method in (xbn, none)))
            lines.append([*cells, str(gap), str(of_map)])
    if all(line[1] == str(WHOLE_EPOCHS[64]) for line in lines):
        return []
    columns = ["data", "epochs", "seeds", "no-xbm", "xbn", "xbn to no-xbm", "the same, MAP@R"]
    words = (
        "Batch 64, with the settings that were chosen for fewer epochs. Recall@1, of seeds that both have."
    )
    return [f"## The whole network for longer\n\n{words}\n\n{markdown(columns, lines, ['data'])}"]


def _setting(case: Case | None) -> str:
    if case is None:
        return "–"
    return f"{_NORMS[case.norm]}, {1e-3 * Budget.from_name(case.regime).rate:.0e}".replace("e-0", "e-")


def _confirmation(report: Report, method: Method, data: str) -> list[str]:
    ours = report.confirmed(method, data)
    if not ours:
        return []
    none = method._replace(name=NONE)
    best = report.best_without_memory(data)
    cells = [str(method.batch_size), method.name, _setting(report.chosen(method)), str(len(ours))]
    cells += [spread(list(ours.values()))]
    for other in (none, best, method._replace(name="xbn")):
        is_other = other is not None and other != method
        gap = paired(ours, report.confirmed(other, data)) if other and is_other else None
        cells.append(str(gap or "–"))
    longer = report.confirmed(method, data, epochs=EQUAL_TIME)
    if longer:
        cells[4] += f"; {EQUAL_TIME} epochs: {spread(list(longer.values()))}"
    for figure in ("map_at_r", "cpu_minutes"):
        cells.append(spread(list(report.confirmed(method, data, figure).values())))
    for name in UNADAPTED if report.has_unadapted else ():
        gap = (
            paired(ours, report.confirmed(method._replace(name=name), data)) if method.name != name else None
        )
        cells.append(str(gap or "–"))
    return cells


def _by_class(report: Report, data: str) -> str:
    lines = []
    for method in report.methods:
        if method.name in _BY_CLASS_OF:
            others = [method._replace(name=NONE), report.best_without_memory(data)]
            cells = [report.by_class(method, other, data) if other else "–" for other in others]
            if set(cells) != {"–"}:
                lines.append([str(method.batch_size), method.name, *cells])
    if not lines:
        return ""
    words = "With the 95 % interval of 10,000 bootstrap samples of both the seeds and the classes:"
    return (
        words
        + "\n\n"
        + markdown(["batch", "method", "to none, same batch", "to best none"], lines, ["method"])
    )
