"""Modules import each other without a circle, and no lower layer imports a higher one."""

from graphlib import TopologicalSorter

import grimp
import pytest
from grimp import ImportGraph

LAYERS = [
    {"datasets", "diagnostics", "heads", "testing", "training"},
    "losses",
    "distributed",
    "pairwise",
    "memory",
    "adapters",
    {"_buffers", "_checks", "_pillow"},
    {"_arithmetic", "_tracing"},
]


def import_graph(package: str) -> ImportGraph:
    """Returns what modules import when they run, also within functions, and not what types alone need."""
    return grimp.build_graph(package, exclude_type_checking_imports=True, cache_dir=None)


@pytest.mark.parametrize("package", ["pml_xbn", "benchmarks"])
def test_no_modules_import_each_other_in_a_circle(package: str) -> None:
    graph = import_graph(package)
    imports = {module: graph.find_modules_directly_imported_by(module) for module in graph.modules}
    TopologicalSorter(imports).prepare()  # raises CycleError, which names the circle


def test_no_layer_imports_one_above_it() -> None:
    graph = import_graph("pml_xbn")
    assert {name.removeprefix("pml_xbn.") for name in graph.find_children("pml_xbn")} == {
        name for layer in LAYERS for name in ([layer] if isinstance(layer, str) else layer)
    }
    assert not graph.find_illegal_dependencies_for_layers(LAYERS, containers={"pml_xbn"})
