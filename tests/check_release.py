"""Installs each file in a folder of its own and imports it from there: ``check_release.py dist``.

What it depends on is expected in the environment that runs it.
"""

from __future__ import annotations

import os
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
    if [file.name.endswith((".whl", ".tar.gz")) for file in files] != [True, True]:
        raise SystemExit(f"{sys.argv[1]} holds {[file.name for file in files]}: expected sdist and wheel")
    for file in files:
        version = installed_version(file)
        if version not in file.name:
            raise SystemExit(f"{file.name} installs version {version}")
        print(f"{file.name}: installs and imports")


def installed_version(file: Path) -> str:
    with TemporaryDirectory() as folder:
        target = str(Path(folder).resolve())
        pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", target]
        subprocess.run([*pip, str(file)], check=True)
        imports = [sys.executable, "-c", IMPORTS, target]
        environment = {**os.environ, "PYTHONPATH": target}
        result = subprocess.run(
            imports, check=True, capture_output=True, text=True, cwd=folder, env=environment
        )
    return result.stdout.strip()


if __name__ == "__main__":
    main()
