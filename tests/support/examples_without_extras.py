"""What every example says with the core install alone: its --help, and its error, in a line of JSON each.

python examples_without_extras.py EXAMPLES
"""

from __future__ import annotations

import io
import json
import runpy
import sys
from contextlib import redirect_stdout
from pathlib import Path

EXTRAS = ("faiss", "matplotlib", "record_keeper", "tensorboard", "timm", "torchvision")
EXTRAS += ("accelerate", "datasets", "lightning", "sentence_transformers", "transformers")


def end_of(script: Path, *arguments: str) -> str | int | None:
    """Returns what the script gave to ``SystemExit``."""
    sys.argv = [str(script), *arguments]
    try:
        runpy.run_path(str(script), run_name="__main__")
    except SystemExit as ended:
        return ended.code
    return None


if __name__ == "__main__":
    sys.modules.update(dict.fromkeys(EXTRAS))  # import and find_spec do not find a module that is None
    for script in sorted(Path(sys.argv[1]).glob("*.py")):
        with redirect_stdout(io.StringIO()) as printed:
            status = end_of(script, "--help")
        said = {"status": status, "help": printed.getvalue(), "error": end_of(script)}
        print(json.dumps({"name": script.stem, **said}))
