"""Figures in sentences: each is what the table says that the sentence is about."""

from __future__ import annotations

from itertools import product
from pathlib import Path
from statistics import fmean

import pytest
from pictures.batch_noise import EPOCH, batch_share

from benchmarks.engine.intervals import Difference, paired
from benchmarks.engine.results import read_csv
from benchmarks.study.cases import KINDS, Case
from benchmarks.study.data import PUBLISHED, Setting, Study
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


def means(study: Study, method: str) -> list[str]:
    return [f"{fmean(study.values(method, setting).values()):.1f}" for setting in (LONG, EMOJI)]


@pytest.mark.parametrize("method", ["no-xbm", "xbm+warm-up", "xbn", "axbn"])
def test_the_first_table_of_the_readme(study: Study, method: str) -> None:
    assert f" | {' | '.join(means(study, method))} |" in words_of(README)


def figure(study: Study, setting: Setting, baseline: str) -> str:
    gap = study.differences(setting, baseline)["xbn"]
    return f"{gap.mean:.1f} ± {gap.half_width:.1f}"


def test_what_a_warm_up_leaves(study: Study) -> None:
    glyphs, emoji = (figure(study, setting, "xbm+warm-up") for setting in (LONG, EMOJI))
    words = words_of(README)
    assert f"ends {glyphs} (Glyphs) and {emoji} (Emoji) below XBN" in words
    assert f"Used from the first step, it ends at {' and '.join(means(study, 'xbm'))}" in words


def test_what_xbn_gains_in_long_runs(study: Study) -> None:
    glyphs, emoji = (figure(study, setting, "no-xbm") for setting in (LONG, EMOJI))
    words = words_of(DOCS / "which_variant.md")
    last = study.differences(ROWS["240 epochs"], "no-xbm")["xbn"].mean
    assert f"Glyphs +{glyphs}, Emoji +{emoji} points of Recall@1, +{last:.1f} after 240 epochs" in words
    assert f"+{figure(study, ROWS['ImageNet, batch 64, rate 1e-3'], 'no-xbm')} at the highest of" in words


def test_when_xbn_is_where_no_memory_ends_and_when_none_is(study: Study) -> None:
    taken: dict[str, list[str]] = {}
    shares: dict[str, list[float]] = {}
    for method, data, number in product(("xbn", "no-xbm"), ("glyphs", "emoji"), (60, 120, 240)):
        setting = (64, 0.5, "batch", f"{data}, {number} epochs")
        ends = study.values("no-xbm", setting)
        both = ends.keys() & study.values("xbn", setting)
        reached = [study.reaches(method, setting, seed, ends[seed]) for seed in both]
        assert all(reached)
        epochs = fmean(place[0] for place in reached if place)
        taken.setdefault(method + data, []).append(f"{epochs:.0f}")
        shares.setdefault(method, []).append(100 * epochs / number)
    glyphs, emoji, glyphs_itself, emoji_itself = ("{}, {} and {}".format(*x) for x in taken.values())
    page, readme, summary = map(words_of, (DOCS / "which_variant.md", README, DOCS / "study.md"))
    found = (
        f"{emoji} to where no memory ends (which takes {emoji_itself}), on Glyphs {glyphs} ({glyphs_itself})."
    )
    assert f"Of 60, 120 and 240 epochs it takes {found}" in page
    assert f"after {emoji} (without: {emoji_itself}), on Glyphs after {glyphs} ({glyphs_itself}; " in readme
    least, most = (f"{bound(shares['xbn']):.0f}" for bound in (min, max))
    assert 20 <= float(least) <= float(most) <= 60
    assert f"which itself takes {min(shares['no-xbm']):.0f} to {max(shares['no-xbm']):.0f} %." in summary


def test_how_near_xbm_comes_and_how_far_it_stays_from_none(study: Study) -> None:
    words, gains = words_of(DOCS / "which_variant.md"), []
    settings = ROWS["240 epochs, one seed"], ROWS["240 epochs"]
    glyphs, emoji = (f"{study.differences(x, 'xbm+warm-up')['xbn'].mean:.1f}" for x in settings)
    assert f"After 240 epochs XBM as published is {glyphs} below XBN on Glyphs, {emoji} on Emoji." in words
    for setting in {case.setting for case in study.runs if case.name in PUBLISHED and case.batch_size == 64}:
        found = study.differences(setting, "no-xbm")
        gains += [found[name].mean for name in PUBLISHED if name in found]
    figures = f"{-min(gains):.1f} below {{}} {max(gains):.1f} above at batch 64"
    assert figures.format("to") in words
    assert figures.format("and") in words_of(DOCS / "study.md")


def test_what_xbn_gains_over_a_large_batch(study: Study) -> None:
    gaps = []
    for regime in ("glyphs, 60 epochs", "emoji, 60 epochs"):
        of_xbn = study.values("xbn", (64, 0.5, "batch", regime))
        of_large = [study.values("no-xbm", setting) for setting in at_batch_512(regime).values()]
        gaps.append(cell(paired(of_xbn, max(of_large, key=lambda found: fmean(found.values())))).lstrip("+"))
    expected = "{} (Glyphs) and {} (Emoji) above the best of three rates".format(*gaps)
    assert f"after 60 epochs XBN at batch 64 is {expected}" in words_of(DOCS / "which_variant.md")


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


def cell(difference: Difference | None) -> str:
    if difference is None:
        return "–"
    half_width = "" if difference.half_width is None else f" ± {difference.half_width:.1f}"
    sign = "−" if difference.mean < 0 else "+"
    return f"{sign}{abs(difference.mean):.1f}{half_width}"


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
    assert [words.strip(" *") for words in line.split("|")[3:-1]] == [cell(one) for one in expected]


def test_what_a_momentum_encoder_gains_over_xbn(study: Study) -> None:
    glyphs, emoji = (cell(study.differences(x, "xbn")["xbm+momentum 0.99"]) for x in (LONG, EMOJI))
    assert f"are {glyphs} (Glyphs) and {emoji} (Emoji) to XBN" in words_of(DOCS / "which_variant.md")


def test_what_freezing_batch_norm_gives_and_how_far_its_noise_goes(study: Study) -> None:
    words = words_of(DOCS / "study.md")

    def recall(method: str, norm: str, rate: str) -> float:
        share = 0.0 if method == "no-xbm" else 0.5
        case = Case(method, 0, 16, share, norm, f"pretrained, 16 epochs{rate}", 0)
        return float(study.all_runs[case]["recall_at_1"])

    none, xbn = (recall(x, "frozen", ", rate x 0.1") - recall(x, "batch", "") for x in ("no-xbm", "xbn"))
    assert f"no memory ends {none:.1f} points higher and XBN {xbn:.1f} (one seed each" in words
    rows = [row for row in read_csv(RESULTS / "batch_noise.csv") if row["epoch"] == EPOCH]
    shares = {
        age: [batch_share(row) for row in rows if (row["age"], row["norm"]) == (age, "batch")]
        for age in ("1", "100")
    }
    first, last = (f"{100 * fmean(of_age):.0f}" for of_age in shares.values())
    assert f"is {first} % at the age of a step, and still {last} % after 100" in words
    cosines = [
        f"{float(row[f'positives_{place}_batch']):.2f}"
        for row in rows
        if (row["age"], row["norm"]) == ("0", "batch")
        for place in ("same", "other")
    ]
    expected = "a cosine of {} if they are embedded in the same batch of 16, and the same two have {} in"
    assert expected.format(*cosines[:2]) in words
    assert "({} and {} at 64)".format(*cosines[2:]) in words


def test_what_a_search_for_all_finds() -> None:
    tuning, words = Tuning(RESULTS), words_of(DOCS / "which_variant.md")
    others = ("no-xbm", "xbm", "xbm-star")
    is_fast = SUBGROUPS["learning rate ≥ 0.001"]
    parts = [lambda row, w=weight: float(row["batch_loss_weight"]) == w for weight in (0, 1)]
    parts += [lambda row, part=part: part(row) and is_fast(row) for part in parts]
    found = [cell(tuning.draw_difference("xbn", "no-xbm", part)) for part in parts]
    alone, beside, alone_if_fast, beside_if_fast = found
    assert f"to none it is {alone} alone and {beside} with `batch_loss_weight=1`" in words
    expected = f"XBN was {alone_if_fast} to none at rates from 0.001 on, with it {beside_if_fast}"
    assert expected in words_of(DOCS / "faq.md")
    none, xbm, star = (cell(tuning.draw_difference("xbn", other)) for other in others)
    assert f"XBN is {none} points of MAP@R to none, {xbm} to XBM (not filled) and {star} to XBM\\*" in words
    tested = tuning.tested("xbn", FIGURE)
    none, xbm, star = (cell(paired(tested, tuning.tested(other, FIGURE))) for other in others)
    recall = cell(paired(tuning.tested("xbn", "recall_at_1"), tuning.tested("no-xbm", "recall_at_1")))
    assert f"it is {none} to none (Recall@1 {recall}), {xbm} to XBM and {star} to XBM\\*" in words
    expected = f"Tuned alike on Emoji, XBN is {recall.lstrip('+')} points of Recall@1 above none"
    assert f"{expected}, and {none.lstrip('+')} of MAP@R" in words_of(README)


def test_what_was_asked_afterwards(study: Study) -> None:
    gaps, words = study.differences(EMOJI, "xbn"), words_of(DOCS / "which_variant.md")
    best = max((gaps[f"xbn+{kind}"] for kind in KINDS), key=lambda gap: gap.mean)
    assert f"XBN is at best {cell(best)} to XBN" in words
    sooner = (study.differences(x, "no-xbm")["xbm-star+warm-up of an epoch"] for x in (LONG, EMOJI))
    assert "with the batch's loss, is {} (Glyphs) and {} (Emoji) to none".format(*map(cell, sooner)) in words
