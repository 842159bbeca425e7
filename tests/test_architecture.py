"""The structure that docs/concepts/architecture.md draws, checked on the syntax trees."""

import ast
import graphlib
import inspect
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

import dkan_core
from dkan_core.training.launcher.fork_server import IMPORTED_AHEAD
from dkan_core.training.launcher.fork_server import MODULES as PROCESS_MODULES
from tests import warm

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "dkan_core"
MODULES = sorted(PACKAGE.rglob("*.py"))

LAYERS = [
    {"errors", "utils.resources", "utils.messages", "native"},
    {"config", "utils"},
    {"training.breakdown"},
    {"data", "training.history"},
    {"evaluation.metrics"},
    {"evaluation.curves", "evaluation.intervals"},
    {"report.figures", "report.templating"},
    {"model", "report"},
    {"scoring"},
    {"evaluation.drift"},
    {"explanation", "tracking", "onnx_export"},
    {"evaluation.labelled_rows", "evaluation.leakage"},
    {"inspection", "evaluation.publishing", "batch_scoring"},
    {"evaluation", "training"},
    {"editing"},
    {"integrations", "serving", "trainjob"},
    {"cli", "forms"},
]
"""Lowest first: a module imports from its own part or from a lower layer."""

PARTS = {part for layer in LAYERS for part in layer}


def part_of(module: str) -> str:
    """Return the part of the package that a module belongs to: the longest of its names that is one."""
    names = module.removeprefix("dkan_core.").split(".")
    parts = (".".join(names[:length]) for length in range(len(names), 0, -1))
    return next((part for part in parts if part in PARTS), names[0])


@cache
def all_imports(path: Path) -> set[str]:
    """Return the modules that a file imports, or the names in them."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module:
            found |= {f"{node.module}.{alias.name}" for alias in node.names}
        elif isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
    return found


def imports(path: Path) -> set[str]:
    """Return those of dkan_core."""
    return {name for name in all_imports(path) if name.startswith("dkan_core.")}


def test_kfp_is_never_imported() -> None:
    assert not [path for path in MODULES for name in all_imports(path) if name.split(".")[0] == "kfp"]


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_imports_go_down_the_layers_alone(path: Path) -> None:
    module = ".".join(path.relative_to(PACKAGE).with_suffix("").parts).removesuffix(".__init__")
    if module in ("__init__", "__main__"):
        return
    level = next(index for index, layer in enumerate(LAYERS) if part_of(module) in layer)
    allowed = set().union(*LAYERS[:level]) | {part_of(module)}
    wrong = {name for name in imports(path) if part_of(name) not in allowed}
    assert not wrong, f"{path} imports {wrong}"


def circle_of(imported: dict[str, set[str]]) -> list[str]:
    """Return names of which each imports the next one, and the last one the first; none where there is no circle."""
    try:
        graphlib.TopologicalSorter(imported).prepare()
    except graphlib.CycleError as error:
        return list(error.args[1])
    return []


def test_a_circle_is_found() -> None:
    assert set(circle_of({"a": {"b"}, "b": {"c"}, "c": {"a"}, "d": {"a"}})) == {"a", "b", "c"}


@pytest.mark.parametrize("part", [path.name for path in sorted(PACKAGE.iterdir()) if path.is_dir()])
def test_folders_of_a_part_do_not_import_each_other_in_a_circle(part: str) -> None:
    folder = PACKAGE / part
    found: dict[str, set[str]] = {}
    for path in folder.rglob("*.py"):
        own = path.relative_to(folder).parts[0]
        names = (name.split(".") for name in imports(path))
        found.setdefault(own, set()).update(
            words[2] for words in names if words[1] == part and (folder / words[2]).is_dir() and words[2] != own
        )
    assert not circle_of(found)


def module_of(path: Path) -> str:
    return ".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts).removesuffix(".__init__")


def test_modules_do_not_import_each_other_in_a_circle() -> None:
    """Neither do imports inside functions, which hide a circle from Python and not from a reader."""
    modules = {module_of(path) for path in MODULES}
    found = {
        module_of(path): {name if name in modules else name.rpartition(".")[0] for name in imports(path)}
        for path in MODULES
    }
    assert not circle_of(found)


def test_public_names_are_sorted_and_exist() -> None:
    assert dkan_core.__all__ == sorted(dkan_core.__all__) and len(dkan_core.__all__) > 40
    for name in dkan_core.__all__:
        public = getattr(dkan_core, name)
        assert public.__doc__, name
        if inspect.isfunction(public) and inspect.signature(public).return_annotation is not None:
            assert "Returns:" in public.__doc__ or public.__doc__.startswith("Return "), name
    with pytest.raises(AttributeError, match="no attribute 'trian'"):
        _ = dkan_core.trian  # type: ignore[attr-defined]


def test_public_names_are_offered_for_completion_before_they_are_imported() -> None:
    code = "import sys, dkan_core; assert dir(dkan_core) == sorted([*dkan_core.__all__, '__version__'])"
    subprocess.run([sys.executable, "-c", f"{code}; sys.exit('dkan_core.errors' in sys.modules)"], check=True)


def test_public_names_are_not_hidden_by_modules_of_the_same_name() -> None:
    imports = "import dkan_core.cli, dkan_core.integrations.notebook"
    code = f"{imports}; from dkan_core import *; assert callable(train) and callable(main)"
    done = warm.server().run(["-c", code])
    assert done.returncode == 0, done.stderr


def test_what_needs_no_torch_does_not_import_it() -> None:
    names = ("data.preparation.parallel", "data.preparation.prepare", "training.roles.parameter_server", "cli")
    for_each = "; ".join(f"import dkan_core.{name}; assert 'torch' not in sys.modules, '{name}'" for name in names)
    subprocess.run([sys.executable, "-c", f"import sys; {for_each}"], check=True)


def test_processes_of_a_run_import_nothing_for_pages_and_retries() -> None:
    modules = ", ".join(f"dkan_core.training.{PROCESS_MODULES[role]}" for role in IMPORTED_AHEAD)
    code = f"import sys, {modules}; sys.exit(bool({{'jinja2', 'tenacity', 'matplotlib'}} & set(sys.modules)))"
    subprocess.run([sys.executable, "-c", code], check=True)
