"""What every row says of the machine that it was measured on."""

from __future__ import annotations

import platform
import subprocess
from collections.abc import Iterable, Mapping
from importlib.metadata import version

import torch


def describe(device: torch.device) -> dict[str, str]:
    """Returns the names of the device, of its driver, and of the torch that ran."""
    if device.type != "cuda":
        name, driver = f"{platform.machine()} {device.type.upper()}", "none"
    else:
        name, driver = torch.cuda.get_device_name(device), _driver()
    return {"device": name, "driver": driver, "torch": torch.__version__}


def describe_fully(device: torch.device, threads: int | None = None) -> dict[str, str]:
    """Returns the same, with the other versions, and the threads of a process: by default of this one."""
    return describe(device) | {
        "pml": version("pytorch-metric-learning"),
        "python": platform.python_version(),
        "threads": str(threads or torch.get_num_threads()),
    }


def name_machines(rows: Iterable[Mapping[str, str]]) -> str:
    """Returns what rows say of their machines, each of which is named once."""
    found = dict.fromkeys(
        f"{row['device']}, {row['threads']} thread{'' if row['threads'] == '1' else 's'}, "
        f"torch {row['torch']}, pytorch-metric-learning {row['pml']}, Python {row['python']}"
        for row in rows
    )
    return "; ".join(found)


def _driver() -> str:
    """Returns the version of NVIDIA's driver, and of CUDA that torch was built with."""
    command = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    try:
        found = subprocess.run(command, capture_output=True, text=True, check=True, timeout=20).stdout
    except (OSError, subprocess.SubprocessError):  # a container may lack the program
        found = "unknown"
    return f"{found.splitlines()[0].strip() if found else 'unknown'}, CUDA {torch.version.cuda}"
