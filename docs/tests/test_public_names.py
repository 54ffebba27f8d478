"""Every public name is documented."""

from __future__ import annotations

import inspect
import zlib
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from extension.pml_form import documented_parameters

import pml_xbn

ROOMS = [room for room in vars(pml_xbn).values() if isinstance(room, ModuleType) and hasattr(room, "__all__")]


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


def test_the_rooms_are_those_that_are_public() -> None:
    assert {room.__name__.split(".")[-1] for room in ROOMS} <= set(pml_xbn.__all__)
    assert len(ROOMS) >= 5


def test_every_public_name_is_in_the_reference(site: Path) -> None:
    documented = documented_names(site)
    missing = []
    for room in ROOMS:
        for name in room.__all__:
            path = f"{room.__name__}.{name}"
            members = public_members(getattr(room, name)) if inspect.isclass(getattr(room, name)) else ()
            missing += [p for p in (path, *(f"{path}.{m}" for m, _ in members)) if p not in documented]
    assert not missing


def test_the_packages_own_names_are_those_of_its_rooms() -> None:
    of_rooms = [getattr(room, name) for room in ROOMS for name in room.__all__]
    own = [getattr(pml_xbn, name) for name in pml_xbn.__all__]
    assert all(isinstance(name, ModuleType) or any(name is other for other in of_rooms) for name in own)


def test_every_loss_has_an_entry_in_pmls_form() -> None:
    page = (Path(__file__).parents[1] / "losses.md").read_text(encoding="utf-8")
    for name in pml_xbn.losses.__all__:
        entry = page.split(f"\n## {name}\n")[1].split("\n## ")[0]
        assert f"{{signature}} pml_xbn.losses.{name}\n" in entry, name
        for part in ("**Parameters**", "**Forward function**"):
            assert part in entry, (name, part)


@pytest.mark.parametrize("name", [*pml_xbn.losses.__all__])
def test_every_parameter_of_a_loss_is_explained(name: str) -> None:
    cls = getattr(pml_xbn.losses, name)
    explained = {
        n.strip() for names, _ in documented_parameters(f"pml_xbn.losses.{name}") for n in names.split(",")
    }
    parameters = set(inspect.signature(cls).parameters) - {"kwargs"}
    assert parameters <= explained


@pytest.mark.parametrize("name", ["MomentMatching", "KalmanMomentMatching", "GroupMomentMatching"])
def test_every_parameter_of_an_adapter_is_explained(name: str) -> None:
    explained = dict(documented_parameters(f"pml_xbn.adapters.{name}"))
    assert set(inspect.signature(getattr(pml_xbn.adapters, name)).parameters) - {"kwargs"} <= set(explained)
    assert all(explained.values())
