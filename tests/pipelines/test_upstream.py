"""The asset folders under the scripts of kubeflow/pipelines-components, run as they are on a copy of the tree.

Needs a checkout of it: PIPELINES_COMPONENTS=<folder> pytest tests/pipelines/test_upstream.py. Where the lists that they
come with do not suffice, the test adds an entry, which docs/development/upstream.md explains.
"""

import ast
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from pipelines.assets import ROOT, asset_folders, load_asset

CHECKOUT = os.environ.get("PIPELINES_COMPONENTS", "")
ASSETS = asset_folders()
PIPELINES = [folder for folder in ASSETS if folder.startswith("pipelines/")]

IMAGE = "ghcr.io/kubeflow/pipelines-components-dkan:main"
"""The image as it would be called there."""

FORM_FIELD = r"^\{\{\$\.inputs\.parameters\['pipelinechannel--image'\]\}\}$"
"""What a compiled pipeline says of an image that is a field of its form: one more entry of the list of images."""

OURS = ["components", "pipelines"]
"""Imports at the top of a module that their guard does not allow everywhere."""

MAX_LINE = 120
"""Characters, as their markdownlint counts them; tables and code may be longer."""

in_checkout = pytest.mark.skipif(
    not CHECKOUT, reason="PIPELINES_COMPONENTS names no checkout of kubeflow/pipelines-components"
)


@pytest.fixture(scope="module")
def overlay(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Copy our folders and their scripts into one tree."""
    tree = tmp_path_factory.mktemp("overlay")
    for folder in ("components", "pipelines"):
        shutil.copytree(ROOT / folder, tree / folder, ignore=shutil.ignore_patterns("__pycache__"))
    for folder in ("scripts", ".github/scripts"):
        if (Path(CHECKOUT) / folder).is_dir():
            shutil.copytree(Path(CHECKOUT) / folder, tree / folder)
    for file in Path(CHECKOUT).glob(".markdownlint*"):
        shutil.copy(file, tree)
    assert (tree / "scripts").is_dir(), f"{CHECKOUT} holds no scripts/"
    return tree


def script(tree: Path, name: str, *arguments: str) -> str:
    """Run one of their scripts, which has to end without a finding, and return what it says."""
    module = f"scripts.{name}.{name}" if (tree / "scripts" / name / f"{name}.py").exists() else f"scripts.{name}"
    # dkan_core, which their image would contain, is found behind the copy.
    environment = os.environ | {"PYTHONPATH": f"{tree}{os.pathsep}{ROOT}", "DKAN_IMAGE": IMAGE}
    command = [sys.executable, "-m", module, *arguments]
    ended = subprocess.run(command, cwd=tree, env=environment, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return ended.stdout


@in_checkout
def test_assets_are_found_and_compile(overlay: Path) -> None:
    script(overlay, "validate_components", "--directories", "components", "pipelines")


@in_checkout
def test_compile_check(overlay: Path) -> None:
    # Earlier versions look only at assets that ask for it in their metadata, which its schema no longer knows.
    every = ["--include-flagless"] if "--include-flagless" in script(overlay, "compile_check", "--help") else []
    script(overlay, "compile_check", *every)


@in_checkout
def test_metadata(overlay: Path) -> None:
    if not (overlay / "scripts/validate_metadata").is_dir():
        pytest.skip("this checkout has no validate_metadata")
    pytest.importorskip("semver", reason="their check of metadata needs semver")
    for folder in ASSETS:
        script(overlay, "validate_metadata", "--dir", folder)


@in_checkout
def test_base_images(overlay: Path) -> None:
    theirs = yaml.safe_load((overlay / "scripts/validate_base_images/base_image_allowlist.yaml").read_text())
    theirs["allowed_image_patterns"].append(FORM_FIELD)
    (overlay / "allow_list.yaml").write_text(yaml.safe_dump(theirs))
    script(overlay, "validate_base_images", "--allow-list", str(overlay / "allow_list.yaml"))


@in_checkout
def test_base_image_tags(overlay: Path) -> None:
    if not (overlay / "scripts/check_base_image_tags").is_dir():
        pytest.skip("this checkout has no check_base_image_tags")
    arguments = ["ghcr.io/kubeflow/pipelines-components"]
    # Later versions are told the tag, too.
    if re.search(r"^  expected_tag\b", script(overlay, "check_base_image_tags", "--help"), re.MULTILINE):
        arguments.append("main")
    script(overlay, "check_base_image_tags", *arguments, "--directories", "components", "pipelines")


@in_checkout
@pytest.mark.parametrize("folder", ASSETS)
def test_readme_can_be_generated(folder: str, overlay: Path, tmp_path: Path) -> None:
    kind, out = folder.split("/")[0].removesuffix("s"), tmp_path / "README.md"
    script(overlay, "generate_readme", f"--{kind}", folder, "--output", str(out))
    inputs = load_asset(folder).component_spec.inputs or {}
    # They read a signature without running it: the form of a pipeline, which is made of its steps, is not in there.
    described = set(re.findall(r"^\| `(\w+)` \|", out.read_text(), re.MULTILINE))
    assert described >= inputs.keys() if kind == "component" else not described


@in_checkout
def test_imports_at_the_top(overlay: Path) -> None:
    guard = overlay / ".github/scripts/check_imports"
    if not (guard / "import_exceptions.yaml").exists():
        pytest.skip("this checkout has no check_imports with a YAML of exceptions")
    exceptions = yaml.safe_load((guard / "import_exceptions.yaml").read_text())
    exceptions["modules"] += OURS
    (overlay / "exceptions.yaml").write_text(yaml.safe_dump(exceptions))
    modules = [str(path.relative_to(overlay)) for folder in ASSETS for path in (overlay / folder).glob("*.py")]
    command = [sys.executable, str(guard / "check_imports.py"), "--config", "exceptions.yaml", *modules]
    ended = subprocess.run(command, cwd=overlay, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stdout + ended.stderr


@in_checkout
def test_markdown(overlay: Path) -> None:
    linter = shutil.which("markdownlint")
    if linter is None:
        pytest.skip("markdownlint is not installed; run: npm install --global markdownlint-cli")
    readmes = [f"{folder}/README.md" for folder in ASSETS]
    ended = subprocess.run([linter, *readmes], cwd=overlay, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr


@pytest.mark.parametrize("folder", PIPELINES)
def test_pipeline_shows_its_decorator(folder: str) -> None:
    """Theirs look for it in the syntax tree; each pipeline.py has one function, called like its folder."""
    nodes = ast.walk(ast.parse((ROOT / folder / "pipeline.py").read_text()))
    (function,) = [node for node in nodes if isinstance(node, ast.FunctionDef)]
    assert function.name == Path(folder).name
    assert ast.unparse(function.decorator_list[0]).startswith("dsl.pipeline(")
    assert load_asset(folder).description.startswith(ast.get_docstring(function))


@pytest.mark.parametrize("folder", ASSETS)
def test_readme_keeps_the_rules_of_their_linter(folder: str) -> None:
    text = (ROOT / folder / "README.md").read_text()
    prose = re.sub(r"^```.*?^```", "code", text, flags=re.MULTILINE | re.DOTALL)
    # A word may stand across the end of the line.
    too_long = [line for line in prose.splitlines() if " " in line[MAX_LINE:] and not line.startswith("|")]
    assert not too_long
    assert "\n\n\n" not in prose, "several blank lines"
