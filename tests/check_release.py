"""Checks what ``tox -e release`` has built: ``check_release.py dist [--publish]``.

Each file installs and imports, the sdist holds what it has to, and the wheel, in an environment with nothing
else, does the README's swap. With ``--publish`` the metadata must have links to the repository.
"""

from __future__ import annotations

import os
import re
import runpy
import subprocess
import sys
import tarfile
import venv
from email.message import Message
from email.parser import Parser
from importlib.metadata import version
from pathlib import Path
from tempfile import TemporaryDirectory
from zipfile import ZipFile

ROOT = Path(__file__).parents[1]
README = ROOT / "README.md"
IN_SDIST = (
    *("CHANGELOG.md", "CITATION.cff", "CONTRIBUTING.md", "LICENSE", "README.md", "docs/index.md"),
    "pml_xbn/py.typed",
)
# What stands around the README's swap in a user's code.
BEFORE = """
import torch
from pytorch_metric_learning.losses import SupConLoss
from pytorch_metric_learning.miners import PairMarginMiner

loss, miner = SupConLoss(), PairMarginMiner()
"""
AFTER = """
embeddings = torch.randn(8, 512, requires_grad=True)
for step in range(2):
    loss_fn(embeddings, torch.arange(8) % 4).backward()
assert embeddings.grad.isfinite().all()
assert loss_fn.num_rows == 16

import sys
from pathlib import Path
import pml_xbn
assert Path(pml_xbn.__file__).is_relative_to(sys.argv[1]), pml_xbn.__file__
print(pml_xbn.__version__)
"""


def main() -> None:
    folder, is_published = Path(sys.argv[1]), "--publish" in sys.argv
    files = sorted(folder.iterdir())
    if [file.name.endswith((".whl", ".tar.gz")) for file in files] != [True, True]:
        raise SystemExit(f"{folder} holds {[file.name for file in files]}: expected sdist and wheel")
    wheel, sdist = sorted(files, key=lambda file: file.suffix, reverse=True)
    check_metadata(metadata_of(wheel), is_published)
    check_contents(sdist)
    for file in files:
        check_version(file, version_from_folder(file))
        print(f"{file.name}: installs and imports")
    check_version(wheel, version_from_bare_environment(wheel))
    print(f"{wheel.name}: does the README's swap in a bare environment")


def metadata_of(wheel: Path) -> Message:
    with ZipFile(wheel) as archive:
        (name,) = (name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        return Parser().parsestr(archive.read(name).decode())


def check_metadata(metadata: Message, is_published: bool) -> None:
    """Raises SystemExit for a missing field, an unknown classifier, and a link that leads nowhere."""
    for field in ("Author", "License-Expression", "Requires-Python", "Summary"):
        if field not in metadata:
            raise SystemExit(f"the metadata lacks {field}: see pyproject.toml")
    from trove_classifiers import classifiers  # which only the environment of a release has

    if unknown := set(metadata.get_all("Classifier", [])) - classifiers:
        raise SystemExit(f"registries do not know the classifiers {sorted(unknown)}")
    description = str(metadata.get_payload())
    check_links(description)
    readme = README.read_text(encoding="utf-8")
    registry_page = runpy.run_path(str(ROOT / "setup.py"), run_name="setup")["registry_page"]
    with_links = registry_page(readme, "https://forge.example/owner/name", metadata["Version"])
    check_links(with_links)
    if len(links_of(with_links)) != len(links_of(readme)):
        raise SystemExit("with the repository's address, the page has not all links of README.md")
    if is_published and "not on a registry yet" in description:
        raise SystemExit("README.md says that the package is not on a registry yet")
    if is_published and "Project-URL" not in metadata:
        raise SystemExit("the metadata lacks links: put the repository's address into REPOSITORY in setup.py")


def check_links(page: str) -> None:
    """Raises SystemExit for a relative link: a registry shows the page without the files beside it."""
    if relative := [link for link in links_of(page) if not link.startswith(("https://", "#"))]:
        raise SystemExit(f"the registry's page has relative links: {relative}")
    labels = set(re.findall(r"^\[([^\]]+)\]: ", page, re.MULTILINE))
    if undefined := set(re.findall(r"\]\[([^\]]+)\]", page)) - labels:
        raise SystemExit(f"the registry's page has links without a target: {sorted(undefined)}")


def links_of(page: str) -> list[str]:
    return re.findall(r"(?:\]\(|^\[[^\]]+\]: )([^)\s]+)", page, re.MULTILINE)


def check_contents(sdist: Path) -> None:
    with tarfile.open(sdist) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    if missing := set(IN_SDIST) - names:
        raise SystemExit(f"{sdist.name} lacks {sorted(missing)}: see MANIFEST.in")


def check_version(file: Path, installed: str) -> None:
    if installed not in file.name:
        raise SystemExit(f"{file.name} installs version {installed}")


def swap() -> str:
    """The lines that the README's first block adds, with what stands around them."""
    added = re.findall(r"^\+(.*)$", README.read_text(encoding="utf-8"), re.MULTILINE)
    return "\n".join([BEFORE, *added, AFTER])


def version_from_folder(file: Path) -> str:
    """Installs the file alone; its dependencies are those of the environment that runs this."""
    with TemporaryDirectory() as folder:
        target = str(Path(folder).resolve())
        pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", target]
        subprocess.run([*pip, str(file)], check=True)
        return printed(sys.executable, target, PYTHONPATH=target)


def version_from_bare_environment(wheel: Path) -> str:
    """Installs the wheel with its dependencies, torch in the version of the environment that runs this."""
    with TemporaryDirectory() as folder:
        home = Path(folder).resolve()
        venv.create(home, with_pip=True)
        (python,) = (path for path in home.glob("[bS]*/python*") if path.stem == "python")
        torch = f"torch=={version('torch').partition('+')[0]}"
        pip = [str(python), "-m", "pip", "install", "--quiet", "--no-compile", str(wheel), torch]
        subprocess.run(pip, check=True)
        return printed(str(python), str(home))


def printed(python: str, folder: str, **variables: str) -> str:
    """What the swap prints, run outside of the clone."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    command = [python, "-W", "ignore", "-c", swap(), folder]
    finished = subprocess.run(
        command, check=True, stdout=subprocess.PIPE, text=True, cwd=folder, env={**environment, **variables}
    )
    return finished.stdout.strip()


if __name__ == "__main__":
    main()
