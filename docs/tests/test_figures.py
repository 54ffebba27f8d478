"""Figures on the pages: each is what the CSV files say. The words around them are free."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from itertools import product, takewhile
from math import inf
from pathlib import Path
from statistics import fmean

import pytest
from on_pages import DOCS, README, RESULTS, assert_on, cell, row_of_readme, words_of
from pictures.batch_noise import EPOCH, batch_share
from pictures.classes import Point, of_fine_tuning, of_the_papers, of_two_towers
from pictures.front_page import drawn_points, figures_of
from pictures.gains import RANDOM, TRAINS, fine_tuning, of_settings, senses, two_towers
from pictures.noise_law import EXPECTED, distances
from PIL import Image
from scipy.stats import ttest_1samp

from benchmarks.engine.intervals import Difference, paired
from benchmarks.engine.results import read_csv
from benchmarks.han import cases as han
from benchmarks.han.report import CLASSES, Runs, sweep_values
from benchmarks.study.cases import KINDS
from benchmarks.study.fine_tuning import (
    CACHED,
    DECIDING,
    DOMAINS,
    FIRST_SEED,
    LARGE_BATCH,
    LIKE_XBM,
    MULTI_SIMILARITY,
    NONE,
    OTHER_SIZES,
    SECOND_CHANCE,
    SECOND_SEED,
    SENSES,
    SUPCON,
    THREE_STAGES,
    UNADAPTED,
    WHOLE_NETWORK,
    WHOLE_NETWORK_LONG,
    XBM_STAR,
    Method,
    domains,
    trials,
)
from benchmarks.study.fine_tuning_report import Report
from benchmarks.study.measured import Setting, Study
from benchmarks.study.report import REGIMES, at_batch_512
from benchmarks.tuning.results import FIGURE, SUBGROUPS, Tuning
from benchmarks.two_towers.report import experiments, gains, title


@pytest.fixture(scope="module")
def study() -> Study:
    return Study(RESULTS)


def at(data: str, epochs: int) -> Setting:
    """Returns the setting of batch 64 with half of the images in memory, from random weights."""
    regime = "converged" if (data, epochs) == ("glyphs", 30) else f"{data}, {epochs} epochs"
    return 64, 0.5, "batch", regime


Values = dict[int, float]  # by seed
EMOJI = (64, 0.5, "batch", "emoji, 60 epochs")
LONG = (64, 0.5, "batch", "converged")
SIXTY = (at("glyphs", 60), at("emoji", 60))
LATE = (64, 0.5, "batch", "emoji, 240 epochs")
ALWAYS = 0.6  # per cent of the classes, up to which all means that are drawn are gains
TWO_TOWERS = RESULTS / "two_towers.csv"
WHICH, BEHIND, GAINS, STUDY, DIAGNOSTICS = (
    DOCS / f"{name}.md" for name in ("which_variant", "behind_the_advice", "gains", "study", "diagnostics")
)
GUIDE, FINE_TUNING, BENCHMARKS, PAPERS, SIZE = (
    DOCS / f"{name}.md"
    for name in ("fine_tuning", "fine_tuning_evidence", "benchmarks", "paper_figures", "memory_size")
)
ADVICE = (
    "getting_started",
    "which_variant",
    "fine_tuning",
    "memory_size",
    "losses",
    "common_mistakes",
    "faq",
    "scale",
)


def is_above_zero(difference: Difference | None) -> bool:
    return bool(difference and difference.half_width) and difference.mean > difference.half_width


def without_sign(difference: Difference) -> str:
    return cell(difference).lstrip("+−")


def over(study: Study, settings: Sequence[Setting], method: str) -> list[Difference]:
    """Returns what XBN's defaults gain over a method in each of the settings."""
    return [study.differences(setting, method)["xbn"] for setting in settings]


@pytest.mark.parametrize("method", ["no-xbm", "xbm+warm-up"])
def test_what_xbn_gains_from_random_weights_after_60_epochs(study: Study, method: str) -> None:
    glyphs, emoji = map(cell, over(study, SIXTY, method))
    assert_on(GAINS, f"gains {glyphs} (Glyphs) and {emoji} (Emoji) after 60 epochs")


def test_what_xbn_gains_over_xbm_from_the_first_step(study: Study) -> None:
    glyphs, emoji = map(cell, over(study, (LONG, EMOJI), "xbm"))
    assert_on(GAINS, f"gains {glyphs} on Glyphs after 30 epochs, and {emoji} on Emoji after 60")


def test_what_xbn_gains_at_other_lengths(study: Study) -> None:
    glyphs = [cell(gap) for gap in over(study, (LONG, at("glyphs", 120)), "no-xbm")]
    assert len({*glyphs}) == 1
    assert_on(GAINS, f"much the same after 30 and 120: {glyphs[0]} both times")
    emoji = over(study, [at("emoji", epochs) for epochs in (30, 120, 240)], "no-xbm")
    assert_on(GAINS, "It gains {} after 30 epochs, {} after 120 and {} after 240.".format(*map(cell, emoji)))
    assert [is_above_zero(gap) for gap in emoji] == [False, True, False]
    short, _, late = (f"{gap.mean:.1f}" for gap in emoji)
    assert_on(BEHIND, f"After 30 it is {short} and after 240 it is {late}, neither certain")
    over_xbm = [cell(gap) for gap in over(study, [at("emoji", 30)], "xbm+warm-up")]
    assert_on(GAINS, f"On Emoji it is {over_xbm[0]} after 30")
    warmed = [gap.mean for gap in over(study, [*SIXTY, at("glyphs", 120)], "xbm+warm-up")]
    assert_on(
        BEHIND,
        "it is {:.1f} and {:.1f} after 60 epochs. On Glyphs that lead falls to {:.1f} at 120.".format(
            *warmed
        ),
    )


def test_the_range_of_what_xbn_gains_from_random_weights(study: Study) -> None:
    """At batch 64 with half in memory; over 512 with the best of three rates. Emoji after 30 is apart."""
    lengths = [at(*place) for place in product(("glyphs", "emoji"), (30, 60, 120, 240))]
    settings = [setting for setting in lengths if setting != at("emoji", 30)]
    gaps = [gap.mean for gap in over(study, settings, "no-xbm")]
    large = [over_batch_512(study, setting).mean for setting in settings]
    words = f"{min(gaps):.1f} to {max(gaps):.1f} at batch 64 with half of the images in memory, and "
    assert_on(BEHIND, f"{words}{min(large):.1f} to {max(large):.1f} over a batch of 512")
    excluded = at("emoji", 30)
    assert over(study, [excluded], "no-xbm")[0].mean < min(gaps)
    assert over_batch_512(study, excluded).mean < min(large)
    glyphs = [gap.mean for gap in over(study, lengths[:4], "no-xbm")]
    assert_on(BEHIND, f"On Glyphs it is {min(glyphs):.1f} to {max(glyphs):.1f} after 30 to 240 epochs")
    emoji = [gap.mean for gap in over(study, lengths[5:7], "no-xbm")]
    assert_on(BEHIND, "On Emoji it is {:.1f} and {:.1f} after 60 and 120 epochs".format(*emoji))
    places = product((0.5, 0.1), ("batch", "group"))
    short = [gap.mean for gap in over(study, [(64, *place, "fast") for place in places], "no-xbm")]
    assert_on(BEHIND, f"it is {min(short):.1f} to {max(short):.1f} at batch 64")


def test_equal_time_on_glyphs(study: Study) -> None:
    """XBN of 60 epochs and no memory of 120, batch 64, half in memory: the same minutes, or fewer."""
    ours, theirs = at("glyphs", 60), at("glyphs", 120)
    gap = paired(study.values("xbn", ours), study.values("no-xbm", theirs))
    minutes = [
        fmean(study.values(*run, "cpu_minutes").values()) for run in (("xbn", ours), ("no-xbm", theirs))
    ]
    assert minutes[0] < minutes[1]
    assert_on(
        GAINS,
        f"is {cell(gap)} over no memory for 120: {minutes[0]:.1f} and {minutes[1]:.1f} minutes of a core",
    )
    assert gap is not None
    assert_on(BEHIND, f"In equal time it is {gap.mean:.1f}: 60 epochs with XBN against 120 without")


def test_a_large_batch_that_gains_nothing_does_not_tell_of_a_memory(study: Study) -> None:
    """From random weights on Emoji: no memory at 512 (best of three rates) and XBN at 64, to none at 64."""
    settings = (at("emoji", 120), (64, 0.5, "batch", "emoji, 60 epochs, 64 px"))
    for setting in settings:
        large = paired(batch_512(study, setting), study.values("no-xbm", setting))
        memory = study.differences(setting, "no-xbm")["xbn"]
        assert not is_above_zero(large)
        assert is_above_zero(memory)
        assert_on(GAINS, cell(large), cell(memory))


def of_the_last_stage(study: Study, name: str, size: int, methods: Sequence[Method] = SUPCON) -> list[Values]:
    """Returns Recall@1 by seed of a chosen setting, SupCon, on Emoji's classes kept back and on icons."""
    report = Report(study, RESULTS, tuple(methods))
    return [report.confirmed(Method(name, size), data) for data in DOMAINS]


def gaps_of(ours: Sequence[Values], theirs: Sequence[Values]) -> list[Difference]:
    found = [paired(*pair) for pair in zip(ours, theirs, strict=True)]
    return [gap for gap in found if gap is not None]


def means_of(gaps: Sequence[Difference]) -> str:
    return " and ".join(f"{gap.mean:+.1f}" for gap in gaps)


def marked(gaps: Sequence[Difference]) -> str:
    """Means, with a mark where the interval holds zero."""
    marks = ["" if abs(gap.mean) > (gap.half_width or inf) else " †" for gap in gaps]
    return " and ".join(f"{gap.mean:+.1f}{mark}" for gap, mark in zip(gaps, marks, strict=True))


def test_the_table_of_the_readme(study: Study) -> None:
    """At batch 64: over no memory there and at a larger batch, and over XBM, warmed up and filled."""
    rows = []
    late = [at(data, 120) for data in ("glyphs", "emoji")]
    large = [over_batch_512(study, setting) for setting in late]
    over_xbm = over(study, SIXTY, "xbm+warm-up")
    rows.append([marked(over(study, late, "no-xbm")), marked(large), means_of(over_xbm)])
    advised, none = (of_the_last_stage(study, name, 64) for name in ("centre+batch loss", "no-xbm"))
    best = [
        max(
            (of_the_last_stage(study, CACHED, size)[place] for size in (256, 512)),
            key=lambda found: fmean(found.values()),
        )
        for place in (0, 1)
    ]
    star = of_the_last_stage(study, "xbm-star+warm-up of an epoch", 64, XBM_STAR)
    over_none, over_star = gaps_of(advised, none), gaps_of(advised, star)
    assert [is_above_zero(gap) for gap in over_none] == [True, False]
    rows.append(
        [
            marked(over_none),
            marked(gaps_of(advised, best)),
            means_of(over_star),
        ]
    )
    long, short = (
        [[report["64", "xbn"][column] for report in on_both(title)] for column in (5, 6)]
        for title in ("The whole network, 16 epochs", "The whole network")
    )

    star = "What may save a memory in the whole network"
    over_star = " and ".join(
        x["64", "xbn+batch loss"][11].strip("| ").partition(" ")[0] for x in on_both(star)
    )
    rows.append([*(" and ".join(map(mark, gaps)) for gaps in long), over_star])
    at_64, at_512 = ([80.62 - 75.94, 91.49 - 88.76], [80.62 - 79.63, 91.49 - 90.39])  # AXBN, Table 2
    same, larger = (" and ".join(f"{gap:+.1f}" for gap in gaps) for gaps in (at_64, at_512))
    rows.append([same, larger, "not measured"])
    gaps = [row.pop() for row in rows]
    assert [row[0] for row in cells_below(BEHIND, "| You train | XBN over")[1:]] == gaps
    columns = [(same.split(" and "), larger.split(" and ")) for same, larger in rows]
    of_each = [pair for both in columns for pair in zip(*both, strict=True)]
    found = cells_below(BEHIND, "| You train | Classes")[2:]  # behind those of Han
    assert [tuple(row[2:4]) for row in found] == of_each
    whole = "all of a pretrained network, {} epochs"
    of_long, of_short = ([" and ".join(map(as_in_readme, gaps)) for gaps in found] for found in (long, short))
    assert row_of_readme(whole.format(16), "882 and 510") == [
        *of_long,
        "the same runs: they took 13 % longer than XBN",
    ]
    assert row_of_readme(whole.format(4), "882 and 510") == [*of_short, "–"]
    lost = [float(gap.partition(" ")[0]) for gap in short[0]]
    assert_on(
        BEHIND,
        "; in four epochs {:+.1f} and {:+.1f} †, and {} and {}".format(
            *lost, *(gap.partition(" ")[0] for gap in short[1])
        ).replace("-", "−"),
    )
    of_larger = " and ".join(
        f"{signed_numbers(pair)[1]:.1f} ({classes})"
        for pair, classes in zip(of_each[6:], ("11,318", "3,997"), strict=True)
    )
    gained = {point.name: point.gain.mean for point in of_the_papers() if point.compared == "same"}
    (of_256,) = [gained.pop(name) for name in [*gained] if name.endswith("256")]
    assert row_of_readme("all of a pretrained network (AXBN paper)", "3,997 to 31,500") == [
        f"{min(gained.values()):.1f} to {max(gained.values()):.1f} ({of_256:.1f} at batch 256)",
        of_larger,
        "nobody has tried",
    ]
    slow = paired(study.values("xbn", at("glyphs", 60)), batch_512(study, at("glyphs", 120)))
    fast = paired(study.values("xbn", at("glyphs", 60)), batch_512(study, at("glyphs", 60)))
    assert slow is not None
    assert fast is not None
    # On Emoji, and for the last stage, the runs that saw as many images took as long.
    assert slow.mean < 0 < fast.mean
    assert_on(BEHIND, f"it was between {-slow.mean:.1f} points less and {fast.mean:.1f} more")
    of_emoji = over_batch_512(study, at("emoji", 60)).mean
    assert over_batch_512(study, at("emoji", 120)).mean < of_emoji
    assert_on(BEHIND, f"60 epochs took 1.3 and 1.5, where XBN is {of_emoji:.1f} above")
    assert_on(
        BEHIND,
        f"That batch scored {-slow.mean:.1f} more after 120 epochs (12.1 minutes;",
        f"and {fast.mean:.1f} less after 60",
        "120 took 3.3 and 3.2",
    )
    same, larger = emoji_by_length(study)
    assert_on(
        BEHIND,
        "it is {:+.1f} (not certain), {:+.1f}, {:+.1f} and {:+.1f} (not certain) after 30,".format(*same),
        "{:+.1f}, {:+.1f}, {:+.1f} and {:+.1f} over the larger batch, of which only the second".format(
            *larger
        ),
    )
    below = [float(x) for text in gaps[:3] for x in text.split(" and ")]
    below += [gap.mean for gap in over(study, OF_RANDOM_WEIGHTS, "xbm+warm-up")]
    xbn, xbm = (of_the_last_stage(study, name, 64) for name in ("xbn", LIKE_XBM))
    below += [gap.mean for gap in gaps_of(xbn, xbm)]
    runs = Runs(RESULTS)
    ours, theirs = (sweep_values(runs, han.memory(x), 1_400, "recall_at_1") for x in ("xbn", "xbm"))
    below.append(paired(ours, theirs).mean)
    least, most = f"{min(below):.1f}", f"{max(below):.1f}"
    began = "warmed up and filled | from the first step (with 1,400 classes of Han warmed up and filled)"
    assert_on(WHICH, f"| 510 to 2,172 | {began} | {least} (may be chance) to {most} points higher |")
    assert_on(BEHIND, f"In all settings of ours with so few classes XBN was {least} to {most} above it")
    assert_on(README, f"XBN scored {least} (may be chance) to {most} points *higher* on 510 to")
    place = 64, 0.5, "batch", "pretrained, 16 epochs, rate x 0.3"
    at_another_rate = study.differences(place, LIKE_XBM)["xbn"]
    assert_on(BEHIND, f"({at_another_rate.mean:.1f} at a learning rate that is best for neither)")


# Glyphs and Emoji after all lengths of training.
OF_RANDOM_WEIGHTS = [
    *(LONG, *(at("glyphs", epochs) for epochs in (60, 120, 240))),
    *(at("emoji", epochs) for epochs in (30, 60, 120, 240)),
]


def test_what_the_readme_says_of_random_weights(study: Study) -> None:
    """After 120 epochs; in equal time 60 epochs with XBN against 120 without on Glyphs, and 60 on Emoji."""
    late, short = ([at(data, epochs) for data in ("glyphs", "emoji")] for epochs in (120, 60))
    gains = [
        marked(gaps).replace("+", "")
        for gaps in (over(study, late, "no-xbm"), [over_batch_512(study, x) for x in late])
    ]
    slow = paired(study.values("xbn", short[0]), batch_512(study, late[0]))
    equal = [marked([gap]).replace("-", "−").lstrip("+") for gap in (slow, over_batch_512(study, short[1]))]
    found = row_of_readme("from random weights, 120 epochs", "2,172 and 882")
    assert found == [*gains, " to ".join(equal)]
    others = [gap.mean for gap in over(study, OF_RANDOM_WEIGHTS, "no-xbm")]
    assert_on(README, f"gained {min(others):.1f} † to {max(others):.1f} over the same batch")


def test_what_the_readme_says_of_last_layers(study: Study) -> None:
    """Batch 64, five seeds: the last stage with the defaults and as advised, and three stages."""
    settings = [("xbn", "SupCon"), ("centre+batch loss", "SupCon"), ("xbn", "Three stages that train")]
    rows = [report["64", method] for method, title in settings for report in on_both(title)]
    said = row_of_readme("the last stage, or three of seven, of a pretrained network", "882 and 510")
    for column, words in zip((5, 6), said[:2], strict=True):
        gaps = [row[column].split(" ± ") for row in rows]
        assert not all(float(mean) > float(half_width) for mean, half_width in gaps)  # †
        means = sorted(float(mean) for mean, _ in gaps)
        assert words == f"{means[0]} to {means[-1]} †".replace("-", "−")
    texts = {(x.name, x.compared): x.gain for x in of_fine_tuning(RESULTS) if x.kind == "senses of words"}
    words = "the last layer of a pretrained text network, batches of 16 and 64"
    assert row_of_readme(words, "873")[:2] == [
        marked([texts[f"senses, {size}", compared] for size in (16, 64)]).replace("+", "")
        for compared in ("same", "four")
    ]
    lost = [-x.gain.mean for x in drawn_points(RESULTS) if x.share > 7 and x.gain.mean < 0]
    assert_on(README, f"and XBN lost {min(lost):.1f} to {max(lost):.1f} there (one network")


def mark(gap: str) -> str:
    """Returns the mean of a difference as tables write it, with a mark where the interval includes zero."""
    mean, half_width = map(float, gap.split(" ± "))
    return f"{mean:+.1f}{' †' if abs(mean) < half_width else ''}"


def as_in_readme(gap: str) -> str:
    """Returns the same as the README's table has it."""
    return mark(gap).removeprefix("+").replace("-", "−")


def signed_numbers(cells: Iterable[str]) -> list[float]:
    """Returns the numbers of cells, without their marks."""
    return [float(text.removesuffix(" †").replace("−", "-")) for text in cells]


def emoji_by_length(study: Study) -> tuple[list[float], list[float]]:
    """Returns what XBN gains after 30, 60, 120 and 240 epochs, over no memory at batch 64 and at 512."""
    settings = [at("emoji", epochs) for epochs in (30, 60, 120, 240)]
    same = [gap.mean for gap in over(study, settings, "no-xbm")]
    return same, [over_batch_512(study, setting).mean for setting in settings]


def cells_below(page: Path, head: str) -> list[list[str]]:
    """Returns the figures of a table, a list a row."""
    lines = page.read_text(encoding="utf-8").partition(head)[2].splitlines()[2:]
    rows = takewhile(lambda line: line.startswith("|"), lines)
    return [[text.strip().replace("−", "-") for text in row.split("|")[2:-1]] for row in rows]


def test_the_last_stage_with_the_defaults_and_over_xbm(study: Study) -> None:
    """Batch 64: the defaults (batch normalization trains), and the advised setting (frozen) over two XBMs."""
    report = Report(study, RESULTS, SUPCON)
    norms = {name: report.chosen(Method(name, 64)).norm for name in ("xbn", "centre+batch loss", LIKE_XBM)}
    star_report = Report(study, RESULTS, XBM_STAR)
    norms["star"] = star_report.chosen(Method("xbm-star+warm-up of an epoch", 64)).norm
    assert norms == {"xbn": "batch", "centre+batch loss": "frozen", LIKE_XBM: "batch", "star": "frozen"}
    none, defaults, advised, xbm = (
        of_the_last_stage(study, name, 64) for name in ("no-xbm", "xbn", "centre+batch loss", LIKE_XBM)
    )
    star = of_the_last_stage(study, "xbm-star+warm-up of an epoch", 64, XBM_STAR)
    gained = "{:.1f} and {:.1f}".format(*(gap.mean for gap in gaps_of(defaults, none)))
    assert_on(BEHIND, f"The defaults, with batch normalization that trains, gained {gained}.")
    over_xbm, over_star = gaps_of(advised, xbm), gaps_of(advised, star)
    assert_on(FINE_TUNING, *(" and ".join(map(cell, gaps)) for gaps in (over_xbm, over_star)))
    above = "{:.1f} and {:.1f}".format(*(gap.mean for gap in over_xbm))
    assert_on(BEHIND, f"beside it; plain, it is {above} below XBN.")
    assert_on(
        BEHIND,
        "that setting is {:.1f} and {:.1f} above at 64".format(*(gap.mean for gap in over_star)),
        "is {:.1f} and {:.1f} below that setting, and below".format(*(gap.mean for gap in over_xbm)),
        "the setting of the table gained {:.1f} and {:.1f} (the second is not certain)".format(
            *(gap.mean for gap in gaps_of(advised, none))
        ),
    )
    assert all(gap.mean < 0 for gap in gaps_of(xbm, none))  # "It is below no memory there"
    frozen = of_the_last_stage(study, "centre+evaluation rows", 64)  # with frozen layers centring alone
    added = gaps_of(advised, frozen)
    assert_on(BEHIND, "added {:.1f} and {:.1f} to centring".format(*(gap.mean for gap in added)))
    assert all(abs(gap.mean) < gap.half_width for gap in gaps_of(advised, defaults))  # "level"
    at_16 = gaps_of(of_the_last_stage(study, LIKE_XBM, 16), of_the_last_stage(study, "no-xbm", 16))
    assert_on(
        BEHIND,
        f"`CrossBatchMemory` gained {at_16[0].mean:.1f} on Emoji and lost {-at_16[1].mean:.1f} on icons",
    )


def test_a_batch_of_256_takes_the_same_minutes_and_was_never_certainly_beaten(study: Study) -> None:
    """The last stage, SupCon: every memory at 8 to 64 against no memory at 256."""
    report, large = Report(study, RESULTS, SUPCON + OTHER_SIZES), Method(CACHED, 256)
    for data in DOMAINS:
        theirs = report.confirmed(large, data)
        memories = [m for m in SUPCON + OTHER_SIZES if m.name not in (NONE, CACHED)]
        assert not any(is_above_zero(paired(report.confirmed(m, data), theirs)) for m in memories)
        for method in (large, Method("centre+batch loss", 64)):
            minutes = fmean(report.confirmed(method, data, "cpu_minutes").values())
            assert minutes == pytest.approx(0.7, abs=0.06)
    assert_on(
        BEHIND, "in the minutes that a batch of 256 takes.", "took the same time, 0.7 minutes of a core"
    )


def test_what_the_picture_of_the_readme_says_of_small_and_large_shares() -> None:
    points = [*drawn_points(RESULTS)]
    small = [x.gain for x in points if x.share <= ALWAYS]
    assert all(gain.mean > 0 for gain in small)  # "mostly gained": certainly so in most that have a bar
    with_bars = [gain for gain in small if gain.half_width]
    assert len(with_bars) / 2 < sum(map(is_above_zero, with_bars)) < len(with_bars)
    large = {x.name: x for x in points if x.share > 7}
    lost = sorted(round(x.share) for x in large.values() if x.gain.mean < 0)
    (won,) = (x for x in large.values() if x.gain.mean > 0)
    assert_on(
        WHICH,
        "| 7 % or more | lost at {} and {} %".format(*lost),
        f"From random weights 350 classes of Han ({won.share:.0f} %) gained {won.gain.mean:.1f}",
    )
    assert not [x for x in points if 3.2 < x.share <= 7 and not x.name.startswith("icons, 64")]


DRAWN = (SUPCON + OTHER_SIZES, THREE_STAGES, WHOLE_NETWORK_LONG, MULTI_SIMILARITY, SENSES, LARGE_BATCH)


@pytest.mark.parametrize("points", [of_fine_tuning, drawn_points], ids=["which variant", "readme"])
def test_both_pictures_draw_all_declared_batch_sizes(points: Callable[[Path], Iterable[Point]]) -> None:
    titles = {"pretrained": "Emoji", "pretrained icons": "icons", "pretrained senses": "senses"}
    declared = [
        f"{titles[data]}, {method.batch_size}"
        for methods in DRAWN
        for method in methods
        if method.name.startswith("xbn")
        for data in domains(method)
    ]
    kinds = ("fine-tuning", "senses", "last layers")
    found = [x for x in points(RESULTS) if x.compared == "same" and x.kind.startswith(kinds)]
    drawn = [x.name for x in found if not x.name.startswith("Han")]
    assert sorted(drawn) == sorted(declared)
    assert {name for name in drawn if name.startswith("Emoji")} == {
        f"Emoji, {n}" for n in (8, 16, 32, 64, 256)
    }


def test_the_second_picture_has_every_batch_that_was_trained_at_four_times_the_size() -> None:
    drawn = [x.name for x in of_fine_tuning(RESULTS) if x.compared == "four"]
    assert {"Emoji, 8", "icons, 8", "Emoji, 16", "icons, 16", "Emoji, 64", "icons, 64", "senses, 16"} <= {
        *drawn
    }
    assert not [name for name in drawn if name.endswith(" 32")]
    assert_on(WHICH, "The second picture has no mark for 32, as no batch of 128 was trained.")


def test_small_shares() -> None:
    """Up to 0.3 % and up to 0.6 % of the classes in a batch, at chosen settings and equal images."""
    points = [*of_fine_tuning(RESULTS), *of_two_towers(RESULTS), *of_the_papers()]
    named = {(x.name, x.compared): x.gain for x in points if x.share < 0.3}
    same, four = named["Emoji, 8", "same"], named["Emoji, 8", "four"]
    assert not is_above_zero(same)
    assert_on(
        BEHIND,
        f"at batch 8 (0.2 %) XBN gained {same.mean:.1f}, which is not certain, and was "
        f"{-four.mean:.1f} below",
    )
    texts = [named[f"{kind}definitions, 32", "same"] for kind in ("", "frozen-")]
    assert [is_above_zero(gain) for gain in texts] == [False, True]
    assert_on(
        BEHIND, "For pairs of texts it gained {:.1f} (not certain) to {:.1f}".format(*(x.mean for x in texts))
    )
    many = [x.gain.mean for x in of_the_papers() if x.compared == "same" and x.share < 0.3]
    many.append(Runs(RESULTS).difference(han.Case("xbn"), han.none(64), "recall_at_1").mean)
    assert_on(WHICH, f"gained {min(many):.0f} to {max(many):.0f} with thousands of classes")
    between = [x for x in points if 0.35 < x.share <= ALWAYS]
    gains_there = [x.gain for x in between if x.compared == "same"]
    with_bars = [gain for gain in gains_there if gain.half_width]
    assert all(gain.mean > 0 for gain in gains_there)
    assert len(with_bars) / 2 < sum(map(is_above_zero, with_bars)) < len(with_bars)
    to_larger = [x.gain for x in between if x.compared == "four" and x.kind != "papers"]
    lost = sum(gain.mean < -gain.half_width for gain in to_larger)
    won = sum(map(is_above_zero, to_larger))
    assert lost + won == len(to_larger)
    assert (lost, won) == (4, 1)
    assert_on(WHICH, "in every comparison, most of them certain", "it was below in four and above in one")


def test_within_a_data_set_a_smaller_share_did_not_gain_more() -> None:
    """The last stage, SupCon, the defaults at chosen settings, batches of 8, 16, 32 and 64."""
    found = {x.name: x.gain for x in of_fine_tuning(RESULTS) if x.compared == "same" and "SupCon" in x.kind}
    four = {x.name: x.gain for x in of_fine_tuning(RESULTS) if x.compared == "four" and "SupCon" in x.kind}
    report = Report(Study(RESULTS), RESULTS, SUPCON + OTHER_SIZES)
    for name, data in zip(("Emoji", "icons"), DOMAINS, strict=True):
        gained = [
            paired(report.confirmed(Method("xbn", n), data), report.confirmed(Method(NONE, n), data))
            for n in (8, 16, 32, 64)
        ]
        assert gained[0].mean < max(gap.mean for gap in gained)
        assert cell(gained[0]) == cell(found[f"{name}, 8"])
        small = paired(report.confirmed(Method("xbn", 8), data), report.confirmed(Method(NONE, 32), data))
        assert cell(small) == cell(four[f"{name}, 8"])
        assert_on(FINE_TUNING, cell(small))
    assert_on(
        BEHIND,
        "a smaller share gained more for word senses (batch 16 against 64), "
        "and not in fine-tuning on Emoji and icons (8 to 64).",
    )


def test_the_mark_of_the_whole_network_stands_at_its_share() -> None:
    whole = [point.share for point in drawn_points(RESULTS) if point.kind == "fine-tuning, whole network"]
    assert sorted(whole) == pytest.approx([100 * 32 / CLASSES, 100 * 16 / 882, 100 * 16 / 510])


def test_the_steps_are_the_same_on_the_overview() -> None:
    readme, overview = (
        re.sub(r"\[(.+?)\](\(.+?\)|\[.+?\])", r"\1", words_of(page)) for page in (README, DOCS / "index.md")
    )
    steps = readme[readme.index("XBN gives a loss more images") : readme.index(" ## What you can rely on")]
    assert steps in overview


def test_what_the_pages_say_of_one_search_for_all() -> None:
    """60 draws of each method on Emoji, Recall@1; the best of each on classes kept back."""
    tuning = Tuning(RESULTS)
    tuned = paired(tuning.tested("xbn", "recall_at_1"), tuning.tested("no-xbm", "recall_at_1"))
    assert not is_above_zero(tuned)
    best = tuning.searched("xbn")[tuning.best("xbn")]
    assert (float(best["batch_loss_weight"]), float(best["memory_share"])) == (1, 1)
    none = {n: float(row["recall_at_1"]) for n, row in tuning.searched("no-xbm").items()}
    without, with_it = (
        paired(
            {
                n: float(row["recall_at_1"])
                for n, row in tuning.searched("xbn").items()
                if float(row["batch_loss_weight"]) == weight
            },
            none,
        )
        for weight in (0, 1)
    )
    assert_on(
        BEHIND,
        f"the best of XBN was {tuned.mean:.1f} above the best without a memory ([may be chance]",
        f"settings without it were on average {-without.mean:.1f} below no memory.",
    )
    assert_on(
        BEHIND,
        f"the best setting gained {tuned.mean:.1f}, which may be chance",
        f"XBN without that weight was {-without.mean:.1f} below no memory, and with it "
        f"{with_it.mean:.1f} above",
    )
    assert_on(GAINS, f"In Recall@1, over all rates, they are {cell(without)} and {cell(with_it)}.")


def test_the_picture_of_the_readme_is_drawn_from_the_results() -> None:
    with Image.open(DOCS / "images" / "gain.png") as picture:
        drawn = picture.info["Description"]
    assert drawn == figures_of(drawn_points(RESULTS)), "draw it anew: python -m docs.pictures.front_page"


def test_what_a_classification_loss_beside_adds(study: Study) -> None:
    both = [
        study.differences(place, "xbn")["xbn+proxies"]
        for place in ((64, 0.1, "batch", "fast"), (16, 0.03, "batch", "fast"))
    ]
    assert_on(
        GAINS,
        "(proxies) is {} in Recall@1 against XBN alone in the same short training, and {} at batch".format(
            *map(cell, both)
        ),
    )


def test_how_many_draws_have_which_loss() -> None:
    tuning = Tuning(RESULTS)
    losses = [row["loss"] for row in tuning.searched("xbn").values()]
    with_supcon, others = losses.count("supcon"), losses.count("contrastive")
    assert_on(GAINS, f"({with_supcon} with `SupConLoss`, {others} with the contrastive loss;")
    assert_on(BEHIND, f"of which {others} have the contrastive loss")
    none = {n: float(row["recall_at_1"]) for n, row in tuning.searched("no-xbm").items()}
    without = {
        n: float(row["recall_at_1"])
        for n, row in tuning.searched("xbn").items()
        if row["loss"] == "supcon" and float(row["batch_loss_weight"]) == 0
    }
    gap = paired(without, none)
    assert not is_above_zero(gap)
    assert_on(
        BEHIND,
        f"those without the batch's own loss were {-gap.mean:.1f} below no memory, which may be chance",
    )


def test_what_multi_similarity_gives_in_fine_tuning() -> None:
    reports = on_both("MultiSimilarity")
    gaps = [float(report[size, "xbn"][5].partition(" ")[0]) for report in reports for size in ("16", "64")]
    said = f"between {min(gaps):+.1f} and {max(gaps):+.1f}"
    assert_on(BEHIND, said.replace("-", "−"))
    at_64 = [-float(report["64", "xbn"][5].partition(" ")[0]) for report in reports]
    assert_on(
        BEHIND, "by {:.1f} points (may be chance) on one data set, and by {:.1f} on another".format(*at_64)
    )


@pytest.mark.parametrize("page", ADVICE)
def test_advice_has_no_intervals(page: str) -> None:
    assert "±" not in words_of(DOCS / f"{page}.md")


def student_of(ours: dict[int, float], theirs: dict[int, float]) -> tuple[float, float]:
    """Returns the mean gap and half of its interval, of pairs by seed."""
    gaps = [ours[seed] - theirs[seed] for seed in sorted(ours.keys() & theirs.keys())]
    interval = ttest_1samp(gaps, 0).confidence_interval(0.95)
    return fmean(gaps), (interval.high - interval.low) / 2


def recalls(**chosen: object) -> dict[int, float]:
    """Returns Recall@1 by seed of the rows of the study whose columns are these."""
    return {
        int(row["seed"]): float(row["recall_at_1"])
        for row in read_csv(RESULTS / "study_runs.csv")
        if all(row[name] == str(value) for name, value in chosen.items())
    }


def test_the_pictures_of_all_gains_have_the_gains_of_the_files(study: Study) -> None:
    place = {"regime": "emoji, 60 epochs", "batch_size": 64, "norm": "batch", "refresh_every": 0}
    none = recalls(method="no-xbm", **place)
    drawn = {line.label: line.gains for line in of_settings(study, RANDOM)["Emoji, half in memory"]}
    methods = {"xbn": "xbn", "xbm": "xbm+warm-up", "first step": "xbm", "star": "xbm-star"}
    assert drawn["60 epochs"].keys() == methods.keys()
    for key, method in methods.items():
        gain = drawn["60 epochs"][key]
        expected = student_of(recalls(method=method, memory_ratio=0.5, **place), none)
        assert (gain.mean, gain.half_width) == pytest.approx(expected)
    for of_group in (RANDOM, TRAINS):
        for lines in of_settings(study, of_group).values():
            assert [line.label for line in lines if "xbn" not in line.gains] == []


def test_the_pictures_of_fine_tuning_have_the_gains_of_the_report(study: Study) -> None:
    reports = {"Emoji": fine_tuned("SupCon: Emoji"), "Icons": fine_tuned("SupCon: Icons")}
    drawn = fine_tuning(study, RESULTS)
    for domain, report in reports.items():
        gains_of = {line.label: line.gains for line in drawn[f"{domain}, SupCon, last stage"]}
        assert [*gains_of] == [f"batch {size}" for size in (8, 16, 32, 64, 256)]
        for batch in ("16", "64"):
            for key, method in (("xbn", "xbn"), ("xbm", "xbm+warm-up of an epoch")):
                assert cell(gains_of[f"batch {batch}"][key]) == report[batch, method][5].replace("-", "−")
    assert {line.label for line in drawn["Emoji, SupCon, whole network"]} == {"batch 64"}
    (texts,) = senses(study, RESULTS).values()
    assert [cell(line.gains["xbn"]) for line in texts] == ["+4.5 ± 1.0", "+1.7 ± 0.8"]


def test_the_picture_of_two_towers_has_every_setting() -> None:
    drawn = [line for lines in two_towers(RESULTS).values() for line in lines]
    settings = {tuple(row[x] for x in ("data", "batch_size", "memory_ratio")) for row in read_csv(TWO_TOWERS)}
    assert len(drawn) == len(settings) == 15
    assert all(line.gains.keys() == {"xbn", "first step", "star", "xbn star"} for line in drawn)


def test_how_far_the_variants_are_from_xbn(study: Study) -> None:
    gaps: dict[str, list[float]] = {"axbn": [], "centre": [], "xbm+momentum 0.99": []}
    for regime in REGIMES:
        for setting in study.settings(regime):
            for method, gap in study.differences(setting, "xbn").items():
                if method in gaps:
                    gaps[method].append(gap.mean)
    for kind in ("SupCon: Emoji", "SupCon: Icons"):
        report = fine_tuned(kind)
        gaps["centre"] += [float(report[size, "centre"][7].partition(" ")[0]) for size in ("16", "64")]
    axbn, centre, momentum = ((f"{-min(x):.1f}", f"{max(x):.1f}") for x in gaps.values())
    assert_on(
        BEHIND,
        "is between {} below and {} above it. `match_std=False`".format(*axbn),
        "(*centring*), is between {} below and {} above".format(*centre),
        "([MoCo](recipes.md#moco)), are between {} below and {} above".format(*momentum),
    )


def test_what_is_said_of_two_towers() -> None:
    found = {
        title(dict(key)): (gains(rows), gains(rows, "stale-star"))
        for key, rows in experiments(RESULTS).items()
    }

    def gap(data: str, method: str, to: int = 0) -> str:
        (of_data,) = (pair for name, pair in found.items() if name.startswith(data))
        return cell(of_data[to][method])

    glyphs, short, long = (
        "glyphs",
        "frozen-definitions, batch 128, memory 6.25",
        "frozen-definitions, batch 128, memory 25",
    )
    assert_on(
        GAINS,
        f"On Glyphs it is {gap(glyphs, 'stale')} points",
        f"{gap(glyphs, 'adapted')} on Glyphs, {gap(short, 'adapted')} and {gap(long, 'adapted')} on frozen",
        f"is {gap(glyphs, 'stale-star')} on Glyphs, and still {gap(short, 'stale-star')} on frozen",
        f"The adapted one is {gap(glyphs, 'adapted-star')} and {gap(short, 'adapted-star')}.",
        "adaptation gains {} and {}.".format(*(gap(x, "adapted-star", 1)[1:] for x in (glyphs, short))),
        f"at best {gap('frozen-names-10, batch 32', 'adapted-star')}",
    )


def test_the_law_of_the_noise(study: Study) -> None:
    found = [x for x in distances(study) if not x.has_batch_norm]
    for method, expected in EXPECTED.items():
        of_method = [x for x in found if x.method == method]
        assert len(of_method) > 5
        for x in of_method:
            if x.classes < 16:
                assert 0.6 < x.distance**2 * x.classes / expected < 1.4
    assert f"{EXPECTED['xbn']} (XBN) and {EXPECTED['centre']} (centring)" in words_of(DIAGNOSTICS)


def figures_of_papers() -> dict[tuple[str, str], str]:
    """Returns Recall@1 by key of an experiment and data set."""
    rows = read_csv(DOCS.parent / "benchmarks" / "papers" / "experiments.csv")
    return {(r["key"], r["dataset"]): r["figures"] for r in rows if r["source"].startswith("AXBN")}


def test_the_papers_table() -> None:
    papers, page = figures_of_papers(), PAPERS.read_text(encoding="utf-8").splitlines()

    def cells(words: str) -> list[str]:
        (line,) = (line for line in page if line.startswith(f"| {words} |"))
        return [text.strip() for text in line.split("|")[2:-1]]

    def recall(key: str, data: str, k: int = 1) -> str:
        found = re.search(rf"\b{k}: ([\d.]+)", papers.get((key, data), ""))
        return found[1] if found else "–"

    rows = {"no memory": "no-xbm", "XBM": "xbm", "XBM\\*": "xbm-star", "XBN": "xbn", "AXBN": "axbn"}
    for words, key in {**rows, "no memory, batch 512": "no-xbm-512"}.items():
        assert cells(words) == [recall(key, data) for data in ("sop", "in-shop", "deep-fashion2")]
    lines = {"Swin transformer, batch 16 (Table 4)": ("swin-16", 1)}
    lines["Swin transformer, batch 32 (Table 4)"] = ("swin-32", 1)
    lines["ResNet-50, batch 256 (Table 6), Recall@1"] = ("batch-256", 1)
    lines["ResNet-50, batch 256 (Table 6), Recall@10"] = ("batch-256", 10)
    for words, (prefix, k) in lines.items():
        methods = ("no-xbm", "xbm", "xbn", "axbn")
        assert cells(words) == [recall(f"{prefix}-{method}", "sop", k) for method in methods]


def test_what_papers_of_memories_report() -> None:
    """Gains of Cross-Batch Memory by its own paper, Table 1, with GoogLeNet and three losses."""
    rows = read_csv(DOCS.parent / "benchmarks" / "papers" / "experiments.csv")
    found: dict[tuple[str, str, str], float] = {}
    for row in rows:
        recall = re.match(r"1: ([\d.]+)", row["figures"])
        if row["source"].startswith("XBM, Table 1") and recall:
            size = re.search(r"--test-size (\w+)", row["flags"])
            found[row["dataset"], size[1] if size else "", row["key"]] = float(recall[1])
    gained: dict[str, list[float]] = {}
    for (data, size, key), value in found.items():
        if not key.endswith("-no-memory"):
            gained.setdefault(data, []).append(value - found[data, size, f"{key}-no-memory"])
    ranges = {data: f"{int(min(values))} to {int(max(values) + 0.5)}" for data, values in gained.items()}
    assert_on(
        BEHIND,
        f"has {ranges['sop']} on SOP (Stanford Online Products), {ranges['in-shop']} on In-Shop and "
        f"{ranges['vehicle-id']} on VehicleID",
    )
    thesis = {
        row["key"]: float(row["figures"].split("; ")[0].split(": ")[1])
        for row in rows
        if row["source"] == "Thesis, Table 7.2" and row["dataset"] == "cifar100"
    }
    assert_on(
        WHICH,
        f"in a [thesis](paper_figures.md) XBN is {thesis['xbn'] - thesis['no-xbm']:.1f} above no memory on "
        "CIFAR-100",
    )


def test_rows_of_a_momentum_encoder_are_mostly_level_with_xbn(study: Study) -> None:
    """At the momentum 0.99, in all settings that have it."""
    settings = dict.fromkeys(case.setting for case in study.planned if case.memory_ratio)
    gaps = [study.differences(x, "xbn").get("xbm+momentum 0.99") for x in settings if study.values("xbn", x)]
    for methods in (SUPCON, SENSES):
        report = Report(study, RESULTS, methods)
        for method in (m for m in methods if m.name == "centre+momentum 0.99"):
            for data in domains(method):
                ours, theirs = (report.confirmed(m, data) for m in (method, method._replace(name="xbn")))
                gaps.append(paired(ours, theirs))
    known = [gap for gap in gaps if gap and gap.half_width]
    below = [-gap.mean for gap in known if gap.mean < -gap.half_width]
    assert len(below) == 5
    assert len(known) > 3 * len(below)
    assert_on(
        BEHIND, f"In five settings they are certainly below XBN, by {min(below):.1f} to {max(below):.1f}"
    )


def test_what_xbn_gains_over_xbm_in_all_runs_from_random_weights(study: Study) -> None:
    """Warmed up and filled, batch 64: the smallest and the largest mean."""
    settings = [setting for group in RANDOM.values() for setting in group.values()]
    gaps = [study.differences(setting, "xbm+warm-up").get("xbn") for setting in settings]
    means = [gap.mean for gap in gaps if gap]
    assert_on(BEHIND, f"stayed {min(means):.1f} to {max(means):.0f} points above")


def test_what_xbm_comes_to_in_fine_tuning(study: Study) -> None:
    """Warmed up and filled: at chosen settings, and at the worst of those that were tried before."""
    report = Report(study, RESULTS, SUPCON + MULTI_SIMILARITY)
    chosen = [
        paired(report.confirmed(m, data), report.confirmed(m._replace(name=NONE), data))
        for m in SUPCON + MULTI_SIMILARITY
        if m.name == LIKE_XBM
        for data in DOMAINS
    ]
    worst = study.differences((16, 0.5, "batch", "pretrained, 16 epochs"), NONE)[LIKE_XBM]
    assert_on(
        STUDY,
        f"up to {-min(gap.mean for gap in chosen):.1f} below and, at batch 16 on pictures, "
        f"up to {max(gap.mean for gap in chosen):.1f} above",
        f"up to {-worst.mean:.1f} below (batch 16, batch normalization trains, rate 1e-3)",
    )


def test_what_a_larger_batch_gives_in_fine_tuning() -> None:
    """No memory from 16 to 256 and from 64 to 256, at chosen settings, of all losses and parts that train."""
    study = Study(RESULTS)
    gained: dict[int, list[float]] = {16: [], 64: []}
    for methods in (SUPCON, MULTI_SIMILARITY, THREE_STAGES):
        report, like = Report(study, RESULTS, methods), methods[0]
        for data, size in product(DOMAINS, gained):
            large, small = (
                report.confirmed(like._replace(name=name, batch_size=n), data)
                for name, n in ((CACHED, 256), (NONE, size))
            )
            gained[size].append(paired(large, small).mean)
    words = [f"{min(values):.0f} to {max(values):.0f}" for values in gained.values()]
    assert_on(GUIDE, f"From 16 to 256 it gained {words[0]} points, from 64 to 256 it gained {words[1]}.")


def test_a_network_already_trained_on_the_data(study: Study) -> None:
    """Glyphs, batch 64, half in memory, a tenth of the rate."""
    gap = study.differences((64, 0.5, "batch", "slow"), NONE)["xbn"]
    assert not is_above_zero(gap)
    assert abs(gap.mean) < gap.half_width
    assert_on(WHICH, f"no memory: it lost {-gap.mean:.1f}, which may be chance")


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


def on_both(title: str) -> list[dict[tuple[str, str], list[str]]]:
    """Returns what ``fine_tuned`` does of the tables of Emoji and of icons."""
    return [fine_tuned(f"{title}: {data}") for data in ("Emoji", "Icons")]


def table_of(section: str) -> list[list[str]]:
    """Returns the cells of the tables below a heading of the figures of fine-tuning, without their head."""
    return cells(FINE_TUNING.read_text(encoding="utf-8").split(f"\n## {section}\n")[1].partition("\n## ")[0])


def cells(text: str) -> list[list[str]]:
    """Returns the cells of the tables in a text, without the first one's head."""
    lines = [line for line in text.splitlines() if line.startswith("| ")][1:]
    return [[text.strip().replace("−", "-") for text in line.split("|")[1:-1]] for line in lines]


def without_memory(titles: Sequence[str], sizes: Sequence[str]) -> list[list[str]]:
    reports = [fine_tuned(title) for title in titles]
    names = {"256": "no-xbm+cached in parts of 64"}
    return [
        [report[size, names.get(size, "no-xbm")][4].partition(" ")[0] for report in reports] for size in sizes
    ]


def test_what_no_memory_has_in_fine_tuning() -> None:
    titles = ["SupCon: Emoji", "SupCon: Icons", "MultiSimilarity: Emoji", "MultiSimilarity: Icons"]
    sizes = ("16", "64", "256")
    assert [line[1:] for line in table_of("The last stage")] == without_memory(titles, sizes)
    titles = [f"Three stages that train: {data}" for data in ("Emoji", "Icons")]
    assert [line[1:] for line in table_of("More of the network")] == without_memory(titles, sizes)


def test_what_a_memory_gains_in_fine_tuning() -> None:
    for loss in ("SupCon", "MultiSimilarity"):
        emoji, icons = on_both(loss)
        for batch in ("16", "64"):
            for method in ("xbn", "xbm+warm-up of an epoch"):
                pair = (report[batch, method][5].replace("-", "−") for report in (emoji, icons))
                assert_on(FINE_TUNING, *pair)
        to_256 = [report["64", "xbn"][6].replace("-", "−") for report in (emoji, icons)]
        assert_on(FINE_TUNING, *to_256)


def test_batches_of_8_and_32() -> None:
    emoji, icons = on_both("SupCon")
    gaps = [report[batch, "xbn"][5] for batch in ("8", "32") for report in (emoji, icons)]
    below = [emoji[batch, "xbn"][6][1:] for batch in ("8", "32")]
    assert_on(FINE_TUNING, *gaps, f"by {below[0]} at 8 and {below[1]} at 32")


def test_a_memory_at_256() -> None:
    xbn = ("256", "xbn+cached in parts of 64")
    reports = on_both("A memory at batch 256")
    gaps = [report[xbn][6] for report in reports]
    assert all(gap.startswith("-") for gap in gaps)
    assert_on(FINE_TUNING, *(gap.replace("-", "−") for gap in gaps))
    choice = fine_tuned("A memory at batch 256: the choice")[xbn]
    assert_on(GUIDE, f"{choice[9].strip('| ')} ({choice[8].split(', ')[0]})")


def test_what_may_save_a_memory_where_it_lost() -> None:
    settings = {  # heading on the page: title of the report, batch, columns
        "MultiSimilarity with its miner, the last stage, batch 64": ("with MultiSimilarity", "64", (5, 6)),
        "SupCon, the last stage, batch 256": ("at batch 256", "256", (6,)),
        "SupCon, three stages that train, batch 64": ("where three stages train", "64", (5, 6)),
        "SupCon, the whole network, batch 64": ("in the whole network", "64", (5, 6)),
    }
    page = FINE_TUNING.read_text(encoding="utf-8")
    for heading, (kind, batch, columns) in settings.items():
        reports = on_both(f"What may save a memory {kind}")
        found = [[report[batch, name][x] for report in reports for x in columns] for name in SECOND_CHANCE]
        section = page.split(f"\n### {heading}\n")[1].partition("\n##")[0]
        assert [line[1:] for line in cells(section)] == found


OWN_LOSS_AND_WARM_UP = ("+batch loss", "+warm-up of an epoch")


def test_what_is_said_of_what_may_save_a_memory() -> None:
    stages, best = (
        on_both(f"What may save a memory {kind}")
        for kind in ("where three stages train", "with MultiSimilarity")
    )
    to_xbn = " and ".join(x["64", "xbn+batch loss"][7] for x in stages).replace("-", "−")
    assert_on(FINE_TUNING, f"({to_xbn}) may come of")
    assert all(report["64", "xbn+batch loss"][5].startswith("+1.6 ") for report in best)
    warmed = " and ".join(report["64", "xbn+warm-up of an epoch"][7] for report in best)
    assert_on(FINE_TUNING, f"({warmed} to XBN alone)")
    whole = on_both("What may save a memory in the whole network")
    tried = [name for name in SECOND_CHANCE if "negatives" not in name and name not in UNADAPTED]
    to_none = [[report["64", name][5].split(" ± ") for name in tried] for report in whole]
    certain = [[float(mean) > float(half) for mean, half in lines] for lines in to_none]
    assert certain == [4 * [False], 4 * [True]]
    assert all(float(report["64", name][6].split()[0]) < 0 for report in whole for name in tried)
    of_xbn = [float(lines[tried.index(f"xbn{x}")][0]) for lines in to_none for x in OWN_LOSS_AND_WARM_UP]
    assert_on(BEHIND, f"XBN [was {min(of_xbn)} to {max(of_xbn)} above no memory at 64]")
    choice = fine_tuned("What may save a memory in the whole network: the choice")
    at_rate = choice["64", "xbn+batch loss"][5].split(", ")[0], choice["64", UNADAPTED[1]][5].split(", ")[0]
    assert_on(
        FINE_TUNING, "XBN with the batch's own loss has {} and the warmed-up control {}".format(*at_rate)
    )
    at_256 = fine_tuned("What may save a memory at batch 256: Emoji")
    means: dict[str, list[str]] = {}
    for (_, name), line in at_256.items():
        if not name.endswith("negatives only") and name not in UNADAPTED:
            means.setdefault(line[2], []).append(line[4].partition(" ")[0])
    lowest, middle = sorted(means["frozen, 3e-4"]), sorted(means["frozen, 1e-3"])
    assert_on(FINE_TUNING, f"have {lowest[0]} to {lowest[-1]}", " and ".join(middle))
    assert (len(lowest), len(middle)) == (4, 2)
    assert_on(BEHIND, "with `batch_loss_weight=1` it [gains 1.6]")


def test_what_adaptation_adds_beside_the_loss_of_the_batch() -> None:
    """Every memory with adaptation is certainly above the control that is warmed up and filled."""
    column, gains = 11, {}
    for kind, batch in (
        ("with MultiSimilarity", "64"),
        ("at batch 256", "256"),
        ("where three stages train", "64"),
        ("in the whole network", "64"),
    ):
        reports = on_both(f"What may save a memory {kind}")
        for method in ("xbn", "centre"):
            found = [report[batch, f"{method}+batch loss"][column].strip("| ") for report in reports]
            gains[kind, method] = found
            for gap in found:
                mean, half = map(float, gap.split(" ± "))
                assert mean > half
        to_none = [
            float(report[batch, name][6 - (batch == "64")].split()[0])
            for report in reports
            for name in UNADAPTED
        ]
        assert max(to_none) <= 0  # "lost, or was level with no memory"

    def said(kind: str, method: str) -> str:
        return " and ".join(x.replace("-", "−") for x in gains[kind, method])

    assert_on(
        FINE_TUNING,
        f"adaptation adds {said('with MultiSimilarity', 'xbn')} to the control",
        f"is {said('at batch 256', 'xbn')} to the warmed-up control",
        f"and centring {said('at batch 256', 'centre')}, at the control's rate",
        f"It is {said('where three stages train', 'xbn')} to the warmed-up control",
        f"is {said('where three stages train', 'centre')} to the warmed-up control",
        f"is {said('in the whole network', 'xbn')} to the warmed-up control, and centring with it",
        f"{said('in the whole network', 'centre')}. Both are at 3e-4",
    )
    for method, words in (
        ("xbn", "XBN with the batch's own loss is {} to {} points higher"),
        ("centre", "and centring with it {} to {}, certainly so in all four settings"),
    ):
        means = sorted(
            float(x.split()[0]) for (_, name), pair in gains.items() if name == method for x in pair
        )
        assert_on(FINE_TUNING, words.format(means[0], means[-1]))
        if method == "xbn":
            assert_on(BEHIND, f"XBN with it was {means[0]} to {means[-1]} above XBM with it")
    own = on_both("What may save a memory with MultiSimilarity")
    added = " and ".join(report["64", "xbn+batch loss"][7] for report in own)
    assert_on(FINE_TUNING, f"the batch's own loss adds {added} to XBN")


def of_the_choice_at(report: Report, method: Method, rate: str) -> float:
    """Returns Recall@1 of a method on the validation classes, at one of its rates, the mean of the seeds."""
    (trial,) = (case for case in trials(method) if rate in case.regime)
    both = (report.value(replace(trial, seed=seed)) for seed in (FIRST_SEED, SECOND_SEED))
    return fmean(value for value in both if value is not None)


def test_what_may_save_a_memory_by_another_figure(study: Study) -> None:
    """MAP@R where three stages train, and the validation classes at the controls' rate."""
    methods = DECIDING["-deciding-three-stages"]
    report, by_name = Report(study, RESULTS, methods), {method.name: method for method in methods}
    star, control = by_name["xbn+batch loss"], by_name[UNADAPTED[1]]
    words = []
    for rival in (NONE, CACHED):
        gaps = (
            paired(*(report.confirmed(method, data, "map_at_r") for method in (star, by_name[rival])))
            for data in DOMAINS
        )
        words.append(" and ".join(cell(gap) for gap in gaps if gap is not None))
    assert_on(FINE_TUNING, f"({words[0]} to none at 64, {words[1]} to none at 256)")
    at_rate = []
    for method in (star, control):
        at_rate.append(f"{of_the_choice_at(report, method, 'rate x 0.1,'):.1f}")
    assert_on(FINE_TUNING, f"on the validation classes, it has {at_rate[0]} and the control {at_rate[1]}")


def test_what_may_save_a_memory_in_the_whole_network_at_one_rate(study: Study) -> None:
    methods = DECIDING["-deciding-whole-network"]
    report, by_name = Report(study, RESULTS, methods), {method.name: method for method in methods}
    found = []
    for rate, name in product(("rate x 0.1,", "rate x 0.3,"), ("", *OWN_LOSS_AND_WARM_UP)):
        found.append(f"{of_the_choice_at(report, by_name[f'xbn{name}'], rate):.1f}")
    words = (
        "at 1e-4 XBN alone has {}, with the batch's own loss {}, warmed up {}; at 3e-4 it has {}, {} and {}."
    )
    assert_on(FINE_TUNING, words.format(*found))


def test_what_adaptation_adds_to_the_loss_of_the_batch() -> None:
    title, star = "`CrossBatchMemory` with the batch's own loss", "xbm-star+warm-up of an epoch"
    reports = on_both(f"{title}")
    for batch in ("16", "64"):
        assert_on(FINE_TUNING, *(report[batch, star][7].lstrip("-") for report in reports))
    to_none = [report["64", star][5].replace("-", "−") for report in reports]
    assert_on(FINE_TUNING, " and ".join(to_none))


@pytest.mark.parametrize(
    ("title", "heading"),
    [
        ("The whole network, 16 epochs", "## The whole network\n"),
        ("The whole network", "### In four epochs\n"),
    ],
)
def test_the_tables_of_the_whole_network(title: str, heading: str) -> None:
    reports = on_both(title)
    page = FINE_TUNING.read_text(encoding="utf-8").split(f"\n{heading}")[1].partition("\n##")[0]
    table = page.partition("Minutes |")[2].partition("\n\n")[0]
    lines = [line for line in table.splitlines() if line.startswith("| ")]
    places = [("64", "no-xbm", 4), ("64", "xbn", 5), ("256", "no-xbm+cached in parts of 64", 4)]
    for line, (batch, method, column) in zip(lines, [*places, ("64", "xbn", 6)], strict=True):
        *found, minutes = (text.strip(" *").replace("−", "-") for text in line.split("|")[2:-1])
        expected = [report[batch, method] for report in reports]
        assert found == [x[column].partition(" ")[0] if column == 4 else x[column] for x in expected]
        assert minutes in (expected[1][9].strip("| ").partition(" ")[0], "")


def test_what_the_whole_network_gives_in_sixteen_epochs() -> None:
    title = "The whole network, 16 epochs"
    reports, choice = on_both(title), fine_tuned(f"{title}: the choice")
    larger, ours = ("256", "no-xbm+cached in parts of 64"), ("64", "xbn")
    for report in reports:
        minutes = [float(report[key][9].partition(" ")[0]) for key in (larger, ours)]
        assert minutes[0] / minutes[1] == pytest.approx(1.13, abs=0.01)
    assert_on(FINE_TUNING, "which took 13 % more time of a core")
    assert_on(BEHIND, "the larger batch took 13 % more than XBN in ours")
    had = [choice[key][5].split(", ")[0] for key in (ours, ("64", "no-xbm"), larger)]
    assert_on(FINE_TUNING, "XBN had {} (two seeds), no memory {} at batch 64 and {} at 256".format(*had))
    assert_on(GUIDE, "1.2 and 3.2 over the same batch size of 64; no difference to a batch of 256 was found")


def test_the_whole_network_at_equal_rates(study: Study) -> None:
    """On the validation classes, two seeds, XBN minus no memory after 4 and 16 epochs."""
    said = []
    for rate, methods in product(("rate x 0.1,", "rate x 0.3,"), (WHOLE_NETWORK, WHOLE_NETWORK_LONG)):
        report, means = Report(study, RESULTS, methods), []
        for name in ("xbn", NONE):
            (method,) = (x for x in methods if x[:2] == (name, 64))
            means.append(of_the_choice_at(report, method, rate))
        said.append(f"{means[0] - means[1]:+.1f}".replace("-", "−"))
    words = "is {} after 4 epochs and {} after 16 at 1e-4, and {} and {} at 3e-4"
    assert_on(FINE_TUNING, words.format(*said))


def test_the_whole_network_for_longer() -> None:
    """XBN to no memory by epochs, with the settings that were chosen for four."""
    sections = (RESULTS / "fine_tuning.md").read_text(encoding="utf-8").split("\n## ")
    (section,) = (text for text in sections if text.startswith("The whole network for longer"))
    rows: dict[str, list[str]] = {}
    for line in section.splitlines():
        if line.startswith("| ") and "data" not in line:
            cells = [
                text.strip().replace("-", "−").replace("(", "").replace(")", "") for text in line.split("|")
            ]
            assert cells[3] == "5"  # seeds
            rows.setdefault(cells[2], []).extend(cells[6:8])
    for epochs, cells in rows.items():
        assert_on(FINE_TUNING, f"| {epochs} | {' | '.join(cells)} |")
    assert list(rows) == ["4", "8", "16"]


def test_what_the_whole_network_gives_in_four_epochs() -> None:
    reports = on_both("The whole network")
    choice = fine_tuned("The whole network: the choice")
    title = "The whole network, with the settings of three stages"
    assert on_both(f"{title}") == reports
    page = FINE_TUNING.read_text(encoding="utf-8").split("### In four epochs")[1].partition("\n##")[0]
    none, (own, second) = (choice["64", method][5].split(", ") for method in ("no-xbm", "xbn"))
    assert f"{own} to {none[0]}" in page
    assert f"3e-4, had {second}" in page


def test_the_settings_that_were_chosen() -> None:
    choice, none_at_256 = fine_tuned("SupCon: the choice"), "no-xbm+cached in parts of 64"
    sizes = ("8", "16", "32", "64")
    for key in [*product(sizes, ("no-xbm", "xbn")), ("256", none_at_256)]:
        setting, mean = choice[key][9].strip("| "), choice[key][8].split(", ")[0]
        words = setting.replace("trains, ", "batch normalization *trains*, ")
        assert_on(GUIDE, f"{words} ({mean})")
    assert_on(GUIDE, f"frozen, 3e-4 ({choice['64', 'centre+batch loss'][8].split(', ')[0]})")


def test_what_is_said_of_a_transformer() -> None:
    report, xbm = fine_tuned("A text transformer: Senses"), "xbm+warm-up of an epoch"
    none = [report[size, "no-xbm"][4].partition(" ")[0] for size in ("16", "64")]
    large = report["256", "no-xbm+cached in parts of 64"][4].partition(" ")[0]
    words = f"without a memory is {none[0]} at batch 16, {none[1]} at 64 and {large} at 256"
    gained = [[report[size, name][5] for size in ("16", "64")] for name in ("xbn", "centre", xbm)]
    said = "XBN gains {} at batch 16 and {} at 64, centring (`match_std=False`) {} and {}, XBM {} and {}."
    to_large = "({} and {})".format(*(report[size, "xbn"][6] for size in ("16", "64")))
    momentum = "{} and {}".format(*(report[size, "centre+momentum 0.99"][5] for size in ("16", "64")))
    own = [report[size, xbm][7].lstrip("+-") for size in ("16", "64")]
    assert_on(FINE_TUNING, words, said.format(*gained[0], *gained[1], *gained[2]), to_large, momentum, *own)
    assert_on(FINE_TUNING, f"({report['16', xbm][6]})", report["16", "centre"][6])


def test_what_xbn_gains(study: Study) -> None:
    gaps = [study.differences(setting, "no-xbm")["xbn"] for setting in (LONG, EMOJI, LATE)]
    assert_on(GAINS, *map(cell, gaps))
    beside = [study.differences(x, "xbn")["xbm+momentum 0.99"] for x in (LONG, EMOJI)]
    sooner = [study.differences(x, "no-xbm")["xbm-star+warm-up of an epoch"] for x in (LONG, EMOJI)]
    gaps_of_kinds = study.differences(EMOJI, "xbn")
    best = max((gaps_of_kinds[f"xbn+{kind}"] for kind in KINDS), key=lambda gap: gap.mean)
    assert_on(GAINS, *map(cell, (*beside, *sooner, best)))


def batch_512(study: Study, setting: Setting) -> Values:
    """Returns no memory at batch 512 with the best of three rates."""
    large = [study.values("no-xbm", place) for place in at_batch_512(setting[3]).values()]
    return max(filter(None, large), key=lambda found: fmean(found.values()))


def over_batch_512(study: Study, setting: Setting) -> Difference:
    """Returns what XBN gains over no memory at batch 512 with the best of three rates."""
    return paired(study.values("xbn", setting), batch_512(study, setting))


def test_what_xbn_gains_over_a_large_batch(study: Study) -> None:
    page = GAINS.read_text(encoding="utf-8").split("### Against a larger batch")[1].partition("###")[0]
    for epochs in (30, 60, 120, 240):
        cells = []
        for data in ("glyphs", "emoji"):
            regime = "converged" if (data, epochs) == ("glyphs", 30) else f"{data}, {epochs} epochs"
            gap = over_batch_512(study, (64, 0.5, "batch", regime))
            cells.append(cell(gap) + " (one seed)" * (len(gap.gaps) == 1))
        assert f"| {epochs} epochs | {' | '.join(cells)} |" in page


@pytest.mark.parametrize("data", ["Glyphs", "Emoji"])
def test_what_is_left_over_xbm_in_longer_training(study: Study, data: str) -> None:
    settings = RANDOM[f"{data}, half in memory"].values()
    gaps = [cell(study.differences(setting, "xbm+warm-up")["xbn"]) for setting in settings]
    words = (
        "{}, {} and {} after 30, 60 and 120 epochs, and {} after 240"
        if data == "Glyphs"
        else "{}, {} and {} after 60"
    )
    assert_on(GAINS, words.format(*(gaps if data == "Glyphs" else gaps[1:])))


def test_what_the_size_of_the_memory_gives(study: Study) -> None:
    settings = {share: (64, share, "batch", "emoji, 60 epochs") for share in (0.1, 0.5, 1.0)}
    gaps = [cell(study.differences(setting, "no-xbm")["xbn"]) for setting in settings.values()]
    small, half, whole = (study.values("xbn", setting) for setting in settings.values())
    between = [cell(paired(whole, other)) for other in (small, half)]
    words = (
        "gains {}, {} and {} with 10, 50 and 100 % of the images. The difference between 100 and 10 % is {},"
    )
    assert_on(GAINS, words.format(*gaps, between[0]), f"between 100 and 50 % {between[1]}.")


def test_other_moments_and_slow_drift(study: Study) -> None:
    of_super = [cell(study.differences(setting, "xbn")["super-class"]) for setting in (LONG, EMOJI)]
    shares = ((64, 0.5), (64, 0.1), (16, 0.03))
    of_class = [cell(study.differences((*place, "batch", "fast"), "xbn")["per-class"]) for place in shares]
    slow = study.differences((64, 0.5, "batch", "slow"), "no-xbm", "map_at_r")
    axbn = [cell(study.differences(setting, "xbn")["axbn"]) for setting in (EMOJI, LONG)]
    assert_on(
        GAINS,
        "`SuperClassXBN` minus XBN: {} (Glyphs), {} (Emoji)".format(*of_super),
        "{} with a memory of 50 %, {} with one of 10 %, and {} at batch 16".format(*of_class),
        "by {} and {}.".format(*(without_sign(slow[name]) for name in ("xbn", "axbn"))),
        "{} on Emoji and {} on Glyphs".format(*axbn),
    )


@pytest.mark.parametrize("row", [*product(("Glyphs", "Emoji"), (60, 120, 240))])
def test_from_when_on_a_run_stays_above_the_end_of_no_memory(study: Study, row: tuple[str, int]) -> None:
    data, number = row
    lines = GAINS.read_text(encoding="utf-8").splitlines()
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
    assert_on(GAINS, *(cell(tuning.draw_difference("xbn", "no-xbm", part)) for part in parts))
    fast = [lambda row, part=part: part(row) and is_fast(row) for part in parts]
    assert_on(GAINS, *(cell(tuning.draw_difference("xbn", "no-xbm", part)) for part in fast))
    assert_on(GAINS, *(cell(tuning.draw_difference("xbn", other)) for other in others))
    tested = tuning.tested("xbn", FIGURE)
    gaps = [paired(tested, tuning.tested(other, FIGURE)) for other in others]
    recall = paired(tuning.tested("xbn", "recall_at_1"), tuning.tested("no-xbm", "recall_at_1"))
    assert_on(GAINS, *map(cell, (*gaps, recall)))


def test_what_was_declared_of_fine_tuning() -> None:
    reports = on_both("SupCon")
    places = [("16", "centre", 5), ("16", "xbn", 5), ("64", "centre", 6), ("64", "xbn", 6)]
    places += [("64", method, 5) for method in ("centre+batch loss", "centre+evaluation rows")]
    for batch, method, column in places:
        emoji, icons = (report[batch, method][column] for report in reports)
        assert_on(FINE_TUNING, emoji.replace("-", "−"), icons.replace("-", "−"))
    xbm = [report[batch, "xbm+warm-up of an epoch"][7] for batch in ("16", "64") for report in reports]
    assert_on(FINE_TUNING, *(text.lstrip("-") for text in xbm))


def test_what_three_stages_give() -> None:
    emoji, icons = on_both("Three stages that train")
    gaps = [report[size, "xbn"][5] for size in ("16", "64") for report in (emoji, icons)]
    to_large = [report["64", "xbn"][6].replace("-", "−") for report in (emoji, icons)]
    words = (
        "XBN gains {} (Emoji) and {} (icons) at 16, and {} and {} at 64. "
        "At 64 it is {} and {} to no memory at 256."
    )
    assert_on(FINE_TUNING, words.format(*gaps, *to_large))


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
    assert min(small) > 1
    assert_on(README, f"it added {default:.1f} ms to a step, and PML's class {pml:.1f}")


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
    assert_on(README, "`XBNWrapper` with `SupConLoss` takes less than half of the time of PML's class")


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
    assert papers["DeepFashion2, 64", "same"].gain.mean == pytest.approx(45.12 - 36.45)
    page = words_of(FINE_TUNING)
    for point in of_fine_tuning(RESULTS):
        if point.name in ("Emoji, 16", "icons, 16", "Emoji, 64") and point.compared == "same":
            assert cell(point.gain) in page
