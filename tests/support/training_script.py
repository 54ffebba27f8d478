"""Runs benchmarks.papers within the test's own process."""

from __future__ import annotations

import importlib
import json
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

TINY = [
    *("--cpu", "--dataset", "glyphs", "--limit-classes", "8", "--workers", "0"),
    *("--log-every", "1", "--diagnostics-every", "1"),
    *("--backbone", "test_resnet", "--no-pretrained", "--embedding-size", "16", "--batch-size", "8"),
    *("--warmup-epochs", "1", "--epochs", "1", "--steps-per-epoch", "2"),
]


def has_timm() -> bool:
    """Whether timm can be imported; with a torchvision of another build it raises RuntimeError."""
    try:
        import timm  # noqa: F401
    except (ImportError, RuntimeError):
        return False
    return True


def run_script(monkeypatch: pytest.MonkeyPatch, output: Path, *flags: str) -> None:
    monkeypatch.setattr(sys, "argv", ["papers", *TINY, "--output", str(output), *flags])
    importlib.import_module("benchmarks.papers.__main__").main()


def result_of(output: Path, seed: int = 0) -> dict[str, float]:
    """The numbers of a result."""
    result = json.loads((output / f"seed-{seed}" / "result.json").read_text())
    return {name: value for name, value in result.items() if not isinstance(value, str)}


def state_of(output: Path, name: str = "last.pt") -> dict[str, Any]:
    """The state in a file, without how long it took to come there."""
    state: dict[str, Any] = torch.load(output / "seed-0" / name, weights_only=True)
    state.pop("cpu_seconds", None)
    return state


def assert_equal(first: Any, second: Any, path: str = "state", *, rounding: float = 0.0) -> None:
    """Every tensor and number in two checkpoints is the same, bit for bit or up to rounding."""
    assert type(first) is type(second), path
    if isinstance(first, dict):
        assert first.keys() == second.keys(), path
        for key, value in first.items():
            assert_equal(value, second[key], f"{path}.{key}", rounding=rounding)
    elif isinstance(first, (list, tuple)):
        assert len(first) == len(second), path
        for number, (one, other) in enumerate(zip(first, second, strict=True)):
            assert_equal(one, other, f"{path}[{number}]", rounding=rounding)
    elif isinstance(first, float) or (isinstance(first, torch.Tensor) and first.is_floating_point()):
        torch.testing.assert_close(first, second, rtol=rounding, atol=rounding, msg=path)
    elif isinstance(first, torch.Tensor):
        assert first.dtype == second.dtype, path
        assert torch.equal(first, second), path
    else:
        assert first == second, path
