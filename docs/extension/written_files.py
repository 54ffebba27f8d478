"""What the pages take from other files: pictures drawn and tables made at every build, and reports.

Pictures and tables are written to ``_build/written`` before the pages are read. A paragraph that is a
link and nothing else, such as

    [All tables of the study](../benchmarks/results/study.md)

is replaced by that file, its headings below the one above the paragraph. Who reads the source has the link.
Without matplotlib the tables are there, and the pictures are not.
"""

from __future__ import annotations

import re
from importlib.util import find_spec
from pathlib import Path

from pictures.demo_seeds import demo_table
from pictures.han_table import han_table
from pictures.on_gpu import gpu_report
from pictures.on_gpu_before import earlier_report
from sphinx.application import Sphinx
from sphinx.util.logging import getLogger

from benchmarks.papers.reproducing import table

DOCS = Path(__file__).parents[1]
WRITTEN = DOCS / "_build" / "written"
RESULTS = DOCS.parent / "benchmarks" / "results"

ALONE = re.compile(r"(?<=\n\n)\[[^\]]+\]\((?P<path>\S+\.md)\)(?=\n(\n|\Z))")
HEADING = re.compile(r"^(#+) ", re.MULTILINE)


def write_files(_: Sphinx) -> None:
    WRITTEN.mkdir(parents=True, exist_ok=True)
    (WRITTEN / "han.md").write_text(han_table(RESULTS), encoding="utf-8")
    (WRITTEN / "on_gpu.md").write_text(gpu_report(RESULTS / "gpu"))
    (WRITTEN / "on_gpu_before.md").write_text(earlier_report(RESULTS / "gpu"))
    (WRITTEN / "reproducing.md").write_text(table(), encoding="utf-8")
    (WRITTEN / "demo.md").write_text(demo_table(RESULTS / "demo_glyphs.csv"))
    if find_spec("matplotlib"):
        draw_pictures()
    else:
        getLogger(__name__).warning("pages have no pictures: pip install matplotlib")


def draw_pictures() -> None:
    from pictures.adaptation import draw_adaptation
    from pictures.batch_noise import draw_batch_noise
    from pictures.classes import draw_classes
    from pictures.gains import draw_gains
    from pictures.han_drift import draw_han_drift
    from pictures.han_gain import draw_han_gain
    from pictures.noise_law import draw_noise_law
    from pictures.one_map import draw_one_map
    from pictures.step_cost import draw_step_cost

    draw_adaptation(WRITTEN)
    draw_batch_noise(RESULTS / "batch_noise.csv", WRITTEN)
    draw_classes(RESULTS, WRITTEN)
    draw_gains(RESULTS, WRITTEN)
    draw_han_drift(RESULTS, WRITTEN)
    draw_han_gain(RESULTS, WRITTEN)
    draw_noise_law(RESULTS, WRITTEN)
    draw_one_map(WRITTEN)
    draw_step_cost(RESULTS / "step_cost_cpu.csv", WRITTEN)


def include_linked(_: Sphinx, page: str, source: list[str]) -> None:
    def included(match: re.Match[str]) -> str:
        level = len(HEADING.findall(source[0], 0, match.start())[-1])
        return f"```{{include}} {match['path']}\n:heading-offset: {level}\n:relative-images:\n```"

    source[0] = ALONE.sub(included, source[0])


def setup(app: Sphinx) -> dict[str, bool]:
    app.connect("builder-inited", write_files)
    app.connect("source-read", include_linked)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
