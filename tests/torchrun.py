"""Starts a script under torchrun, on the CPU and on loopback."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

TESTS = Path(__file__).parent
ENVIRONMENT = {
    "PYTHONPATH": f"{TESTS.parent}{os.pathsep}{TESTS}",
    "GLOO_SOCKET_IFNAME": "lo",
    "OMP_NUM_THREADS": "1",
    "CUDA_VISIBLE_DEVICES": "",
}


def torchrun(
    script: Path, *arguments: str, ranks: int = 2, timeout: float = 180
) -> subprocess.CompletedProcess[str]:
    """Runs a script on many ranks; what takes longer than ``timeout`` seconds is killed, with its ranks."""
    command = [sys.executable, "-m", "torch.distributed.run", f"--nproc_per_node={ranks}"]
    address = ["--standalone", "--local-addr=127.0.0.1"]  # takes a free port and keeps it
    process = subprocess.Popen(
        [*command, *address, str(TESTS / "run_rank.py"), str(script), *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        env={**os.environ, **ENVIRONMENT},
    )
    try:
        out, err = process.communicate(timeout=timeout)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)  # the ranks too
        process.communicate()  # closes the pipes
        raise
    return subprocess.CompletedProcess(process.args, process.returncode, out, err)
