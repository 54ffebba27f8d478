"""Every public name is documented."""

from __future__ import annotations

import inspect
import re
import zlib
from collections.abc import Iterator
from pathlib import Path
from textwrap import dedent
from types import ModuleType
from typing import Any

import pytest

import pml_xbn

SUBPACKAGES = [
    getattr(pml_xbn, name) for name in pml_xbn.__all__ if isinstance(getattr(pml_xbn, name), ModuleType)
]


def documented_names(site: Path) -> set[str]:
    """From Sphinx's inventory: a header of four lines, and the names, compressed."""
    inventory = (site / "objects.inv").read_bytes().split(b"\n", 4)[4]
    entries = [line.split() for line in zlib.decompress(inventory).decode().splitlines()]
    return {name for name, kind, *_ in entries if kind.startswith("py:")}


def public_members(cls: type) -> Iterator[tuple[str, Any]]:
    """Methods and properties that the class itself defines and explains."""
    for name, member in vars(cls).items():
        is_one = inspect.isfunction(member) or isinstance(member, (property, classmethod, staticmethod))
        # What overrides a method of the base without a docstring of its own does what the base says.
        if is_one and not name.startswith("_") and member.__doc__:
            yield name, member


def test_every_public_name_is_in_the_reference(site: Path) -> None:
    documented = documented_names(site)
    missing = []
    for subpackage in SUBPACKAGES:
        for name in subpackage.__all__:
            path = f"{subpackage.__name__}.{name}"
            members = (
                public_members(getattr(subpackage, name))
                if inspect.isclass(getattr(subpackage, name))
                else ()
            )
            missing += [p for p in (path, *(f"{path}.{m}" for m, _ in members)) if p not in documented]
    assert not missing


def test_the_packages_own_names_are_those_of_its_subpackages() -> None:
    of_subpackages = [getattr(subpackage, name) for subpackage in SUBPACKAGES for name in subpackage.__all__]
    own = [getattr(pml_xbn, name) for name in pml_xbn.__all__]
    assert all(isinstance(name, ModuleType) or any(name is other for other in of_subpackages) for name in own)


def documented_parameters(cls: type) -> set[str]:
    """Names under ``Args:`` in the docstring."""
    section = re.search(r"^Args:\n((?:(?: .*)?\n)+)", f"{inspect.getdoc(cls)}\n", re.MULTILINE)
    assert section, f"the docstring of {cls.__name__} has no section Args"
    entries = re.split(r"\n(?! )", dedent(section[1]).strip())
    return {name.strip() for entry in entries for name in entry.partition(":")[0].split(",")}


WITH_PARAMETERS = [
    *(getattr(pml_xbn.losses, name) for name in pml_xbn.losses.__all__),
    *(getattr(pml_xbn.adapters, f"{kind}MomentMatching") for kind in ("", "Kalman", "Group")),
    pml_xbn.training.ClassBatches,
]


@pytest.mark.parametrize("cls", WITH_PARAMETERS)
def test_every_parameter_is_explained(cls: type) -> None:
    parameters = inspect.signature(cls).parameters.values()
    names = {parameter.name for parameter in parameters if parameter.kind is not parameter.VAR_KEYWORD}
    documented = documented_parameters(cls)
    if "others" in documented:  # those of the base, which has to explain them
        documented = documented | documented_parameters(cls.__bases__[0])
    assert names <= documented


def test_the_losses_begin_with_the_one_to_start_with() -> None:
    headings = re.findall(r"^## (\w+)$", (Path(__file__).parents[1] / "losses.md").read_text(), re.MULTILINE)
    assert headings[0] == "XBNWrapper"
    assert set(headings) == set(pml_xbn.losses.__all__)
