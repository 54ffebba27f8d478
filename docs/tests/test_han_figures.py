"""Figures of the runs on Han in the texts of pages are those of the CSV files."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from math import inf
from statistics import fmean
from typing import Any

import pytest
from on_pages import DOCS, README, RESULTS, assert_on, cell, row_of_readme
from pictures.han_drift import distances, recall_by_rate
from pictures.han_gain import gains_of

from benchmarks.engine.intervals import Difference, paired
from benchmarks.han.cases import (
    EPOCHS_IN_EQUAL_TIME,
    LONG,
    LONG_AGAIN,
    RULE,
    STEPS,
    SWEEP,
    Case,
    memory,
    none,
    rates,
)
from benchmarks.han.memories import GAIN_HOOKS
from benchmarks.han.report import CLASSES, Runs, late, sweep_seeds, sweep_values

WHICH, BEHIND, SIZE = (DOCS / f"{name}.md" for name in ("which_variant", "behind_the_advice", "memory_size"))
MANY = (DOCS / "many_classes.md", DOCS / "many_classes_evidence.md")
NONE_64, NONE_256 = none(64), none(256)
LONGER_64, LONGER_256 = none(64, EPOCHS_IN_EQUAL_TIME), none(256, EPOCHS_IN_EQUAL_TIME)
XBM, XBN, FIRST = memory("xbm"), memory("xbn"), Case("xbn")
LONG_XBN, LONG_NONE, LONG_XBM = LONG


@pytest.fixture(scope="module")
def runs() -> Runs:
    return Runs(RESULTS)


def mean(runs: Runs, case: Case, figure: str = "recall_at_1") -> str:
    return f"{fmean(runs.values(case, figure).values()):.1f}"


def gap(runs: Runs, ours: Case, theirs: Case) -> Difference:
    found = runs.difference(ours, theirs, "recall_at_1")
    assert found is not None
    return found


def signed(runs: Runs, ours: Case, theirs: Case) -> str:
    return f"{gap(runs, ours, theirs).mean:+.1f}".replace("-", "−")


def points(runs: Runs, ours: Case, theirs: Case) -> str:
    return f"{abs(gap(runs, ours, theirs).mean):.1f}"


def with_interval(runs: Runs, ours: Case, theirs: Case) -> str:
    found = gap(runs, ours, theirs)
    assert found.half_width is not None
    return cell(found)


def is_by_chance(difference: str) -> bool:
    mean, half_width = map(float, difference.replace("−", "-").split(" ± "))
    return abs(mean) < half_width


def of_choice(runs: Runs, setting: Case) -> float:
    """Returns Recall@1 of the seed that chose."""
    case = runs.chosen(setting)
    assert case is not None
    return float(runs.rows[case]["recall_at_1"])


def test_seeds_that_did_not_choose_the_rates(runs: Runs) -> None:
    main = (NONE_64, NONE_256, XBM, XBN, FIRST, Case("xbm"), LONGER_64, LONGER_256)
    assert {tuple(sorted(runs.values(case, "recall_at_1"))) for case in main} == {(1, 2, 3, 4, 5)}
    assert {tuple(runs.values(case, "recall_at_1")) for case in LONG} == {(0,)}  # "one seed"


def test_with_equal_images(runs: Runs) -> None:
    gained = [with_interval(runs, case, NONE_64) for case in (XBN, XBM, FIRST)]
    over = [with_interval(runs, case, NONE_256) for case in (XBN, XBM, FIRST)]
    assert_on(
        MANY,
        f"XBN gained {gained[0]} and XBM {gained[1]}, warmed up and filled",
        f"and XBN from the first step {gained[2]}",
        f"Over batch 256 it is {over[0]}, {over[1]} and {over[2]}.",
        f"XBN minus XBM, both warmed up and filled, is {with_interval(runs, XBN, XBM)}.",
        f"XBN from the first step minus XBN warmed up and filled is {with_interval(runs, FIRST, XBN)}.",
        f"XBN is {with_interval(runs, FIRST, XBN)} from it: not quite.",
        f"XBN from the first step had {of_choice(runs, FIRST):.1f}, "
        f"{of_choice(runs, FIRST) - float(mean(runs, FIRST)):.1f} more than the mean of the others",
    )
    assert_on(
        BEHIND,
        "on Han {} with XBN and {} with `CrossBatchMemory`".format(
            *(points(runs, x, NONE_64) for x in (XBN, XBM))
        ),
        f"and {points(runs, FIRST, NONE_64)} with XBN from the first step (five seeds).",
        f"over batch 64 XBN gained {points(runs, XBN, LONGER_64)} and `CrossBatchMemory` "
        f"{points(runs, XBM, LONGER_64)}, warmed up and filled, and XBN from the first step nothing.",
        "a batch of 256 that is {}, {} and {}".format(
            *(points(runs, x, NONE_256) for x in (XBN, XBM, FIRST))
        ),
        f"has {mean(runs, FIRST)}. Warmed up and filled,",
        f"`CrossBatchMemory` is {points(runs, XBM, XBN)} above",
        f"({mean(runs, XBM)} and {mean(runs, XBN)}, five seeds).",
        f"({mean(runs, FIRST)}, {mean(runs, XBN)}, {mean(runs, XBM)}; five seeds)",
    )
    assert_on(
        SIZE,
        " | ".join(mean(runs, case) for case in (NONE_64, Case("xbm"), FIRST, XBM, XBN)),
    )
    assert_on(DOCS / "faq.md", f"({mean(runs, FIRST)} and {mean(runs, XBN)}, five seeds)")


def test_the_row_of_the_readme(runs: Runs) -> None:
    assert gap(runs, LONG_XBN, LONG_NONE).mean > 0
    random = "from random weights"
    warmed, first = (
        [*(points(runs, case, none) for none in (NONE_64, NONE_256)), f"−{points(runs, LONGER_256, case)}"]
        for case in (XBN, FIRST)
    )
    assert row_of_readme(f"{random}, [warmed up and filled][warm]", "9,992") == warmed
    more = 100 * (runs.minutes(LONG_XBN) / float(runs.rows[LONG_AGAIN]["cpu_minutes"]) - 1)
    gained = points(runs, LONG_XBN, LONG_NONE)
    first[-1] += f" (twice as long: {gained} †, in {more:.0f} % more time)"
    assert_on(
        WHICH, f"*from the first step* was {gained} above it, in {more:.0f} % more minutes, with one seed"
    )
    assert row_of_readme(f"{random}, from the first step", "9,992") == first
    assert_on(README, f"XBN, warmed up and filled too, scored {points(runs, XBM, XBN)} *lower*")
    assert_on(
        BEHIND,
        f"| {signed(runs, XBN, NONE_64)} | {signed(runs, XBN, NONE_256)} |",
        f"as the larger batch, it scored {points(runs, LONGER_256, XBN)} points less",
    )
    from_glyphs, *others = (replace(case, weights="glyphs") for case in (FIRST, NONE_64, NONE_256))
    gains = [signed(runs, from_glyphs, none) for none in others]
    assert_on(BEHIND, f"| {gains[0]} | {gains[1]} |")
    longer = with_interval(runs, from_glyphs, replace(LONGER_256, weights="glyphs"))
    assert is_by_chance(longer)
    words = "all of a very small network, pretrained on another task"
    assert row_of_readme(words, "9,992") == [*(x[1:] for x in gains), f"{longer[1:].partition(' ')[0]} †"]
    assert_on(
        WHICH,
        "| 9,992, from random weights | warmed up and filled | warmed up and filled | "
        f"{points(runs, XBM, XBN)} "
        "points lower |",
        f"with ten thousand it ended {points(runs, FIRST, XBN)} higher after them",
    )
    assert_on(
        BEHIND,
        f"| from random weights, 9,992 classes | {signed(runs, XBN, XBM)} |",
        f"XBN gains {points(runs, FIRST, NONE_64)} with equal images, and nothing in equal minutes "
        f"({signed(runs, FIRST, LONGER_64)})",
        f"`CrossBatchMemory` is {points(runs, XBM, XBN)} better than XBN",
        f"XBN from the first step was {points(runs, LONG_XBN, LONG_NONE)} and `CrossBatchMemory` "
        f"{points(runs, LONG_XBM, LONG_NONE)} above a batch of 256",
    )


def test_in_equal_minutes(runs: Runs) -> None:
    six = (XBM, XBN, FIRST)
    best = max(fmean(runs.values(case, "recall_at_1").values()) for case in six)
    assert float(mean(runs, LONGER_256)) > best
    minutes = sorted(runs.minutes(case) for case in six)
    assert runs.minutes(LONGER_256) == pytest.approx(minutes[-1], rel=0.1)
    more = [100 * (runs.minutes(LONGER_256) / x - 1) for x in minutes]
    assert_on(MANY, f"so that the batch of 256 had {more[-1]:.0f} to {more[0]:.0f} % more.")
    assert 2 < runs.minutes(XBN) / runs.minutes(NONE_64) < 2.5  # "doubles a step's time"
    assert_on(
        MANY,
        f"it takes {runs.minutes(LONGER_256):.1f} minutes of a core",
        f"and has {mean(runs, LONGER_256)} Recall@1 and {mean(runs, LONGER_256, 'map_at_r')} MAP@R.",
        f"The memories take {minutes[0]:.1f} to {minutes[-1]:.1f} minutes",
        f"XBM is {with_interval(runs, XBM, LONGER_64)}, and XBN {with_interval(runs, XBN, LONGER_64)}.",
        f"has {mean(runs, XBM)} and {mean(runs, XBM, 'map_at_r')}, "
        f"XBN {mean(runs, XBN)} and {mean(runs, XBN, 'map_at_r')}, warmed up and filled.",
        f"XBN from the first step is level with it ({with_interval(runs, FIRST, LONGER_64)}).",
        f"Batch 64 without a memory has {mean(runs, LONGER_64)} and "
        f"{mean(runs, LONGER_64, 'map_at_r')} after 14 epochs",
        f"it had {mean(runs, LONGER_256)}, the best memory {best:.1f}.",
    )


def test_how_much_of_a_difference_rows_follow() -> None:
    for begins in ("first", "after an epoch"):
        of_mean = gains_of(RESULTS, begins, "gain_of_mean")
        assert fmean(gain for step, gain in of_mean if step > STEPS - 500) < 0.06  # "hardly at all"
    early = [
        fmean(gain for step, gain in gains_of(RESULTS, "first", f"gain_of_{part}") if step <= 500)
        for part in ("mean", "std")
    ]
    assert_on(
        MANY,
        f"follows by about {early[0]:.1f} of a difference in the first 500 steps",
        f"The standard deviation follows less, by about {early[1]:.1f} in the first 500 steps",
        f"{STEPS:,} steps",
    )


def test_in_longer_training(runs: Runs) -> None:
    said = {
        case: (mean(runs, case), mean(runs, case, "map_at_r"), f"{runs.minutes(case):.1f}") for case in LONG
    }
    minutes = [float(runs.rows[case]["cpu_minutes"]) for case in (LONG_NONE, LONG_AGAIN)]
    more = [[100 * (runs.minutes(ours) / x - 1) for ours in (LONG_XBN, LONG_XBM)] for x in minutes]
    for page in (MANY, BEHIND):
        assert_on(page, f"{min(more[1]):.0f} to {max(more[1]):.0f} % more minutes")
    assert_on(MANY, f"({min(more[0]):.0f} to {max(more[1]):.0f} % if the other rate of 256 is counted)")
    assert_on(
        MANY,
        "has {} Recall@1 and {} MAP@R, in {} minutes,".format(*said[LONG_XBN]),
        "warmed up and filled, {} and {} in {}.".format(*said[LONG_XBM]),
        "for 28 epochs has {} and {}, in {:.1f} minutes, at the better of two rates; the other took "
        "{:.1f}.".format(*said[LONG_NONE][:2], minutes[1], minutes[0]),
    )
    assert_on(
        BEHIND,
        f"XBN, used from the first step, was {points(runs, LONG_XBN, LONG_NONE)} above it, and "
        "`CrossBatchMemory` "
        f"{points(runs, LONG_XBM, LONG_NONE)} (one seed",
    )


def test_the_gain_by_number_of_classes(runs: Runs) -> None:
    assert sweep_seeds(runs) == [1, 2, 3]

    def gained(setting: Case, base: Case, classes: int, figure: str = "recall_at_1") -> Difference:
        found = paired(*(sweep_values(runs, x, classes, figure) for x in (setting, base)))
        assert found is not None
        return found

    def grows(setting: Case, base: Case, few: int, more: int, figure: str) -> bool:
        """Returns whether the gain is certainly larger with more classes, seed by seed."""
        by_seed = [dict(enumerate(gained(setting, base, x, figure).gaps)) for x in (more, few)]
        found = paired(*by_seed)
        assert found is not None
        return found.mean > (found.half_width or inf)

    pairs = [(XBN, NONE_64), (XBM, NONE_64), (XBN, NONE_256), (XBM, NONE_256), (XBN, XBM)]
    for classes in (*SWEEP, 0):
        number = classes or CLASSES
        for figure in ("recall_at_1", "map_at_r"):
            cells = " | ".join(cell(gained(*pair, classes, figure)) for pair in pairs)
            assert_on(MANY, f"| {number:,} | {100 * 32 / number:.2g} % | {cells} |")
    for base, figures in ((NONE_64, ("recall_at_1", "map_at_r")), (NONE_256, ("map_at_r",))):
        for setting, figure in product((XBN, XBM), figures):
            assert grows(setting, base, 350, 1_400, figure)
            assert grows(setting, base, 1_400, 5_500, figure)
            assert not grows(setting, base, 5_500, 0, figure)
    starred = [memory(x, batch_loss="1") for x in ("xbm", "xbn")]
    best = [max((gained(x, NONE_64, n) for x in starred), key=lambda x: x.mean) for n in (*SWEEP, 0)]
    assert_on(MANY, "{}, {}, {} and {} with 350,".format(*map(cell, best)))
    few, many = (f"{gained(XBN, NONE_64, n).mean:.1f}" for n in (350, 1_400))
    larger = gained(NONE_256, NONE_64, 350).mean
    assert_on(BEHIND, f"a batch of 256 was {-larger:.1f} below one of 64, and XBN {few} above it")
    of_all = [f"{gained(XBN, NONE_64, n).mean:.1f}" for n in (5_500, 0)]
    assert_on(
        WHICH,
        f"350 classes of Han (9 %) gained {few}",
        f"with 1,400 classes of Han {many}",
        f"gained {few} points of Recall@1 at 9 %, {many} at 2.3 %, {of_all[0]} at 0.6 % and {of_all[1]} at",
    )
    assert_on(
        DOCS / "fine_tuning.md",
        f"350 gained {few}, 1,400 gained {many}, and 5,500 and 10,000 gained {' and '.join(of_all)}",
    )


def test_where_adaptation_decides(runs: Runs) -> None:
    assert max(recall for _, recall in recall_by_rate(runs, Case("xbm"))) < 1  # "collapses at every rate"
    assert min(recall for _, recall in recall_by_rate(runs, FIRST)) > 75  # "trains at every rate"

    def shared(setting: Case, name: str) -> float:
        """Returns the mean of a measured number in the last third of the runs at the chosen rate."""
        case = runs.chosen(setting)
        assert case is not None
        alike = [x for x in runs.rows if x.setting == setting.setting and x.rate == case.rate]
        found = [late(runs.log[one], setting.steps, name) for one in alike if one in runs.log]
        return fmean(x for x in found if x is not None)

    after = {x: f"{shared(x, 'after'):.3f}" for x in (XBM, XBN)}
    pairs = [*zip(*(distances(runs, case) for case in (XBM, XBN)), strict=True)]
    assert len(pairs) == 10
    assert all(of_xbm[1] < of_xbn[1] for of_xbm, of_xbn in pairs)
    assert_on(
        MANY,
        f"in the last third {after[XBM]} against {after[XBN]}",
        f"two fresh embeddings of an image are {shared(XBN, 'floor'):.2f} apart",
        f"{shared(XBN, 'before'):.3f} before the rows are adapted in a step, and {after[XBN]} after",
    )
    for setting, words in ((XBN, "is {:.2f} times the sampling noise"), (XBM, "and XBM's {:.2f} times")):
        assert_on(MANY, words.format(shared(setting, "shift_after") / shared(setting, "noise")))


def test_the_other_settings(runs: Runs) -> None:
    """Of the seed that chose, at the best of the rates tried."""

    def row(method: str) -> str:
        settings = (Case(method), memory(method), memory(method, batch_loss="1"))
        return " | ".join(f"{of_choice(runs, x):.1f}" if runs.chosen(x) else "–" for x in settings)

    methods = ("xbm", "xbn", "axbn", "centre", *GAIN_HOOKS, "xbm negatives", "xbn negatives")
    assert_on(MANY, *(f"| {row(method)} |" for method in methods))
    steps, base = (of_choice(runs, x) for x in (none(256, 24), NONE_64))
    assert_on(
        MANY,
        f"has {steps:.1f}, {steps - base:.1f} above batch 64",
        f"| +{steps - base:.1f} (one seed, four times the images)",
        f"of 1,024, which makes 328 steps, has {of_choice(runs, none(1024)):.1f}",
        "at most {:.1f}, `ProxyAnchorLoss` at most {:.1f}".format(
            *(
                max(float(y["recall_at_1"]) for x, y in runs.rows.items() if x.method.startswith(name))
                for name in ("norm-softmax", "proxy-anchor")
            )
        ),
    )
    starred = [memory(x, batch_loss="1") for x in ("xbm", "xbn")]
    assert {tuple(sorted(runs.values(case, "recall_at_1"))) for case in starred} == {(1, 2, 3, 4, 5)}
    assert_on(
        MANY,
        f"With SupCon XBM is {with_interval(runs, XBM, XBN).lstrip('+')} above XBN; with the batch's own "
        f"loss beside it is {with_interval(runs, *starred).lstrip('+')} above: certainly, in both.",
        " and ".join(
            cell(gap)
            for figure in ("recall_at_1", "map_at_r")
            if (gap := runs.difference(starred[0], NONE_256, figure)) is not None
        ),
    )
    assert_on(
        BEHIND,
        f"On Han it lost {points(runs, starred[1], XBN)} with XBN",
        f"and {points(runs, starred[0], XBM)} with XBM (five seeds)",
    )


def test_a_gain_that_is_measured(runs: Runs) -> None:
    """Seeds that did not choose, but for the rule that has one run; within half a point everywhere."""

    def settings(method: str) -> tuple[Case, Case, Case]:
        return Case(method), memory(method), memory(method, batch_loss="1")

    def row(method: str) -> str:
        return " | ".join(mean(runs, setting) for setting in settings(method))

    def of_rates(method: str) -> str:
        rates = dict.fromkeys(f"{runs.best[setting.setting]:g}" for setting in settings(method))
        return "; ".join(rates)

    assert {tuple(sorted(runs.values(x, "recall_at_1"))) for x in settings(RULE)} == {(1, 2, 3, 4, 5)}
    better = [
        max(rivals, key=lambda x: fmean(runs.values(x, "recall_at_1").values()))
        for rivals in zip(settings("xbm"), settings("xbn"), strict=True)
    ]
    pairs = [*zip(settings(RULE), better, strict=True)]
    assert all(gap(runs, *pair).mean >= -0.2 for pair in pairs)
    by_seed = [
        ours[seed] - theirs[seed]
        for ours, theirs in ([runs.values(x, "recall_at_1") for x in pair] for pair in pairs)
        for seed in ours
    ]
    assert_on(MANY, f"between {-min(by_seed):.1f} below and {max(by_seed):.1f} above the better one")
    to_better = [with_interval(runs, *pair) for pair in pairs]
    in_map = [runs.difference(*pair, "map_at_r") for pair in pairs]
    assert [abs(x.mean) > x.half_width for x in in_map] == [False, True, False]  # "the second is certain"
    assert_on(MANY, "(In MAP@R it is {:.1f}, {:.1f} and {:.1f} below;".format(*(-x.mean for x in in_map)))
    to_warmed, per_dimension = (
        with_interval(runs, *pair) for pair in (settings(RULE)[:2], (Case("gain per dimension"), FIRST))
    )
    (of_classes,) = runs.values(Case("gain"), "recall_at_1").values()
    assert_on(
        MANY,
        f"| XBM | {of_rates('xbm')} | {row('xbm')} |",
        f"| XBN | {of_rates('xbn')} | {row('xbn')} |",
        f"| `MeasuredGain` | {of_rates(RULE)} | {row(RULE)} |",
        f"| `MeasuredGain` minus the better of the two | | {' | '.join(to_better)} |",
        f"in the means of five seeds: {to_better[0]}, {to_better[1]} and {to_better[2]} |",
        f"from the first step it is {to_warmed.lstrip('−')} lower than warmed up and filled",
        f"({per_dimension} against XBN with three seeds, which is not certain)",
        f"between a batch's classes ({of_classes:.1f}, one seed)",
    )


def test_from_the_weights_of_another_task(runs: Runs) -> None:
    """The rates of the seed that chose, the chosen one of each in bold, and the mean of three other seeds."""
    columns = (2e-3, 4e-3, 8e-3, 1.6e-2, 3.2e-2, 6.4e-2, 0.128)

    def of(case: Case) -> Case:
        return replace(case, weights="glyphs")

    xbm_first, starred = Case("xbm"), [memory(name, batch_loss="1") for name in ("xbm", "xbn")]
    for words, case in (
        ("no memory, 64", NONE_64),
        ("no memory, 256", NONE_256),
        ("no memory, 256, for 14 epochs", LONGER_256),
        ("XBM, from the first step", xbm_first),
        ("XBN, from the first step", FIRST),
        ("XBM, warmed up and filled", XBM),
        ("XBN, warmed up and filled", XBN),
        ("XBM, the same, with the batch's own loss beside", starred[0]),
        ("XBN, the same, with the batch's own loss beside", starred[1]),
    ):
        setting = of(case).setting
        tried = {x.rate: row for x, row in runs.rows.items() if x.setting == setting and x.seed == 0}
        assert len(tried) >= 3
        cells = [f"{float(tried[rate]['recall_at_1']):.1f}" if rate in tried else "–" for rate in columns]
        bold = columns.index(runs.best[setting])
        cells[bold] = f"**{cells[bold]}**"
        assert [*runs.values(of(case), "recall_at_1")] == [1, 2, 3]
        assert_on(MANY, f"| {words} | {' | '.join(cells)} | {mean(runs, of(case))} |")

    def over(ours: Case, theirs: Case) -> str:
        return with_interval(runs, of(ours), of(theirs))

    at_high = [float(runs.rows[replace(of(case), rate=3.2e-2)]["recall_at_1"]) for case in (FIRST, xbm_first)]
    memories = (xbm_first, FIRST, XBM, XBN, *starred)
    gains = [gap(runs, of(case), of(NONE_256)).mean for case in memories]
    in_map = runs.difference(of(FIRST), of(LONGER_256), "map_at_r")
    rival = runs.values(of(LONGER_256), "recall_at_1")
    for case in memories:
        values = runs.values(of(case), "recall_at_1")
        assert case == FIRST or all(values[seed] < rival[seed] for seed in (1, 2, 3))  # "with every seed"
    assert_on(
        MANY,
        f"it is {over(FIRST, XBM)} over XBM warmed up and filled, {over(FIRST, XBN)} over itself warmed up",
        f"and {over(FIRST, xbm_first)} over XBM from the first step.",
        f"at 0.032 it is {at_high[0] - at_high[1]:.1f} above XBM from the first step",
        f"it is {over(FIRST, NONE_64)} over no memory at the same batch size, and "
        f"{over(FIRST, NONE_256)} over a batch of 256.",
        f"by {min(gains):.1f} to {max(gains):.1f}.",
        f"XBN from the first step is {over(FIRST, LONGER_256)} to that, so level.",
        f"(In MAP@R it is {cell(in_map)}.)",
        f"XBM by {over(XBM, LONGER_256)[1:]} warmed up and filled, and by {over(xbm_first, LONGER_256)[1:]} "
        f"from the first step, XBN by {over(XBN, LONGER_256)[1:]} warmed up and filled.",
        "the batch of 256 took {:.1f} minutes of a core, and XBN, beside the same work, {:.1f};".format(
            *(
                fmean(runs.values(of(x), "cpu_minutes").values())  # of the seeds that did not choose
                for x in (LONGER_256, FIRST)
            )
        ),
        f"A warm-up and a fill add {over(XBM, xbm_first)[1:]} to it.",
        f"(XBM is {over(XBM, XBN)}, and with the batch's own loss beside {over(*starred)})",
        f"in short training ({over(FIRST, LONGER_256)})",
        f"{points(runs, of(FIRST), of(XBM))} above XBM warmed up and filled",
    )
    assert_on(
        SIZE,
        " | ".join(mean(runs, of(case)) for case in (NONE_64, xbm_first, FIRST, XBM, XBN)),
        f"it ended {points(runs, of(XBM), of(xbm_first))} lower without, which is not certain",
    )


def test_first_looks(runs: Runs) -> None:
    """Of the seed that chooses: the contrastive loss at the best rate, the rest at the one in the middle."""

    def of_one(case: Case) -> str:
        row = runs.rows.get(replace(case, rate=rates(case)[0]))
        return f"{float(row['recall_at_1']):.1f}" if row else "–"

    def starred(name: str, **changes: Any) -> Case:
        return memory(name, batch_loss="1", **changes)

    settings = [NONE_64, NONE_256, XBM, XBN, starred("xbm"), starred("xbn"), Case("xbm"), Case("xbn")]
    for words, change in (
        ("SupCon", {}),
        ("contrastive loss", {"loss": "contrastive"}),
    ):
        cells = " | ".join(f"{of_choice(runs, replace(case, **change)):.1f}" for case in settings)
        assert_on(MANY, f"| {words} | {cells} |")

    def above(case: Case, other: Case, **changes: Any) -> str:
        one, two = (of_choice(runs, replace(x, **changes)) for x in (case, other))
        return f"{one - two:.1f}"

    contrastive, plain = {"loss": "contrastive"}, (XBM, XBN)
    assert_on(
        MANY,
        "XBM is {} above no memory at batch 64 and XBN {}".format(
            *(above(x, NONE_64, **contrastive) for x in plain)
        ),
        "and {} and {} above batch 256".format(*(above(x, NONE_256, **contrastive) for x in plain)),
    )
    pairs = ((XBM, XBN), (starred("xbm"), starred("xbn")))
    by_loss = {above(one, other, **contrastive) for one, other in pairs}
    assert_on(MANY, f"With the contrastive loss it is {by_loss.pop()} above (one run).")
    assert not by_loss
    for words, case in (
        ("XBM\\*", starred("xbm")),
        ("XBN\\*", starred("xbn")),
        ("XBM, from the first step", Case("xbm")),
        ("XBN, from the first step", Case("xbn")),
    ):
        cells = " | ".join(of_one(replace(case, memory=share)) for share in (0.1, 0.5, 1.0))
        assert_on(MANY, f"| {words} | {cells} |")
    lost = [
        float(of_one(starred(name))) - float(of_one(starred(name, memory=0.1))) for name in ("xbm", "xbn")
    ]
    assert_on(SIZE, f"a tenth {min(lost):.0f} to {max(lost):.0f} points lower")
    ramps = [of_one(memory(name, batch_loss="ramp")) for name in ("xbm", "xbn")]
    assert_on(MANY, "gives {} with XBM and {} with XBN".format(*ramps))
    assert all(float(x) < float(of_one(starred(name))) for x, name in zip(ramps, ("xbm", "xbn"), strict=True))
