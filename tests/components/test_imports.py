"""Components stay thin: what they run is dkan_core's public surface, imported where it runs."""

import ast
from pathlib import Path

import pytest

import dkan_core

ROOT = Path(__file__).parents[2]
SOURCES = sorted(ROOT.glob("components/*/*/component.py"))


def function_of(source: Path) -> ast.FunctionDef:
    functions = [node for node in ast.parse(source.read_text()).body if isinstance(node, ast.FunctionDef)]
    assert len(functions) == 1, f"{source} defines {len(functions)} functions; a component file has one"
    return functions[0]


@pytest.mark.parametrize("source", SOURCES, ids=lambda source: source.parent.name)
def test_body_imports_only_the_public_surface_of_dkan_core(source: Path) -> None:
    imports = [node for node in ast.walk(function_of(source)) if isinstance(node, ast.Import | ast.ImportFrom)]
    for node in imports:
        assert isinstance(node, ast.ImportFrom) and node.module == "dkan_core", ast.unparse(node)
        assert {alias.name for alias in node.names} <= set(dkan_core.__all__), ast.unparse(node)


@pytest.mark.parametrize("source", SOURCES, ids=lambda source: source.parent.name)
def test_module_imports_nothing_the_image_would_need(source: Path) -> None:
    modules = {node.module for node in ast.parse(source.read_text()).body if isinstance(node, ast.ImportFrom)}
    assert modules <= {"kfp", "typing", "components.image"}
    # With postponed annotations kfp cannot tell an artifact from a parameter.
    assert "__future__" not in modules
