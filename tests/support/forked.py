"""Scripts and commands in processes that are forked from one that has imported the libraries."""

from __future__ import annotations

import os
import runpy
import shlex
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from multiprocessing import get_context
from pathlib import Path
from typing import Any

ENVIRONMENT = {"GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
# What the processes of tests begin with, if it is installed; torch.testing needs torch.distributed.tensor.
LIBRARIES = [
    *("torch", "torch.distributed.run", "torch.utils.tensorboard", "pytorch_metric_learning.losses"),
    *("timm", "torchvision", "faiss", "matplotlib.pyplot", "scipy.stats", "tyro", "yaml"),
    *("accelerate", "lightning", "transformers.trainer", "sentence_transformers"),
    *("pml_xbn.losses", "torch.distributed.tensor"),
]
OURS = ("pml_xbn", "benchmarks")

# Which are read when torch and huggingface_hub are imported.
os.environ |= {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
get_context("forkserver").set_forkserver_preload(LIBRARIES)

Call = Callable[..., None]
Ended = subprocess.CompletedProcess[str]


def run_script(script: Path, *arguments: str, timeout: float = 600, **environment: str) -> Ended:
    """Runs a script alone."""
    return _run(_script, (script, arguments), [environment], timeout)


def run_ranks(script: Path, *arguments: str, ranks: int = 2, timeout: float = 600) -> Ended:
    """Runs a script on many ranks, with the variables of torchrun."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    shared = {
        **dict.fromkeys(("WORLD_SIZE", "LOCAL_WORLD_SIZE"), str(ranks)),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": port,
        "TORCHELASTIC_RUN_ID": "tests",
    }
    environments = [{**shared, "RANK": str(rank), "LOCAL_RANK": str(rank)} for rank in range(ranks)]
    return _run(_script, (script, arguments), environments, timeout)


def run_command(command: str, folder: Path, timeout: float = 600, **environment: str) -> Ended:
    """Runs ``python -m …`` or ``torchrun …`` in a folder that holds the modules."""
    return _run(_command, (command, folder), [environment], timeout)


def _run(call: Call, arguments: Any, environments: Sequence[Mapping[str, str]], timeout: float) -> Ended:
    """The status is that of the first process that failed; the others are then killed."""
    with tempfile.TemporaryDirectory() as folder:
        outputs = [
            [Path(folder, f"{number}.{name}") for name in ("out", "err")]
            for number in range(len(environments))
        ]
        processes = [
            get_context("forkserver").Process(target=_begin, args=(output, environment, call, arguments))
            for output, environment in zip(outputs, environments, strict=True)
        ]
        end = time.monotonic() + timeout
        for process in processes:
            process.start()
        while any(process.is_alive() for process in processes):
            time.sleep(0.05)
            if time.monotonic() > end or any(process.exitcode for process in processes):
                for process in processes:
                    process.join(5)
                    process.kill()
        out, err = ("".join(pair[k].read_text() for pair in outputs if pair[k].exists()) for k in (0, 1))
        if time.monotonic() > end:
            raise subprocess.TimeoutExpired(str(arguments), timeout, out, err)
        statuses = [process.exitcode or 0 for process in processes]
    return subprocess.CompletedProcess(arguments, next(filter(None, statuses), 0), out, err)


def _begin(output: Sequence[Path], environment: Mapping[str, str], call: Call, arguments: Any) -> None:
    for descriptor, file in zip((1, 2), output, strict=True):
        os.dup2(os.open(file, os.O_WRONLY | os.O_CREAT), descriptor)
    os.environ.update(ENVIRONMENT | dict(environment))
    call(*arguments)


def _script(script: Path, arguments: Sequence[str]) -> None:
    from torch import distributed

    sys.argv = [str(script), *arguments]
    sys.path.insert(0, str(script.parent))
    runpy.run_path(str(script), run_name="__main__")
    if distributed.is_initialized():
        distributed.barrier()  # nobody leaves while another still listens
    sys.stdout.flush()
    sys.stderr.flush()
    # Threads of a gloo group can outlive it: the interpreter's end was seen to abort.
    os._exit(0)


def _command(command: str, folder: Path) -> None:
    os.chdir(folder)
    program, *words = shlex.split(command)
    if program == "torchrun":
        words = ["-m", "torch.distributed.run", *words]
    sys.argv = words[1:]
    sys.path.insert(0, str(folder))
    for name in [name for name in sys.modules if name.partition(".")[0] in OURS]:
        del sys.modules[name]
    runpy.run_module(words[1], run_name="__main__", alter_sys=True)
