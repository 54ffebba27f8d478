"""The demo is ``python -m benchmarks.demo`` now; this name runs it until the next version."""

import os
import sys

os.execv(sys.executable, [sys.executable, "-m", "benchmarks.demo", *sys.argv[1:]])
