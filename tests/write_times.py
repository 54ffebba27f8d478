"""Writes TIMES.md: the seconds of every environment, and of the dearest tests.

.ci/run 2>&1 | tee runs/ci.log
python tests/write_times.py runs/ci.log
"""

from __future__ import annotations

import re
import sys
from collections import Counter
from pathlib import Path

PAGE = Path(__file__).with_name("TIMES.md")
HEAD = """# How long tests take

Seconds on two cores, without a GPU. `python tests/write_times.py` writes this page from the log of `.ci/run`,
which runs the site's environments and the matrix two at a time: together they take less than their sum.
"""
DEAREST = 20
# Lines of tox, `  py: OK (12.34=setup[…]+cmd[…] seconds)`, the last one of .ci/run, which is like these, and
# lines of pytest --durations, `1.23s call  tests/…`.
ENVIRONMENT = re.compile(r"^ *([\w-]+): OK \(([\d.]+)", re.MULTILINE)
TEST = re.compile(r"^([\d.]+)s (?:setup|call|teardown) +(\S.*?) *$", re.MULTILINE)


def table(head: str, seconds: dict[str, float]) -> str:
    lines = [f"| `{name}` | {value:.0f} |" for name, value in seconds.items()]
    return "\n".join([f"| {head} | Seconds |", "|:--|--:|", *lines])


def tables(log: str) -> str:
    environments = {name: float(seconds) for name, seconds in ENVIRONMENT.findall(log)}
    tests: Counter[str] = Counter()
    for seconds, name in TEST.findall(log):
        tests[name.removeprefix("tests/").replace("|", r"\|")] += float(seconds)
    return f"{table('Environment', environments)}\n\n{table('Test', dict(tests.most_common(DEAREST)))}"


if __name__ == "__main__":
    log = "".join(Path(name).read_text(encoding="utf-8") for name in sys.argv[1:])
    PAGE.write_text(f"{HEAD}\n{tables(log)}\n", encoding="utf-8")
