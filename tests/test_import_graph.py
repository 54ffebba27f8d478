"""Modules import each other without a circle, and no lower layer imports a higher one."""

from graphlib import TopologicalSorter

import grimp
import pytest

LAYERS = [
    {"datasets", "diagnostics", "heads", "testing", "training"},
    "losses",
    "distributed",
    "pairwise",
    "memory",
    "adapters",
    {"_buffers", "_eager", "_keywords", "_number_checks", "_pillow", "_tensor_checks"},
    {"_arithmetic", "_tracing"},
]


@pytest.mark.parametrize("package", ["pml_xbn", "benchmarks"])
def test_no_modules_import_each_other_in_a_circle(package: str) -> None:
    graph = grimp.build_graph(package, cache_dir=None)
    imports = {module: graph.find_modules_directly_imported_by(module) for module in graph.modules}
    TopologicalSorter(imports).prepare()  # raises CycleError, which names the circle


def test_no_layer_imports_one_above_it() -> None:
    graph = grimp.build_graph("pml_xbn", cache_dir=None)
    assert {name.removeprefix("pml_xbn.") for name in graph.find_children("pml_xbn")} == {
        name for layer in LAYERS for name in ([layer] if isinstance(layer, str) else layer)
    }
    assert not graph.find_illegal_dependencies_for_layers(LAYERS, containers={"pml_xbn"})
