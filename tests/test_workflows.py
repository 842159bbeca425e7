"""The contributor's kit: GitHub's workflows call what the Makefile has, safely; `make` sets up a checkout."""

import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parents[1]
WORKFLOWS = sorted((ROOT / ".github/workflows").glob("*.yml"))
FORMS = sorted((ROOT / ".github/ISSUE_TEMPLATE").glob("*_*.yml"))
TARGETS = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
MAKE = ("make", "--silent", "--old-file=.venv/.ready", f"BIN={Path(sys.executable).parent}")

every_workflow = pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)


def load(path: Path) -> dict[Any, Any]:
    loaded = yaml.safe_load(path.read_text())
    assert isinstance(loaded, dict)
    return loaded


def steps(path: Path) -> list[dict[str, Any]]:
    return [step for job in load(path)["jobs"].values() for step in job["steps"]]


def make_targets(script: str) -> list[str]:
    """Return the targets that a shell script makes.

    >>> make_targets('sudo make a && test "$(make --silent b X=1)"')
    ['a', 'b']
    """
    calls = re.findall(r"\bmake\b([^\n&|;)>]*)", script)
    return [word for call in calls for word in shlex.split(call) if not word.startswith("-") and "=" not in word]


def test_there_is_a_workflow_for_each_purpose() -> None:
    assert {path.stem for path in WORKFLOWS} == {"docs", "image", "release", "test"}


@every_workflow
def test_runs_what_the_makefile_has(path: Path) -> None:
    made = [target for step in steps(path) for target in make_targets(step.get("run", ""))]
    assert made and set(made) <= TARGETS, path


@every_workflow
def test_has_no_more_permissions_than_it_names(path: Path) -> None:
    workflow = load(path)
    assert workflow["permissions"] == {"contents": "read"}
    written = {name: job["permissions"] for name, job in workflow["jobs"].items() if "permissions" in job}
    assert all(isinstance(permissions, dict) for permissions in written.values())
    # A pull request can change what a job runs: jobs that may write run on pushes alone.
    if "pull_request" in workflow[True]:  # YAML 1.1 reads `on` as true
        assert all("github.event_name" in workflow["jobs"][name]["if"] for name in written)


@every_workflow
def test_ends_in_time_and_once_for_each_ref(path: Path) -> None:
    workflow = load(path)
    assert workflow["concurrency"]["group"] == "${{ github.workflow }}-${{ github.ref }}"
    assert all(job["timeout-minutes"] <= 120 for job in workflow["jobs"].values())


@every_workflow
def test_actions_are_pinned_by_commit(path: Path) -> None:
    used = re.findall(r"uses: (.*)", path.read_text())
    assert used
    for action in used:
        assert re.fullmatch(r"[\w/-]+@[0-9a-f]{40} # v\d+\.\d+\.\d+", action), action


@every_workflow
def test_scripts_are_free_of_what_others_can_write(path: Path) -> None:
    assert not [step["run"] for step in steps(path) if "${{" in step.get("run", "")]
    checkouts = [step for step in steps(path) if step.get("uses", "").startswith("actions/checkout@")]
    assert all(step["with"]["persist-credentials"] is False for step in checkouts)


def test_tests_run_with_every_supported_python_as_in_ci() -> None:
    matrix = load(ROOT / ".github/workflows/test.yml")["jobs"]["test"]["strategy"]["matrix"]["python"]
    classifiers = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["classifiers"]
    assert matrix == [each.split(" :: ")[2] for each in classifiers if re.search(r":: 3\.\d+$", each)]
    made = [
        target for step in steps(ROOT / ".github/workflows/test.yml") for target in make_targets(step.get("run", ""))
    ]
    assert made == make_targets((ROOT / ".ci/run").read_text())


@pytest.mark.parametrize("path", FORMS, ids=lambda path: path.stem)
def test_issue_forms_ask_each_thing_once(path: Path) -> None:
    form = load(path)
    assert {"name", "description", "body"} <= set(form)
    asked = [field for field in form["body"] if field["type"] != "markdown"]
    names = [field["id"] for field in asked]
    assert len(names) == len(set(names)) and any(field.get("validations", {}).get("required") for field in asked)


@pytest.mark.parametrize("kind", ["checkout", "folder", "folder in a checkout"])
def test_install_sets_up_the_hooks_in_a_checkout_alone(tmp_path: Path, kind: str) -> None:
    folder = tmp_path / "inner" if kind == "folder in a checkout" else tmp_path
    folder.mkdir(exist_ok=True)
    for name in ("Makefile", ".pre-commit-config.yaml", "pyproject.toml", "uv.lock"):
        shutil.copy(ROOT / name, folder)
    if kind != "folder":
        subprocess.run(["git", "init", "--quiet", tmp_path], check=True)
    subprocess.run([*MAKE, "install"], cwd=folder, check=True)
    assert (tmp_path / ".git/hooks/pre-commit").exists() == (kind == "checkout")
