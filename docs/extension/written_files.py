"""What the pages take from other files: pictures drawn and tables made at every build, and reports.

Pictures and tables are written to ``_build/written`` before the pages are read. A line such as

    % include ../benchmarks/results/study.md, or: The study has not been run.

is replaced by that file, its headings below the one above the line, or by the sentence if there is no such
file.
"""

from __future__ import annotations

import re
from pathlib import Path

from pictures.adaptation import draw_adaptation
from pictures.demo_seeds import demo_table
from pictures.step_cost import draw_step_cost
from sphinx.application import Sphinx

DOCS = Path(__file__).parents[1]
WRITTEN = DOCS / "_build" / "written"
RESULTS = DOCS.parent / "benchmarks" / "results"

OPTIONAL = re.compile(r"^% include (?P<path>\S+), or: (?P<otherwise>.*)$", re.MULTILINE)
HEADING = re.compile(r"^(#+) ", re.MULTILINE)


def write_files(_: Sphinx) -> None:
    WRITTEN.mkdir(parents=True, exist_ok=True)
    draw_adaptation(WRITTEN)
    draw_step_cost(RESULTS / "step_cost_cpu.csv", WRITTEN)
    (WRITTEN / "demo.md").write_text(demo_table(RESULTS / "demo_glyphs.csv"))
    (WRITTEN / "hundred_classes.md").write_text(demo_table(RESULTS / "demo_hundred_classes.csv"))


def include_what_is_there(app: Sphinx, page: str, source: list[str]) -> None:
    folder = Path(app.env.doc2path(page)).parent

    def included(match: re.Match[str]) -> str:
        if not (folder / match["path"]).exists():
            return match["otherwise"]
        level = len(HEADING.findall(source[0], 0, match.start())[-1])
        return f"```{{include}} {match['path']}\n:heading-offset: {level}\n:relative-images:\n```"

    source[0] = OPTIONAL.sub(included, source[0])


def setup(app: Sphinx) -> dict[str, bool]:
    app.connect("builder-inited", write_files)
    app.connect("source-read", include_what_is_there)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
