"""The README does what it says: its commands and code run, its links lead somewhere."""

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import kfp
import kubernetes_validate
import pyarrow.parquet as pq
import pytest
import yaml

from components.image import IMAGE
from pipelines.compiled import inputs_of

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()
PAGES = [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").rglob("*.md")), *sorted(ROOT.glob("*/*/*/README.md"))]
PIPELINE = ROOT / "pipelines/training/fastkan_training/pipeline.yaml"
ROWS = 1000


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", README, re.MULTILINE | re.DOTALL)


def lines_starting(*words: str) -> list[str]:
    lines = [line for block in blocks("bash") for line in block.splitlines()]
    return [line.split("  #")[0].strip() for line in lines if line.startswith(words)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkout's folder as the README's commands expect it."""
    folder = tmp_path_factory.mktemp("readme")
    for name in ("examples", "pipelines", "components"):
        (folder / name).symlink_to(ROOT / name)
    return folder


def run(command: str, folder: Path) -> str:
    environment = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    done = subprocess.run(
        ["bash", "-c", command], cwd=folder, env=environment, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, f"{command}\n{done.stdout}{done.stderr}"
    return done.stdout


@pytest.fixture(scope="module")
def flights(folder: Path) -> Path:
    """Write the flights with the README's command, then thin out one file of them: the commands do not change."""
    pytest.importorskip("pandas", reason="needs the demo extra")
    (command,) = lines_starting("python examples/flights.py")
    run(command, folder)
    first, *others = sorted((folder / "flights").iterdir())
    for path in others:
        path.unlink()
    table = pq.read_table(first)
    pq.write_table(table.take(list(range(0, len(table), len(table) // ROWS))), first)
    return folder / "flights"


@pytest.mark.usefixtures("flights")
def test_commands_run_in_their_order(folder: Path) -> None:
    commands = lines_starting("dkan ")
    assert [command.split()[1] for command in commands] == ["prepare", "train", "evaluate", "explain", "predict"]
    for command in commands:
        run(command, folder)
    assert (folder / "eval/report.html").exists() and (folder / "scores.parquet").exists()


@pytest.mark.usefixtures("flights")
def test_pipeline_runs_without_a_cluster(folder: Path) -> None:
    (command,) = lines_starting("python -m pipelines run")
    printed = run(command, folder)
    assert re.search(r"test AP: 0\.\d{4}", printed)
    report = re.search(r"^report: +(\S+)$", printed, re.MULTILINE)
    assert report and Path(report[1]).is_file()


def test_make_targets_exist() -> None:
    makefile = (ROOT / "Makefile").read_text()
    for line in lines_starting("make "):
        assert f"\n{line.split()[1]}:" in makefile


def test_docker_run_fits_image_and_command() -> None:
    (build, *_), (docker,) = lines_starting("docker build -t dkan"), lines_starting("docker run")
    words = shlex.split(docker.replace("$(id -u):$(id -g)", "1000:1000"))
    place = words.index(IMAGE)
    assert IMAGE in build and words[place + 1] == "dkan"
    help_text = run(f"{words[place + 1]} {words[place + 2]} --help", ROOT)
    assert all(word in help_text for word in words[place + 3 :] if word.startswith("--"))
    mount = words[words.index("-v") + 1].split(":")[1]
    assert all(word.startswith(mount) for word in words[place + 3 :] if not word.startswith("--"))


def test_kfp_code_fits_the_pipeline(monkeypatch: pytest.MonkeyPatch) -> None:
    (code,) = [block for block in blocks("python") if "kfp.Client" in block]
    calls: dict[str, Any] = {}

    class Client:
        """Takes what the real client takes, and remembers it."""

        create = kfp.Client.create_run_from_pipeline_package
        wait = kfp.Client.wait_for_run_completion

        def __init__(self, **options: Any) -> None:
            calls["client"] = options

        def create_run_from_pipeline_package(self, *positional: Any, **options: Any) -> Any:
            import inspect

            calls["run"] = inspect.signature(type(self).create).bind(self, *positional, **options).arguments
            return SimpleNamespace(run_id="1")

        def wait_for_run_completion(self, *positional: Any, **options: Any) -> Any:
            import inspect

            inspect.signature(type(self).wait).bind(self, *positional, **options)
            return SimpleNamespace(state="SUCCEEDED")

    monkeypatch.setattr(kfp, "Client", Client)
    exec(code, {})
    inputs = inputs_of(PIPELINE)
    arguments = calls["run"]["arguments"]
    assert (ROOT / calls["run"]["pipeline_file"]).samefile(PIPELINE)
    assert set(arguments) <= set(inputs) and {name for name in inputs if not inputs[name].get("isOptional")} <= set(
        arguments
    )
    assert all(inputs[name]["parameterType"] == "STRING" for name in arguments)


@pytest.mark.usefixtures("flights")
@pytest.mark.parametrize("index", [0, 1, 2], ids=["main", "classifier", "steps"])
def test_python_code_runs(folder: Path, index: int) -> None:
    code = [block for block in blocks("python") if "dkan_core" in block][index]
    (folder / "code.py").write_text(code)
    assert "0." in run("python code.py", folder)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)\s]+)\)", page.read_text()):
        if not target.startswith(("http", "#")):
            assert (page.parent / target.split("#")[0]).exists(), f"{page}: {target}"


def test_file_tree_names_what_is_there() -> None:
    (tree,) = blocks("text")
    for line in tree.splitlines():
        for name in line.split("  ")[0].split() if not line.startswith(" ") else []:
            assert (ROOT / name).exists(), name
    listed = set(re.findall(r"\b(\w+\.py)\b", tree))
    here = {folder: {path.name for path in (ROOT / folder).glob("[!_]*.py")} for folder in ("dkan_core", "pipelines")}
    assert here["dkan_core"] <= listed <= here["dkan_core"] | here["pipelines"]


@pytest.mark.parametrize("name", ["kubeflow.md", "multi-node.md"])
def test_kubernetes_objects_are_valid(name: str) -> None:
    """Everything that a reader may apply to a cluster passes the schemas of Kubernetes."""
    shown = re.findall(r"^```yaml\n(.*?)^```", (ROOT / "docs/guides" / name).read_text(), re.MULTILINE | re.DOTALL)
    objects = [each for block in shown if "apiVersion:" in block for each in yaml.safe_load_all(block)]
    assert objects
    for each in objects:
        kubernetes_validate.validate(each, kubernetes_validate.latest_version(), strict=True)
