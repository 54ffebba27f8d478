"""Every public name is documented."""

from __future__ import annotations

import inspect
import re
from pathlib import Path
from textwrap import dedent
from types import ModuleType

import pytest

import pml_xbn

SUBPACKAGES = [
    getattr(pml_xbn, name) for name in pml_xbn.__all__ if isinstance(getattr(pml_xbn, name), ModuleType)
]


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
    docs = Path(__file__).parents[1]
    pages = re.findall(r"^(losses/\w+)$", (docs / "losses.md").read_text(encoding="utf-8"), re.MULTILINE)
    titles = [(docs / f"{page}.md").read_text(encoding="utf-8").splitlines()[0] for page in pages]
    *classes, last = (title.removeprefix("# ") for title in titles)
    assert (classes[0], last) == ("XBNWrapper", "How a loss is computed")
    assert sorted(classes) == sorted(pml_xbn.losses.__all__)
