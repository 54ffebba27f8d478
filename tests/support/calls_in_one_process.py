"""Calls examples one after the other, and prints how each ended, in a line of JSON each.

python calls_in_one_process.py EXAMPLES CALLS, a JSON list of lists of words that begin with the script's name
"""

from __future__ import annotations

import io
import json
import runpy
import sys
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path

if __name__ == "__main__":
    examples, calls = Path(sys.argv[1]), json.loads(sys.argv[2])
    for name, *words in calls:
        script = examples / f"{name}.py"
        sys.argv = [str(script), *words]
        status: str | int | None = 0
        with redirect_stdout(io.StringIO()) as out, redirect_stderr(io.StringIO()) as err:
            try:
                runpy.run_path(str(script), run_name="__main__")
            except SystemExit as ended:
                status = ended.code
        print(json.dumps({"status": status, "out": out.getvalue(), "err": err.getvalue()}))
