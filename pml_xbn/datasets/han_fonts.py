"""The fonts that `Han` is drawn with: packages of Debian 12, their files, and how to fetch them."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple


class Font(NamedTuple):
    """A design.

    Attributes:
        package: of Debian.
        version: of the package.
        file: in the package.
        digest: of that file, first 16 hexadecimal digits of its SHA-256.
        number: of the font in that file.
    """

    package: str
    version: str
    file: str
    digest: str
    number: int = 0


# In alphabetical order of the files' folders in Debian; which fonts draw a character depends on their order.
FONTS = (
    Font("fonts-aoyagi-kouzan-t", "20160404-6", "AoyagiKouzanT.ttf", "233d623f88c08363"),
    Font("fonts-aoyagi-soseki", "20070207-17", "aoyagi-soseki.ttf", "40b77688adac33d2"),
    Font("fonts-arphic-bkai00mp", "2.10-21", "bkai00mp.ttf", "5c3f67a9de085043"),
    Font("fonts-arphic-bsmi00lp", "2.10-18", "bsmi00lp.ttf", "e61f8b0f3ad32e05"),
    Font("fonts-arphic-gkai00mp", "2.11-16", "gkai00mp.ttf", "61519fb9bdda4a1a"),
    Font("fonts-arphic-ukai", "0.2.20080216.2-5", "ukai.ttc", "cfc758e69386a21b"),
    Font("fonts-arphic-uming", "0.2.20080216.2-11", "uming.ttc", "fe952e5561727514"),
    Font("fonts-babelstone-han", "15.0.5-2", "BabelStoneHan.ttf", "a2027ca3606907f6"),
    Font("fonts-morisawa-bizud-gothic", "1.05-2", "BIZUDGothic-Bold.ttf", "d4ac5302ab946ef8"),
    Font("fonts-morisawa-bizud-mincho", "1.05-2", "BIZUDMincho-Regular.ttf", "12a760927333e609"),
    Font("fonts-cns11643-kai", "103.1+20181001-1", "TW-Kai-98_1.ttf", "6e7b756bf723845e"),
    Font("fonts-cns11643-sung", "103.1+20181001-1", "TW-Sung-98_1.ttf", "d6d2094f41339b19"),
    Font("fonts-cwtex-fs", "1.0-4", "cwfs.ttf", "2dfbcf43b14f48eb"),
    Font("fonts-cwtex-heib", "1.0-4", "cwheib.ttf", "ab6cb5ad95c11eb0"),
    Font("fonts-dotgothic16", "1.000-20210120-2", "DotGothic16-Regular.ttf", "96d519a3fdc9f540"),
    Font("fonts-hanazono", "20170904-2.1", "HanaMinA.ttf", "7ca8755941447484"),
    Font("fonts-ipaexfont-mincho", "00401-5", "ipaexm.ttf", "7a306386f930fee8"),
    Font("fonts-ipamj-mincho", "005.01-2.1", "ipamjm.ttf", "75268aa9ac2d9208"),
    Font("fonts-kiloji", "1:2.1.0-25", "kiloji.ttf", "f75142c667d7a6ba"),
    Font("fonts-konatu", "20121218-11", "Konatu.ttf", "9cfce9eba7312a03"),
    Font("fonts-kouzan-mouhitsu", "20170411-3", "kouzan-mouhitsu-gyosho.ttf", "6b063cc0f9591ea2"),
    Font("fonts-kouzan-mouhitsu", "20170411-3", "KouzanBrushFontSousyo.ttf", "7f676cf7275de190"),
    Font("fonts-lxgw-wenkai", "1.250+repack-1", "LXGWWenKai-Light.ttf", "e302f84a1967817f"),
    Font("fonts-lxgw-wenkai", "1.250+repack-1", "LXGWWenKai-Bold.ttf", "2a24551c5c4fb425"),
    Font("fonts-motoya-l-maruberi", "1.01-5", "MTLmr3m.ttf", "91b9a5c85d29750d"),
    Font("fonts-noto-cjk", "1:20220127+repack1-1", "NotoSansCJK-Bold.ttc", "faa5f3656a78b2e2"),
    Font("fonts-noto-cjk", "1:20220127+repack1-1", "NotoSerifCJK-Regular.ttc", "a04178ec485dffdf", 2),
    Font("fonts-oradano-mincho-gsrr", "0.2018-3", "OradanoGSRR.ttf", "4a231ea72160844c"),
    Font("fonts-reggae", "1.000-20210120-2", "ReggaeOne-Regular.ttf", "9fd13f68ab9c6f26"),
    Font("fonts-seto", "6.20-8", "setofont.ttf", "af54468357473617"),
    Font("fonts-smiley-sans", "1.1.1-1", "SmileySans-Oblique.ttf", "c2f62ff764f23bfa"),
    Font("fonts-train", "1.000-20210120-2", "TrainOne-Regular.ttf", "21adeaa898edb901"),
    Font("fonts-wqy-microhei", "0.2.0-beta-3.1", "wqy-microhei.ttc", "2420e8078af796b1"),
    Font("fonts-wqy-zenhei", "0.9.45-8", "wqy-zenhei.ttc", "79c18ebe7b811951"),
)


_UNPACKING = "unpacking-"  # begins the name of a folder whose files may be half there, and move


def find_fonts(root: Path, *, download: bool = False) -> list[Path]:
    """Returns the file of each font, wherever below ``root`` it lies.

    Args:
        root: the folder.
        download: whether to fetch the packages of fonts that are missing or damaged with ``apt-get``.

    Raises:
        FileNotFoundError: fonts are missing, and the message names their packages; or apt-get or dpkg-deb is.
        ValueError: a file is not that of the package, and the message names both; or apt-get does not have a
            package in its version, and the message has what it says.
    """
    found, missing = _look_for_fonts(root)
    if missing and download:
        _download(missing, root)
        found, missing = _look_for_fonts(root)
    if not missing:
        return found
    packages, files = _packages(missing), {path.name: path for path in font_files(root)}
    remedy = (
        "pass download=True on Debian 12 (in a clone: python -m benchmarks.han.build), or a folder of your "
        f"own as fonts=, or unpack these packages of Debian 12 below {root} (apt-get download, then "
        f"dpkg-deb -x): {' '.join(packages)}"
    )
    damaged = [font for font in missing if font.file in files]
    if damaged:
        font = damaged[0]
        raise ValueError(
            f"{files[font.file]} is not the file of {font.package}={font.version}, or not all of it: {remedy}"
        )
    raise FileNotFoundError(
        f"{len(missing)} of the {len(FONTS)} fonts of Han are missing in {root}: {remedy}"
    )


def digest_of(path: Path) -> str:
    """Returns the first 16 hexadecimal digits of a file's SHA-256."""
    found = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            found.update(block)
    return found.hexdigest()[:16]


def _look_for_fonts(root: Path) -> tuple[list[Path], list[Font]]:
    """Returns the files that are those of their packages, and the fonts of which there is none."""
    files, found, missing = font_files(root), [], []
    for font in FONTS:
        same = (path for path in files if path.name == font.file and digest_of(path) == font.digest)
        path = next(same, None)
        missing.append(font) if path is None else found.append(path)
    return found, missing


def font_files(root: Path) -> list[Path]:
    """Returns all fonts below a folder, in order of their paths."""
    found = []
    for folder, below, names in os.walk(root):
        below[:] = [name for name in below if not name.startswith(_UNPACKING)]  # which may vanish meanwhile
        found += [Path(folder, name) for name in names if name.lower().endswith((".ttf", ".otf", ".ttc"))]
    return sorted(found)


def _packages(fonts: Sequence[Font]) -> list[str]:
    return list(dict.fromkeys(f"{font.package}={font.version}" for font in fonts))


def _download(missing: Sequence[Font], root: Path) -> None:
    """Fetches the packages of fonts with ``apt-get``, and keeps these fonts and the licences.

    They lie below ``root``, a folder for each package. Nothing is installed, and nobody has to be root.
    """
    for program in ("apt-get", "dpkg-deb"):
        if shutil.which(program) is None:
            raise FileNotFoundError(
                f"{program} is missing, with which the fonts of Han are fetched: use Debian 12, for instance "
                f"in a container, and copy its {root} here, or unpack these packages of it below {root}: "
                f"{' '.join(_packages(missing))}"
            )
    root.mkdir(parents=True, exist_ok=True)
    # On the disk of the target, so that a file is moved there as a whole, whatever else runs or is killed.
    with tempfile.TemporaryDirectory(prefix=_UNPACKING, dir=root) as name:
        folder = Path(name).resolve()
        _run(["apt-get", "download", *_packages(missing)], folder)
        for package in sorted(folder.glob("*.deb")):
            unpacked = folder / package.stem
            _run(["dpkg-deb", "-x", str(package), str(unpacked)], folder)
            target = root / "fonts" / package.name.partition("_")[0]
            target.mkdir(parents=True, exist_ok=True)
            wanted = {font.file for font in missing} | {"copyright"}
            for path in unpacked.rglob("*"):
                if path.name in wanted and path.is_file():
                    path.replace(target / path.name)
            shutil.rmtree(unpacked)


def _run(command: Sequence[str], folder: Path) -> None:
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    if done.returncode:
        told = " ".join(done.stderr.split())
        raise ValueError(
            f"{' '.join(command[:2])} failed ({told}): run apt-get update first, and take Debian 12, which "
            "has these versions"
        )
