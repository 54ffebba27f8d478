"""Figures on the pages: each is what the CSV files say. The words around them are free."""

from __future__ import annotations

from itertools import product
from pathlib import Path
from statistics import fmean

import pytest
from pictures.batch_noise import EPOCH, batch_share
from pictures.classes import of_fine_tuning, of_the_papers

from benchmarks.engine.intervals import Difference, paired
from benchmarks.engine.results import read_csv
from benchmarks.study.cases import KINDS
from benchmarks.study.measured import PUBLISHED, Study
from benchmarks.study.report import at_batch_512
from benchmarks.tuning.results import FIGURE, SUBGROUPS, Tuning
from benchmarks.two_towers.report import experiments, gains, title

DOCS = Path(__file__).parents[1]
README = DOCS.parent / "README.md"
RESULTS = DOCS.parent / "benchmarks" / "results"


def words_of(page: Path) -> str:
    return " ".join(page.read_text(encoding="utf-8").split())


@pytest.fixture(scope="module")
def study() -> Study:
    return Study(RESULTS)


EMOJI = (64, 0.5, "batch", "emoji, 60 epochs")
LONG = (64, 0.5, "batch", "converged")
ROWS = {
    "batch 64, memory 50 %, 30 epochs": LONG,
    "60 epochs": (64, 0.5, "batch", "glyphs, 60 epochs"),
    "120 epochs (Glyphs)": (64, 0.5, "batch", "glyphs, 120 epochs"),
    "240 epochs, one seed": (64, 0.5, "batch", "glyphs, 240 epochs"),
    "batch 16, memory 10 %, 12 epochs": (16, 0.1, "batch", "converged"),
    "trained network, a tenth of the rate": (64, 0.5, "batch", "slow"),
    "batch 64, memory 50 %, 60 epochs": EMOJI,
    "60 epochs, 64 px": (64, 0.5, "batch", "emoji, 60 epochs, 64 px"),
    "30 epochs": (64, 0.5, "batch", "emoji, 30 epochs"),
    "120 epochs": (64, 0.5, "batch", "emoji, 120 epochs"),
    "240 epochs": (64, 0.5, "batch", "emoji, 240 epochs"),
    "ImageNet, batch 64, rate 1e-3": (64, 0.5, "batch", "pretrained, 16 epochs"),
    "ImageNet, batch 64, rate 3e-4": (64, 0.5, "batch", "pretrained, 16 epochs, rate x 0.3"),
    "ImageNet, batch 64, rate 1e-4": (64, 0.5, "batch", "pretrained, 16 epochs, rate x 0.1"),
    "ImageNet, batch 16, rate 1e-3": (16, 0.5, "batch", "pretrained, 16 epochs"),
    "ImageNet, batch 16, rate 3e-4": (16, 0.5, "batch", "pretrained, 16 epochs, rate x 0.3"),
    "ImageNet, batch 16, rate 1e-4": (16, 0.5, "batch", "pretrained, 16 epochs, rate x 0.1"),
}
TOWERS = {
    "Glyphs and names": "glyphs",
    "frozen definitions, queue of 1,024": "frozen-definitions",
    "Emoji and names": "names, batch 128",
    "definitions": "definitions, batch 128",
    "in ten languages": "names-10, batch 128",
}


WHICH, STUDY, DIAGNOSTICS = (DOCS / f"{name}.md" for name in ("which_variant", "study", "diagnostics"))
FINE_TUNING, BENCHMARKS = DOCS / "fine_tuning.md", DOCS / "benchmarks.md"


def cell(difference: Difference | None) -> str:
    if difference is None:
        return "–"
    half_width = "" if difference.half_width is None else f" ± {difference.half_width:.1f}"
    sign = "−" if difference.mean < 0 else "+"
    return f"{sign}{abs(difference.mean):.1f}{half_width}"


def is_above_zero(difference: Difference | None) -> bool:
    return bool(difference and difference.half_width) and difference.mean > difference.half_width


def assert_on(page: Path, *figures: str) -> None:
    words = words_of(page)
    assert [figure for figure in figures if figure not in words] == []


def without_sign(difference: Difference) -> str:
    return cell(difference).lstrip("+−")


@pytest.mark.parametrize("method", ["no-xbm", "xbm+warm-up", "xbm"])
def test_what_xbn_gains_from_random_weights(study: Study, method: str) -> None:
    gaps = [study.differences(setting, method)["xbn"] for setting in (LONG, EMOJI)]
    glyphs, emoji = map(cell, gaps)
    assert_on(
        WHICH, f"{glyphs} and {emoji} over" if method == "xbm" else f"{glyphs} (Glyphs) and {emoji} (Emoji)"
    )
    if method != "xbm":
        other = "no memory" if method == "no-xbm" else "a `CrossBatchMemory` that was warmed up"
        assert_on(README, "{} and {} over {}".format(*(f"{gap.mean:+.1f}" for gap in gaps), other))


def test_what_the_readme_says_of_a_pretrained_network() -> None:
    for loss, at_64, words in (
        ("SupCon", "centre+batch loss", "{} to {} over no memory"),
        ("MultiSimilarity", "xbn", "between {} and {}"),
    ):
        reports = [fine_tuned(f"{loss}: {data}") for data in ("Emoji", "Icons")]
        places = [("16", "xbn"), ("64", at_64)]
        gaps = [float(report[place][5].partition(" ")[0]) for report in reports for place in places]
        assert_on(README, words.format(*(f"{x:+.1f}".replace("-", "−") for x in (min(gaps), max(gaps)))))


@pytest.mark.parametrize("row", [*ROWS, *TOWERS])
def test_the_table_across_domains(study: Study, row: str) -> None:
    lines = (DOCS / "which_variant.md").read_text(encoding="utf-8").splitlines()
    (line,) = (line for line in lines if f"| {row} |" in line)
    if row in ROWS:
        found = study.differences(ROWS[row], "no-xbm")
        published = next((found[name] for name in PUBLISHED if name in found), None)
        expected = [published, found.get("xbm"), found.get("xbm-star"), found.get("xbn")]
    else:
        found = experiments(RESULTS).items()
        rows = next(rows for key, rows in found if title(dict(key)).startswith(TOWERS[row]))
        expected = [gains(rows).get(name) for name in ("", "stale", "stale-star", "adapted")]
    cells = [words.strip() for words in line.split("|")[3:-1]]
    assert cells == [f"**{cell(one)}**" if is_above_zero(one) else cell(one) for one in expected]


WIDER = ("batch 16, memory 10 %, 12 epochs", "60 epochs, 64 px", "ImageNet, batch 64, rate 1e-4")


def test_intervals_by_the_pairs_alone(study: Study) -> None:
    is_uncertain = set()
    for row, setting in ROWS.items():
        pooled = study.differences(setting, "no-xbm")["xbn"]
        own = paired(study.values("xbn", setting), study.values("no-xbm", setting))
        if own and own.half_width and pooled.half_width and pooled.mean > pooled.half_width:
            if row in WIDER:
                assert_on(WHICH, f"± {own.half_width:.1f}")
            if own.mean <= own.half_width:
                is_uncertain.add(row)
                assert_on(WHICH, f"(± {own.half_width:.1f})")
    assert is_uncertain == {"240 epochs"}


def fine_tuned(title: str) -> dict[tuple[str, str], list[str]]:
    """Returns the cells of a table of the report, which the CSV files make, by batch and method."""
    sections = (RESULTS / "fine_tuning.md").read_text(encoding="utf-8").split("\n## ")
    (section,) = (text for text in sections if text.startswith(title))
    lines = [line.split(" | ") for line in section.splitlines() if line.count("|") > 7]
    return {
        (line[0].strip("| "), line[1]): [words.replace("(", "").replace(")", "") for words in line]
        for line in lines
        if len(line) > 6
    }


def test_the_table_of_fine_tuning() -> None:
    titles = ("SupCon: Emoji", "SupCon: Icons", "MultiSimilarity: Emoji", "MultiSimilarity: Icons")
    reports = [fine_tuned(title) for title in titles]
    page = FINE_TUNING.read_text(encoding="utf-8").split("## What it gave")[1]
    page = page.partition("### More of the network")[0].splitlines()
    xbm, none_at_256 = "xbm+warm-up of an epoch", "no-xbm+cached in parts of 64"
    places = [("16", "no-xbm", 4), ("16", "xbn", 5), ("16", xbm, 5), ("64", "no-xbm", 4)]
    places += [("64", "xbn", 5), ("64", xbm, 5), ("256", none_at_256, 4), ("64", "xbn", 6)]
    table = [line for line in page if line.startswith("| ")][1:]
    assert len(table) == len(places)
    for line, (batch, method, column) in zip(table, places, strict=True):
        expected = [report[batch, method][column] for report in reports]
        if column == 4:
            expected = [text.partition(" ")[0] for text in expected]
        cells = [text.strip(" *").replace("−", "-") for text in line.split("|")[2:-1]]
        assert cells == expected


def test_batches_of_8_and_32() -> None:
    emoji, icons = (fine_tuned(f"SupCon: {data}") for data in ("Emoji", "Icons"))
    gaps = [report[batch, "xbn"][5] for batch in ("8", "32") for report in (emoji, icons)]
    below = [emoji[batch, "xbn"][6][1:] for batch in ("8", "32")]
    assert_on(FINE_TUNING, *gaps, f"by {below[0]} at 8 and {below[1]} at 32")


def test_a_memory_at_256() -> None:
    xbn = ("256", "xbn+cached in parts of 64")
    reports = [fine_tuned(f"A memory at batch 256: {data}") for data in ("Emoji", "Icons")]
    gaps = [report[xbn][6] for report in reports]
    assert all(gap.startswith("-") for gap in gaps)
    assert_on(FINE_TUNING, *(gap.replace("-", "−") for gap in gaps))
    assert_on(WHICH, " and ".join(gap.lstrip("-") for gap in gaps))
    choice = fine_tuned("A memory at batch 256: the choice")[xbn]
    assert_on(FINE_TUNING, f"{choice[9].strip('| ')} ({choice[8].split(', ')[0]})")


def test_what_adaptation_adds_to_the_loss_of_the_batch() -> None:
    title, star = "`CrossBatchMemory` with the batch's own loss", "xbm-star+warm-up of an epoch"
    reports = [fine_tuned(f"{title}: {data}") for data in ("Emoji", "Icons")]
    for batch in ("16", "64"):
        assert_on(FINE_TUNING, *(report[batch, star][7].lstrip("-") for report in reports))
    to_none = [report["64", star][5].replace("-", "−") for report in reports]
    assert_on(FINE_TUNING, " and ".join(to_none))


def test_what_the_whole_network_gives() -> None:
    report, choice = fine_tuned("The whole network: Emoji"), fine_tuned("The whole network: the choice")
    assert fine_tuned("The whole network, with the settings of three stages") == report
    page = FINE_TUNING.read_text(encoding="utf-8").split("### The whole network")[1].partition("###")[0]
    lines = [line for line in page.splitlines() if line.startswith("| ")][1:]
    places = [("64", "no-xbm", 4), ("64", "xbn", 5), ("256", "no-xbm+cached in parts of 64", 4)]
    for line, (batch, method, column) in zip(lines, [*places, ("64", "xbn", 6)], strict=True):
        found, minutes = (text.strip(" *").replace("−", "-") for text in line.split("|")[2:-1])
        expected = report[batch, method]
        assert found == (expected[column].partition(" ")[0] if column == 4 else expected[column])
        assert minutes in (expected[9].strip("| ").partition(" ")[0], "")
    none, (own, second) = (choice["64", method][5].split(", ") for method in ("no-xbm", "xbn"))
    assert f"{own} to {none[0]}" in page
    assert f"3e-4, had {second}" in page


def test_the_settings_that_were_chosen() -> None:
    choice, none_at_256 = fine_tuned("SupCon: the choice"), "no-xbm+cached in parts of 64"
    sizes = ("8", "16", "32", "64")
    for key in [*product(sizes, ("no-xbm", "xbn")), ("256", none_at_256)]:
        setting, mean = choice[key][9].strip("| "), choice[key][8].split(", ")[0]
        words = setting.replace("trains, ", "batch normalization *trains*, ")
        assert_on(FINE_TUNING, f"{words} ({mean})")
    assert_on(FINE_TUNING, f"frozen, 3e-4 ({choice['64', 'centre+batch loss'][8].split(', ')[0]})")


def test_what_is_said_of_a_transformer() -> None:
    report = fine_tuned("A text transformer: Senses")
    page = FINE_TUNING.read_text(encoding="utf-8").split("### Without batch normalization")[1]
    lines = [line for line in page.splitlines() if line.startswith("| ")][1:]
    methods = ("no-xbm", "xbn", "centre", "centre+momentum 0.99", "xbm+warm-up of an epoch", "xbn")
    for line, method, column in zip(lines, methods, (4, 5, 5, 5, 5, 6), strict=True):
        found = [text.strip() for text in line.split("|")[2:4]]
        cells = [report[batch, method][column] for batch in ("16", "64")]
        assert found == [text.partition(" ")[0] if column == 4 else text for text in cells]
    own = [report[batch, "xbm+warm-up of an epoch"][7] for batch in ("16", "64")]
    assert_on(FINE_TUNING, *(text.lstrip("+-") for text in own), report["16", "xbm+warm-up of an epoch"][6])
    for batch, method in product(("16", "64"), ("xbn", "xbm+warm-up of an epoch")):
        assert_on(WHICH, report[batch, method][5])


def test_what_xbn_gains(study: Study) -> None:
    gaps = [study.differences(setting, "no-xbm")["xbn"] for setting in (LONG, EMOJI, ROWS["240 epochs"])]
    assert_on(WHICH, *map(cell, gaps))
    beside = [study.differences(x, "xbn")["xbm+momentum 0.99"] for x in (LONG, EMOJI)]
    sooner = [study.differences(x, "no-xbm")["xbm-star+warm-up of an epoch"] for x in (LONG, EMOJI)]
    gaps_of_kinds = study.differences(EMOJI, "xbn")
    best = max((gaps_of_kinds[f"xbn+{kind}"] for kind in KINDS), key=lambda gap: gap.mean)
    assert_on(WHICH, *map(cell, (*beside, *sooner, best)))


def test_what_xbn_gains_over_a_large_batch(study: Study) -> None:
    for regime in ("glyphs, 60 epochs", "emoji, 60 epochs"):
        of_xbn = study.values("xbn", (64, 0.5, "batch", regime))
        of_large = [study.values("no-xbm", setting) for setting in at_batch_512(regime).values()]
        best = max(of_large, key=lambda found: fmean(found.values()))
        assert_on(WHICH, without_sign(paired(of_xbn, best)))


@pytest.mark.parametrize("row", [*product(("Glyphs", "Emoji"), (60, 120, 240))])
def test_from_when_on_a_run_stays_above_the_end_of_no_memory(study: Study, row: tuple[str, int]) -> None:
    data, number = row
    lines = WHICH.read_text(encoding="utf-8").splitlines()
    (line,) = (line for line in lines if line.startswith(f"| {data}, {number}") and "min" in line)
    setting = (64, 0.5, "batch", f"{data.lower()}, {number} epochs")
    ends = study.values("no-xbm", setting)
    cells = []
    for method in ("no-xbm", "xbm+warm-up", "xbm-star", "xbn"):
        found = [study.stays_above(method, setting, seed, end) for seed, end in ends.items()]
        stays = [place for place in found if place]
        epoch, minutes = (fmean(numbers) for numbers in zip(*stays, strict=True)) if stays else (0, 0)
        some = f", in {len(stays)} of {len(found)} runs" if len(stays) < len(found) else ""
        cells.append(f"{epoch:.0f} ({minutes:.1f} min){some}" if stays else "never")
    assert [text.strip() for text in line.split("|")[2:-1]] == cells


def test_how_far_the_noise_of_batch_normalization_goes() -> None:
    rows = [row for row in read_csv(RESULTS / "batch_noise.csv") if row["epoch"] == EPOCH]
    for age in ("1", "100"):
        shares = [batch_share(row) for row in rows if (row["age"], row["norm"]) == (age, "batch")]
        assert_on(STUDY, f"{100 * fmean(shares):.0f} %")
    assert_on(
        STUDY,
        *(
            f"{float(row[f'positives_{place}_batch']):.2f}"
            for row in rows
            if (row["age"], row["norm"]) == ("0", "batch")
            for place in ("same", "other")
        ),
    )


def test_how_much_of_the_spread_is_noise_of_the_batch() -> None:
    """`batch_noise` of unit rows, whose squared distance is 2 − 2 cos; 1 − 4/b of a batch was replaced."""
    shares = []
    for row in read_csv(RESULTS / "batch_noise.csv"):
        if (row["epoch"], row["age"], row["norm"]) == (EPOCH, "0", "batch"):
            size, noise = int(row["batch_size"]), float(row["of_batch"])
            positive, negative = (float(row[f"{kind}_other_batch"]) for kind in ("positives", "negatives"))
            cosine = (3 * positive + (size - 4) * negative) / (size - 1)
            shares.append(noise / (1 - 4 / size) / (2 - 2 * cosine))
    assert_on(DIAGNOSTICS, "{:.0f} % at batch 16, {:.0f} % at batch 64".format(*(100 * x for x in shares)))


def test_what_a_search_for_all_finds() -> None:
    tuning = Tuning(RESULTS)
    others = ("no-xbm", "xbm", "xbm-star")
    is_fast = SUBGROUPS["learning rate ≥ 0.001"]
    parts = [lambda row, w=weight: float(row["batch_loss_weight"]) == w for weight in (0, 1)]
    assert_on(WHICH, *(cell(tuning.draw_difference("xbn", "no-xbm", part)) for part in parts))
    fast = [lambda row, part=part: part(row) and is_fast(row) for part in parts]
    assert_on(DOCS / "faq.md", *(cell(tuning.draw_difference("xbn", "no-xbm", part)) for part in fast))
    assert_on(WHICH, *(cell(tuning.draw_difference("xbn", other)) for other in others))
    tested = tuning.tested("xbn", FIGURE)
    gaps = [paired(tested, tuning.tested(other, FIGURE)) for other in others]
    recall = paired(tuning.tested("xbn", "recall_at_1"), tuning.tested("no-xbm", "recall_at_1"))
    assert_on(WHICH, *map(cell, (*gaps, recall)))


def test_what_was_declared_of_fine_tuning() -> None:
    reports = [fine_tuned(f"SupCon: {data}") for data in ("Emoji", "Icons")]
    places = [("16", "centre", 5), ("16", "xbn", 5), ("64", "centre", 6), ("64", "xbn", 6)]
    places += [("64", method, 5) for method in ("centre+batch loss", "centre+evaluation rows")]
    for batch, method, column in places:
        emoji, icons = (report[batch, method][column] for report in reports)
        assert_on(FINE_TUNING, emoji.replace("-", "−"), icons.replace("-", "−"))
    xbm = [report[batch, "xbm+warm-up of an epoch"][7] for batch in ("16", "64") for report in reports]
    assert_on(FINE_TUNING, *(text.lstrip("-") for text in xbm))


def test_what_three_stages_give() -> None:
    reports = [fine_tuned(f"Three stages that train: {data}") for data in ("Emoji", "Icons")]
    page = FINE_TUNING.read_text(encoding="utf-8").split("### More of the network")[1].partition("###")[0]
    lines = [line for line in page.splitlines() if line.startswith("| ")][1:]
    places = [("16", "no-xbm", 4), ("16", "xbn", 5), ("64", "no-xbm", 4), ("64", "xbn", 5)]
    places += [("256", "no-xbm+cached in parts of 64", 4), ("64", "xbn", 6)]
    for line, (batch, method, column) in zip(lines, places, strict=True):
        expected = [report[batch, method][column] for report in reports]
        if column == 4:
            expected = [text.partition(" ")[0] for text in expected]
        assert [text.strip(" *").replace("−", "-") for text in line.split("|")[2:-1]] == expected


def test_what_a_step_costs_on_a_gpu() -> None:
    costs, behind = (read_csv(RESULTS / "gpu" / f"gpu_{name}.csv") for name in ("cost", "behind"))

    def ratios(method: str, *, is_large: bool, miner: str = "none", dtype: str = "") -> str:
        found = [
            float(row["ratio"])
            for row in costs
            if row["method"] == method
            and (int(row["rows"]) > 60_000) == is_large
            and miner in ("", row["miner"])
            and row["dtype"].startswith(dtype)
        ]
        return f"{min(found):.1f} to {max(found):.1f}"

    assert_on(
        BENCHMARKS,
        f"{ratios('XBN', is_large=False)} times as long by itself without a miner",
        f"and {ratios('XBN', is_large=False, miner='PairMarginMiner')} times with",
        f"it takes {ratios('XBN', is_large=True, miner='')} times as long",
        f"at a million rows {ratios('PC-XBN', is_large=True, miner='', dtype='float32')} (PC)",
    )
    added = {
        (row["rows"], row["batch"], row["method"], row["nonfinite"]): float(row["added_ms"]) for row in behind
    }
    pml, default, ignoring = (
        added[("60000", "64", *way)] for way in (("PML", ""), ("XBN", "raise"), ("XBN", "ignore"))
    )
    assert_on(
        BENCHMARKS,
        f"it adds {ignoring:.0f} ms, where by default it adds {default:.1f} and PML's class {pml:.1f}",
    )
    small = [
        added[size, batch, "XBN", "raise"] / value
        for (size, batch, method, _), value in added.items()
        if method == "PML" and int(size) <= 60_000
    ]
    assert_on(BENCHMARKS, f"it adds {min(small):.1f} to {max(small):.1f} times as much by default")
    assert_on(README, f"it adds {min(small):.1f} to {max(small):.1f} times as much as PML's class")


def test_what_a_step_costs_on_a_cpu() -> None:
    steps = {
        row["miner"]: float(row["ratio"])
        for row in read_csv(RESULTS / "step_cost_cpu.csv")
        if (row["method"], row["rows"], row["dim"], row["batch"]) == ("xbn", "60000", "512", "64")
        and row["loss"] == "supcon"
    }
    assert_on(
        BENCHMARKS,
        f"takes {100 * steps['none']:.0f} % of the time of PML's class, "
        f"and {100 * steps['pair-margin']:.0f} % with `PairMarginMiner`",
    )
    assert max(steps.values()) < 0.5
    assert_on(README, "the loss takes less than half of the time of PML's class")


def test_how_a_gpu_kept_the_contract() -> None:
    rows = read_csv(RESULTS / "gpu" / "gpu_contract.csv")
    judged = [row for row in rows if row["tolerance"] != "inf"]
    assert all(row["passed"] == "True" for row in judged)
    assert_on(BENCHMARKS, f"all {len(judged)} checks hold; {len(rows) - len(judged)} rows more count waits")


def test_the_picture_of_classes_has_the_papers_figures_and_the_studys(study: Study) -> None:
    papers = {(point.name, point.compared): point for point in of_the_papers()}
    assert papers["SOP, 64", "same"].gain.mean == pytest.approx(80.62 - 75.94)
    assert papers["SOP, 64", "four"].gain.mean == pytest.approx(80.62 - 78.69)
    assert papers["In-Shop, 64", "same"].gain.mean == pytest.approx(91.49 - 88.76)
    assert papers["Swin, SOP, 16", "same"].gain.mean == pytest.approx(86.25 - 77.80)
    assert papers["SOP, 64", "same"].share == pytest.approx(100 * 16 / 11_318)
    table = words_of(DOCS / "which_variant.md")
    for point in of_fine_tuning(RESULTS):
        if point.name in ("Emoji, 16", "icons, 16", "Emoji, 64") and point.compared == "same":
            assert point.gain.half_width is not None
            assert f"{point.gain.mean:+.1f} ± {point.gain.half_width:.1f}" in table
