"""Directives for entries in the form of PML's documentation, so that none is written by hand.

``{signature} pml_xbn.losses.XBNWrapper`` gives the call with its defaults, and ``{parameters}`` the list of
parameters out of the docstring: all of them, or those after ``:only:``.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from importlib import import_module
from textwrap import dedent
from typing import Any, ClassVar

from docutils import nodes
from docutils.parsers.rst import directives
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective

WIDTH = 88


def public_object(path: str) -> Any:
    module, _, name = path.rpartition(".")
    return getattr(import_module(module), name)


def signature(path: str) -> str:
    """The call as PML's documentation prints it: ``losses.XBNWrapper(loss, embedding_size, ...)``."""
    parameters = []
    previous = None
    for parameter in inspect.signature(public_object(path)).parameters.values():
        if parameter.kind is parameter.KEYWORD_ONLY and previous is not parameter.KEYWORD_ONLY:
            parameters.append("*")
        previous = parameter.kind
        parameters.append(str(parameter.replace(annotation=parameter.empty)))
    name = ".".join(path.split(".")[1:])
    lines = [f"{name}("]
    for text in parameters:
        if len(lines[-1]) + len(text) > WIDTH:
            lines.append("    ")
        lines[-1] += f"{text}, "
    return "\n".join(line.rstrip() for line in lines).removesuffix(",") + ")"


def documented_parameters(path: str) -> Iterator[tuple[str, str]]:
    """Names and descriptions under ``Args:`` in the docstring."""
    doc = inspect.getdoc(public_object(path)) or ""
    section = re.search(r"^Args:\n((?:(?: .*)?\n)+)", doc + "\n", re.MULTILINE)
    if section is None:
        raise ValueError(f"the docstring of {path} has no section Args")
    for entry in re.split(r"\n(?! )", dedent(section[1]).strip()):
        names, _, description = entry.partition(":")
        yield names.replace("*", r"\*"), " ".join(description.split())


class SignatureDirective(SphinxDirective):
    required_arguments = 1

    def run(self) -> list[nodes.Node]:
        text = signature(self.arguments[0])
        return [nodes.literal_block(text, text, language="python")]


class ParametersDirective(SphinxDirective):
    required_arguments = 1
    option_spec: ClassVar = {"only": directives.unchanged_required}

    def run(self) -> list[nodes.Node]:
        path = self.arguments[0]
        entries = dict(documented_parameters(path))
        if only := self.options.get("only"):
            entries = {name: entries[name] for name in only.split()}
        # Docstrings are reStructuredText, the pages are Markdown.
        lines = [f"* **{names}**: {description}" for names, description in entries.items()]
        module = path.rpartition(".")[0]
        text = "\n".join(["```{eval-rst}", f".. py:currentmodule:: {module}", "", *lines, "```"])
        parsed: list[nodes.Node] = self.parse_text_to_nodes(text)
        return parsed


def setup(app: Sphinx) -> dict[str, bool]:
    app.add_directive("signature", SignatureDirective)
    app.add_directive("parameters", ParametersDirective)
    app.connect("autodoc-skip-member", _skip_fields_of_named_tuples)
    return {"parallel_read_safe": True, "parallel_write_safe": True}


def _skip_fields_of_named_tuples(_: Sphinx, __: str, ___: str, member: Any, skip: bool, ____: Any) -> bool:
    """Their signature lists them; of themselves they say 'Alias for field number 0'."""
    return skip or type(member).__name__ == "_tuplegetter"
