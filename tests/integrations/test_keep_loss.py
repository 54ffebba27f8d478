from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from pytorch_metric_learning.losses import SupConLoss

from pml_xbn import XBNWrapper
from pml_xbn.training import keep_loss

pytest.importorskip("transformers")


def memory() -> XBNWrapper:
    return XBNWrapper(SupConLoss(), embedding_size=4, memory_size=16)


def test_a_resume_finds_the_memory_of_its_checkpoint_and_warns_without(tmp_path: Path) -> None:
    arguments = SimpleNamespace(output_dir=str(tmp_path))
    state = SimpleNamespace(global_step=5, is_world_process_zero=True)
    (tmp_path / "checkpoint-5").mkdir()
    saved, resumed = memory(), memory()
    saved(torch.randn(8, 4), torch.arange(8) % 2)
    with pytest.warns(UserWarning, match=r"checkpoint-5.loss_fn.pt is missing"):
        keep_loss(resumed).on_train_begin(arguments, state, None)
    keep_loss(saved).on_save(arguments, state, None)
    keep_loss(resumed).on_train_begin(arguments, state, None)
    assert torch.equal(resumed.embedding_memory, saved.embedding_memory)


def test_a_new_run_loads_nothing(tmp_path: Path) -> None:
    arguments = SimpleNamespace(output_dir=str(tmp_path))
    keep_loss(memory()).on_train_begin(arguments, SimpleNamespace(global_step=0), None)
