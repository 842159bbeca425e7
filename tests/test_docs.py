"""The README is short and its commands run; what only a checkout, a container or a cluster can run fits what is there.

``tests/test_site.py`` has the rest of the pages.
"""

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
from tests import warm, warm_python

ROOT = Path(__file__).parents[1]
PIPELINE = ROOT / "pipelines/training/fastkan_training/pipeline.yaml"
TROUBLES = ROOT / "docs/troubleshooting.md"
ROWS = 600
COLUMNS = ["month", "hour", "carrier", "origin", "distance", "temp", "date", "label", "split"]


def blocks(page: str, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", (ROOT / page).read_text(), re.MULTILINE | re.DOTALL)


def lines_starting(page: str, *words: str) -> list[str]:
    lines = [line for block in blocks(page, "bash") for line in block.splitlines()]
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
        ["bash", "-c", command], cwd=folder, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, f"{command}\n{done.stdout}{done.stderr}"
    return done.stdout


@pytest.fixture(scope="module")
def flights(folder: Path) -> Path:
    """Write the flights with the README's command, then thin out one file of them: no command changes."""
    pytest.importorskip("pandas", reason="needs the demo extra")
    (command,) = lines_starting("README.md", "python examples/flights.py")
    run(command, folder)
    first, *others = sorted((folder / "flights").iterdir())
    for path in others:
        path.unlink()
    table = pq.read_table(first, columns=COLUMNS)
    pq.write_table(table.take(list(range(0, len(table), len(table) // ROWS))), first)
    return folder / "flights"


def test_readme_is_read_in_one_go() -> None:
    lines = (ROOT / "README.md").read_text().splitlines()
    assert len(lines) <= 150
    assert [line for line in lines if line.startswith("![")]


@pytest.mark.slow
@pytest.mark.usefixtures("flights")
def test_commands_lead_to_a_model_and_what_it_says(folder: Path) -> None:
    commands = lines_starting("README.md", "dkan ")
    assert [command.split()[1] for command in commands] == ["prepare", "train", "evaluate", "explain", "predict"]
    for command in commands:
        done = warm.server().run(shlex.split(command)[1:], folder)
        assert done.returncode == 0, f"{command}\n{done.stdout}{done.stderr}"
    for result in ("run/model/model.safetensors", "eval/report.html", "learned/explanation.html", "scores.parquet"):
        assert (folder / result).exists()
    assert set(commands) <= set(lines_starting("docs/getting-started/first-model.md", "dkan "))


@pytest.mark.slow
@pytest.mark.usefixtures("flights")
def test_message_about_a_misspelt_label_is_that_of_the_tutorials_data(folder: Path) -> None:
    (message, label) = re.findall(r"`(label column '(\w+)' does not exist; .*?)`", TROUBLES.read_text())[0]
    done = warm.server().run(["prepare", "flights", "--label", label, "--out", "misspelt"], folder)
    assert done.returncode == 2 and message in done.stderr


def shape(text: str) -> str:
    """Return what is printed from the model on, without numbers and paths."""
    return re.sub(r"\d+(\.\d+)?", "#", re.sub(r"\S*/\S+|flights", "PATH", text[text.rindex("model:  ") :])).strip()


@pytest.mark.slow
@pytest.mark.usefixtures("flights")
def test_pipeline_runs_without_a_cluster(folder: Path) -> None:
    (command,) = lines_starting("docs/guides/kubeflow.md", "python -m pipelines run --param")
    done = warm_python.run(shlex.split(command)[1:], folder)
    assert done.returncode == 0, done.stdout + done.stderr
    (shown,) = [block for block in blocks("README.md", "text") if "test AP" in block]
    assert shape(done.stdout) == shape(shown.partition("\n")[2]), "of `make demo`, after the name of its log"
    report = re.search(r"^report: +(\S+)$", done.stdout, re.MULTILINE)
    assert report and Path(report[1]).is_file()


def test_python_code_is_that_of_the_page_about_notebooks() -> None:
    (code,) = blocks("README.md", "python")
    assert set(code.splitlines()) <= set(blocks("docs/getting-started/notebook.md", "python")[1].splitlines())


def test_make_targets_exist() -> None:
    makefile = (ROOT / "Makefile").read_text()
    targets = [line.split()[1] for page in ("README.md", "CONTRIBUTING.md") for line in lines_starting(page, "make ")]
    assert targets and all(f"\n{target}:" in makefile for target in targets)


def test_docker_run_fits_image_and_command() -> None:
    page = "docs/guides/docker.md"
    (build,) = lines_starting(page, "docker build -t dkan")
    commands = [line for block in blocks(page, "bash") for line in block.replace("\\\n", " ").splitlines()]
    runs = [command for command in commands if command.startswith("docker run")]
    assert IMAGE in build and len(runs) == 2
    for docker in runs:
        words = shlex.split(docker.replace("$(id -u):$(id -g)", "1000:1000"))
        place = words.index(IMAGE)
        assert words[place + 1] == "dkan"
        help_text = run(f"{words[place + 1]} {words[place + 2]} --help", ROOT)
        assert all(word in help_text for word in words[place + 3 :] if word.startswith("--"))
        mount = words[words.index("-v") + 1].split(":")[1]
        assert all(word.startswith(mount) for word in words[place + 3 :] if not word.startswith("--"))


def test_kfp_code_fits_the_pipeline(monkeypatch: pytest.MonkeyPatch) -> None:
    (code,) = [block for block in blocks("docs/guides/ci.md", "python") if "kfp.Client" in block]
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


def test_file_tree_names_what_is_there() -> None:
    (tree,) = blocks("docs/concepts/architecture.md", "text")
    for line in tree.splitlines():
        for name in line.split("  ")[0].split() if not line.startswith(" ") else []:
            assert (ROOT / name).exists(), name
    listed = set(re.findall(r"\b(\w+\.py)\b", tree))
    here = {folder: {path.name for path in (ROOT / folder).glob("[!_]*.py")} for folder in ("dkan_core", "pipelines")}
    assert here["dkan_core"] <= listed <= here["dkan_core"] | here["pipelines"]


def test_files_that_the_architecture_names_are_there() -> None:
    """Paths start at the root, at the package, or in the sections about them at the training or native part."""
    named = re.findall(r"`(\w+/[\w./-]*)`", (ROOT / "docs/concepts/architecture.md").read_text())
    parts = [ROOT / part for part in (".", "dkan_core", "dkan_core/training", "dkan_core/native")]
    assert len(named) > 200
    assert not [name for name in named if not any((part / name).exists() for part in parts)]


@pytest.mark.parametrize("name", ["cluster.md", "kubeflow.md"])
def test_kubernetes_objects_are_valid(name: str) -> None:
    """Everything that a reader may apply to a cluster passes the schemas of Kubernetes."""
    shown = re.findall(r"^```yaml\n(.*?)^```", (ROOT / "docs/guides" / name).read_text(), re.MULTILINE | re.DOTALL)
    objects = [each for block in shown if "apiVersion:" in block for each in yaml.safe_load_all(block)]
    assert objects
    for each in objects:
        kubernetes_validate.validate(each, kubernetes_validate.latest_version(), strict=True)


def test_no_line_installs_a_name_that_the_project_does_not_own() -> None:
    """There is no dkan of ours on PyPI: whoever registered the name there would be installed."""
    folders = ("dkan_core", "docs", "examples", "pipelines")
    read = [path for folder in folders for path in (ROOT / folder).rglob("*") if path.suffix in (".py", ".md")]
    installs = re.compile(r"(pip|uv) (install|add|tool install) ['\"]?dkan\b")
    found = [str(path) for path in (*read, *ROOT.glob("*.md")) if installs.search(path.read_text())]
    assert len(read) > 300 and not found
