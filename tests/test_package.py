"""What a user gets from ``pip install pml_xbn`` alone."""

from __future__ import annotations

import subprocess
import sys
from importlib.metadata import requires

import pml_xbn

CORE_ONLY = """
import sys

class Refuse:
    def find_spec(self, name, path=None, target=None):
        extras = {"matplotlib", "faiss", "record_keeper", "tensorboard", "timm", "torchvision"}
        if name.split(".")[0] in extras:
            raise ImportError(f"{name} is not part of the core install")

sys.meta_path.insert(0, Refuse())
import torch
from pytorch_metric_learning.losses import SupConLoss
import pml_xbn
from pml_xbn.losses import XBNWrapper

loss_fn = XBNWrapper(SupConLoss(), embedding_size=4)
loss_fn(torch.randn(8, 4), torch.arange(8) % 2)
try:
    pml_xbn.datasets.Glyphs()
except ImportError as error:
    assert 'pip install "pml_xbn[examples]"' in str(error)
else:
    raise AssertionError("Glyphs did without matplotlib")
"""


def test_package_works_with_torch_and_pml_alone() -> None:
    subprocess.run([sys.executable, "-c", CORE_ONLY], check=True, timeout=120)


def test_core_install_needs_torch_and_pml_alone() -> None:
    core = [r for r in requires("pml_xbn") or [] if "extra ==" not in r]
    assert sorted(r.split(">")[0].split("<")[0] for r in core) == ["pytorch-metric-learning", "torch"]


def test_public_names() -> None:
    assert {"XBNWrapper", "AXBNWrapper", "PerClassXBN", "SuperClassXBN"} <= set(pml_xbn.__all__)
    for module in (pml_xbn, pml_xbn.adapters, pml_xbn.datasets, pml_xbn.heads, pml_xbn.losses):
        assert all(hasattr(module, name) for name in module.__all__)
