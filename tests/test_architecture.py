"""Architecture: torch stays in child processes, Textual in the user interface, imports go one way."""

import pkgutil
from collections import defaultdict
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import grimp

import cs336_tui
from tests.loading import loaded_with, python

TORCH_SIDE = (
    "cs336_tui.worker.workload",
    "cs336_tui.worker.ranks",
    "cs336_tui.worker.measure",
    "cs336_tui.worker.estimate",
)
UI_SIDE = ("cs336_tui.tui",)


def modules_outside(sides: tuple[str, ...]) -> list[str]:
    """Every module of the package but the given sides, found without importing any."""
    packages = ["cs336_tui"]
    found = ["cs336_tui"]
    while packages:
        package = packages.pop()
        folder = Path(*cs336_tui.__path__, *package.split(".")[1:])
        for module in pkgutil.iter_modules([str(folder)], f"{package}."):
            if module.name.startswith(sides) or module.name.endswith("__main__"):
                continue
            found.append(module.name)
            if module.ispkg:
                packages.append(module.name)
    return found


def test_the_import_contracts_hold() -> None:
    python("from importlinter.cli import lint_imports_command; lint_imports_command(['--no-cache'])")


def circle(imports: dict[str, set[str]]) -> list[str]:
    """Some circle of imports; empty if there is none."""
    try:
        TopologicalSorter(imports).prepare()
    except CycleError as error:
        return list(error.args[1])
    return []


def test_a_circle_is_found() -> None:
    assert circle({"a": {"b"}, "b": {"c"}, "c": {"d"}}) == []
    assert set(circle({"a": {"b"}, "b": {"c"}, "c": {"b"}})) == {"b", "c"}


def test_no_import_circle() -> None:
    """Neither among modules nor among the parts of any package; imports for type checking count, too."""
    graph = grimp.build_graph("cs336_tui", cache_dir=None)
    imports = {module: graph.find_modules_directly_imported_by(module) for module in graph.modules}
    assert len(imports) > 200
    assert circle(imports) == []
    parts: dict[str, dict[str, set[str]]] = defaultdict(lambda: defaultdict(set))
    for importer, imported in ((importer, each) for importer, found in imports.items() for each in found):
        ours, theirs = importer.split("."), imported.split(".")
        same = next((at for at, (a, b) in enumerate(zip(ours, theirs, strict=False)) if a != b), 0)
        if same:  # else one is the other's package
            package, *pair = (".".join(names) for names in (ours[:same], ours[: same + 1], theirs[: same + 1]))
            parts[package][pair[0]].add(pair[1])
    assert {package: found for package, imports in parts.items() if (found := circle(imports))} == {}


def test_only_the_measuring_side_loads_torch() -> None:
    modules = modules_outside(TORCH_SIDE)
    assert "cs336_tui.session.state" in modules
    assert not set(TORCH_SIDE) & set(modules)
    assert loaded_with(modules, "torch") == set()


def test_only_the_user_interface_loads_textual() -> None:
    modules = modules_outside(UI_SIDE)
    assert "cs336_tui.export.subjects.results" in modules
    assert loaded_with(modules, "textual") == set()


def test_the_core_loads_without_the_heavy_libraries() -> None:
    """The command starts quickly, and the user interface stays small in memory."""
    core = ["cs336_tui.cli.main", "cs336_tui.session.state", "cs336_tui.export.summary"]
    assert loaded_with(core, "torch", "textual", "numpy", "pynvml") == set()
