"""The structure that docs/concepts/architecture.md draws, checked on the syntax trees."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import dkan_core

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "dkan_core"
MODULES = sorted(PACKAGE.rglob("*.py"))

LAYERS = [
    {"errors", "machine"},
    {"config", "schemas", "storage", "progress"},
    {"breakdown", "settings"},
    {"history", "metrics"},
    {"data", "figures", "page"},
    {"model", "report"},
    {"prediction"},
    {"explanation", "drift"},
    {"evaluation_data"},
    {"comparison", "publishing", "sample", "scoring"},
    {"evaluation", "training"},
    {"estimator", "nodes", "notebook"},
    {"cli"},
]
"""Lowest first: a module imports from its own part or from a lower layer."""


def part_of(module: str) -> str:
    return module.split(".")[1]


def imports(path: Path) -> set[str]:
    """Return the modules of dkan_core that a file imports."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module:
            names = [node.module]
            if node.module == "dkan_core":
                names = [f"dkan_core.{alias.name}" for alias in node.names]
            found |= set(names)
        elif isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
    return {name for name in found if name.startswith("dkan_core.")}


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_imports_go_down_the_layers_alone(path: Path) -> None:
    parts = path.relative_to(PACKAGE).with_suffix("").parts
    if parts[0] in ("__init__", "__main__"):
        return
    level = next(index for index, layer in enumerate(LAYERS) if parts[0] in layer)
    lower = {name for layer in LAYERS[:level] for name in layer} | {parts[0]}
    wrong = {name for name in imports(path) if part_of(name) not in lower}
    assert not wrong, f"{path} imports {wrong}"


def test_public_names_are_sorted_and_exist() -> None:
    assert dkan_core.__all__ == sorted(dkan_core.__all__) == sorted(dkan_core._HOMES)
    for name in dkan_core.__all__:
        assert getattr(dkan_core, name).__doc__, name
    with pytest.raises(AttributeError, match="no attribute 'trian'"):
        _ = dkan_core.trian


def test_public_names_are_not_hidden_by_modules_of_the_same_name() -> None:
    code = (
        "import dkan_core.cli, dkan_core.notebook; from dkan_core import *; assert callable(train) and callable(main)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize(
    "module",
    ["dkan_core", "dkan_core.cli", "dkan_core.data.parallel", "dkan_core.data.prepare", "dkan_core.training.server"],
)
def test_what_needs_no_torch_does_not_import_it(module: str) -> None:
    code = f"import sys, {module}; sys.exit('torch' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)
