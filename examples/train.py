"""The papers' rows are ``python -m benchmarks.papers`` now; this name runs it until the next version."""

import os
import sys

os.execv(sys.executable, [sys.executable, "-m", "benchmarks.papers", *sys.argv[1:]])
