"""The fonts that `Han` is drawn with: packages of Debian 12, their files, and how to fetch them."""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple


class Font(NamedTuple):
    """A design: the Debian package, its version, the file in it, and the number of the font in that file."""

    package: str
    version: str
    file: str
    number: int = 0


# In alphabetical order of the files' folders in Debian; which fonts draw a character depends on their order.
FONTS = (
    Font("fonts-aoyagi-kouzan-t", "20160404-6", "AoyagiKouzanT.ttf"),
    Font("fonts-aoyagi-soseki", "20070207-17", "aoyagi-soseki.ttf"),
    Font("fonts-arphic-bkai00mp", "2.10-21", "bkai00mp.ttf"),
    Font("fonts-arphic-bsmi00lp", "2.10-18", "bsmi00lp.ttf"),
    Font("fonts-arphic-gkai00mp", "2.11-16", "gkai00mp.ttf"),
    Font("fonts-arphic-ukai", "0.2.20080216.2-5", "ukai.ttc"),
    Font("fonts-arphic-uming", "0.2.20080216.2-11", "uming.ttc"),
    Font("fonts-babelstone-han", "15.0.5-2", "BabelStoneHan.ttf"),
    Font("fonts-morisawa-bizud-gothic", "1.05-2", "BIZUDGothic-Bold.ttf"),
    Font("fonts-morisawa-bizud-mincho", "1.05-2", "BIZUDMincho-Regular.ttf"),
    Font("fonts-cns11643-kai", "103.1+20181001-1", "TW-Kai-98_1.ttf"),
    Font("fonts-cns11643-sung", "103.1+20181001-1", "TW-Sung-98_1.ttf"),
    Font("fonts-cwtex-fs", "1.0-4", "cwfs.ttf"),
    Font("fonts-cwtex-heib", "1.0-4", "cwheib.ttf"),
    Font("fonts-dotgothic16", "1.000-20210120-2", "DotGothic16-Regular.ttf"),
    Font("fonts-hanazono", "20170904-2.1", "HanaMinA.ttf"),
    Font("fonts-ipaexfont-mincho", "00401-5", "ipaexm.ttf"),
    Font("fonts-ipamj-mincho", "005.01-2.1", "ipamjm.ttf"),
    Font("fonts-kiloji", "1:2.1.0-25", "kiloji.ttf"),
    Font("fonts-konatu", "20121218-11", "Konatu.ttf"),
    Font("fonts-kouzan-mouhitsu", "20170411-3", "kouzan-mouhitsu-gyosho.ttf"),
    Font("fonts-kouzan-mouhitsu", "20170411-3", "KouzanBrushFontSousyo.ttf"),
    Font("fonts-lxgw-wenkai", "1.250+repack-1", "LXGWWenKai-Light.ttf"),
    Font("fonts-lxgw-wenkai", "1.250+repack-1", "LXGWWenKai-Bold.ttf"),
    Font("fonts-motoya-l-maruberi", "1.01-5", "MTLmr3m.ttf"),
    Font("fonts-noto-cjk", "1:20220127+repack1-1", "NotoSansCJK-Bold.ttc"),
    Font("fonts-noto-cjk", "1:20220127+repack1-1", "NotoSerifCJK-Regular.ttc", 2),
    Font("fonts-oradano-mincho-gsrr", "0.2018-3", "OradanoGSRR.ttf"),
    Font("fonts-reggae", "1.000-20210120-2", "ReggaeOne-Regular.ttf"),
    Font("fonts-seto", "6.20-8", "setofont.ttf"),
    Font("fonts-smiley-sans", "1.1.1-1", "SmileySans-Oblique.ttf"),
    Font("fonts-train", "1.000-20210120-2", "TrainOne-Regular.ttf"),
    Font("fonts-wqy-microhei", "0.2.0-beta-3.1", "wqy-microhei.ttc"),
    Font("fonts-wqy-zenhei", "0.9.45-8", "wqy-zenhei.ttc"),
)


def find_fonts(root: Path) -> list[tuple[Path, int]]:
    """Returns file and number of each font, wherever below ``root`` it lies.

    Raises:
        FileNotFoundError: fonts are missing; the message names their packages.
    """
    found = {path.name: path for path in sorted(root.rglob("*")) if path.suffix.lower() in (".ttf", ".ttc")}
    missing = [font for font in FONTS if font.file not in found]
    if missing:
        packages = " ".join(dict.fromkeys(f"{font.package}={font.version}" for font in missing))
        raise FileNotFoundError(
            f"{len(missing)} of the {len(FONTS)} fonts of Han are missing in {root}: pass download=True on "
            "Debian 12, or a list of your own as fonts=, or unpack these packages of Debian 12 there "
            f"(apt-get download, then dpkg-deb -x): {packages}"
        )
    return [(found[font.file], font.number) for font in FONTS]


def download_fonts(root: Path) -> None:
    """Fetches the packages with ``apt-get`` and unpacks them below ``root``, neither of which needs root.

    Raises:
        FileNotFoundError: there is no apt-get or no dpkg-deb.
        ValueError: apt-get does not have a package in its version; the message ends with what it says.
    """
    for program in ("apt-get", "dpkg-deb"):
        if shutil.which(program) is None:
            raise FileNotFoundError(
                f"{program} is missing, with which the fonts of Han are fetched: use Debian 12, for instance "
                f"in a container, and copy its {root}"
            )
    packages = list(dict.fromkeys(f"{font.package}={font.version}" for font in FONTS))
    target = root / "fonts"
    target.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        _run(["apt-get", "download", *packages], folder)
        for package in sorted(Path(folder).glob("*.deb")):
            _run(["dpkg-deb", "-x", str(package), str(target.resolve())], folder)


def _run(command: Sequence[str], folder: str) -> None:
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    if done.returncode:
        raise ValueError(
            f"{' '.join(command[:2])} failed; run apt-get update first, and take Debian 12, which has these "
            f"versions:\n{done.stderr.strip()}"
        )
