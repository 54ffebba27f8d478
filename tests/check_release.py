"""Installs each file in a folder of its own and imports it from there: ``check_release.py dist``.

What it depends on is expected in the environment that runs it.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

IMPORTS = """
import sys, torch, pml_xbn
from pathlib import Path
from pytorch_metric_learning.losses import SupConLoss
assert Path(pml_xbn.__file__).is_relative_to(sys.argv[1]), pml_xbn.__file__
assert Path(pml_xbn.__file__).with_name("py.typed").exists()
loss_fn = pml_xbn.XBNWrapper(SupConLoss(), embedding_size=4, memory_size=16)
loss_fn(torch.randn(8, 4), torch.arange(8) % 2)
print(pml_xbn.__version__)
"""


def main() -> None:
    files = sorted(Path(sys.argv[1]).iterdir())
    kinds = {"".join(file.suffixes[-2:])[-4:] for file in files}
    if kinds != {".whl", "r.gz"}:
        raise SystemExit(f"{sys.argv[1]} holds {[file.name for file in files]}: expected a wheel and an sdist")
    for file in files:
        with TemporaryDirectory() as folder:
            target = str(Path(folder).resolve())
            pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", target, str(file)]
            subprocess.run(pip, check=True)
            environment = {"PYTHONPATH": target}
            version = subprocess.run(
                [sys.executable, "-c", IMPORTS, target],
                check=True,
                capture_output=True,
                text=True,
                cwd=folder,
                env=environment,
            ).stdout.strip()
        if version not in file.name:
            raise SystemExit(f"{file.name} installs version {version}")
        print(f"{file.name}: installs and imports")


if __name__ == "__main__":
    main()
