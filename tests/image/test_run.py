"""The ``docker run`` of the docs, by a user without a name, on a read-only root, without capabilities or a network."""

import json
import re
import shlex
import shutil
import time
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from dkan_core.training.state.checkpoint_store import load_checkpoint
from tests.image.base import ROOT
from tests.image.build import BUILD_SECONDS, Image, locked_version
from tests.image.conftest import open_to_all
from tests.image.engine import docker, docker_output

pytestmark = [pytest.mark.image, pytest.mark.timeout(BUILD_SECONDS + 300)]
USER = "54321:54321"
HARDENED = "--read-only --tmpfs /tmp:exec --cap-drop ALL --security-opt no-new-privileges --memory 4g --network none"
PLAIN = ("--model", "fastkan", "--hidden", "16", "--batch-size", "64")


@pytest.fixture(scope="module")
def folder(flights: Path, image: Image, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A user's folder, with the flights prepared in a container."""
    with open_to_all():
        folder = tmp_path_factory.mktemp("user") / "data"
        (folder / "flights").mkdir(parents=True)
    shutil.copyfile(flights / "flights.parquet", folder / "flights" / "flights.parquet")
    columns = ("--label", "label", "--split-column", "split")
    run(image, folder, "dkan", "prepare", "/data/flights", "--out", "/data/prepared", *columns)
    return folder


def documented_command(image: Image, folder: Path) -> tuple[list[str], list[str]]:
    """Return the first ``docker run`` of docs/guides/docker.md in two parts: up to the image, and the command in it."""
    line = re.findall(r"^docker (run .*)$", (ROOT / "docs/guides/docker.md").read_text(), re.MULTILINE)[0]
    name = f"dkan:{locked_version('dkan')}"
    changes = {"--gpus all": HARDENED, "$(id -u):$(id -g)": USER, "$PWD": str(folder), name: image.tag}
    for old, new in changes.items():
        assert old in line, f"the line has no {old}"
        line = line.replace(old, new)
    words = shlex.split(line)
    position = words.index(image.tag) + 1
    return words[:position], words[position:]


def run(image: Image, folder: Path, *command: str) -> str:
    start, _ = documented_command(image, folder)
    return docker_output(*start, *command, seconds=280)


def test_documented_line_trains_and_the_model_can_be_evaluated(image: Image, folder: Path) -> None:
    start, command = documented_command(image, folder)
    docker_output(*start, *command, seconds=280)
    places = ("/data/run/model", "/data/prepared", "--out", "/data/eval")
    run(image, folder, "dkan", "evaluate", *places, "--split", "test")
    metrics = json.loads((folder / "eval/metrics.json").read_text())
    assert metrics["average_precision"] > 2 * metrics["prevalence"]
    assert {path.stat().st_uid for path in (folder / "run").rglob("*")} == {54321}


def test_stopped_container_leaves_a_checkpoint_and_another_goes_on(image: Image, folder: Path) -> None:
    start, _ = documented_command(image, folder)
    endless = (*PLAIN, "--epochs", "100000", "--patience", "1000000")
    train = ("dkan", "train", "/data/prepared", "--out", "/data/stopped", *endless)
    # Not removed when it ends: it is asked for its exit code.
    detached = ["run", "--detach", *(word for word in start[1:] if word != "--rm")]
    container = docker_output(*detached, *train)
    try:
        wait_for_lines(folder / "stopped/history.jsonl", 2, container)
        docker_output("stop", "--time", "60", container)
        code = docker_output("inspect", "--format", "{{.State.ExitCode}} {{.State.OOMKilled}}", container)
        assert code == "143 false", docker("logs", container).stderr
    finally:
        docker("rm", "--force", container)
    assert not (folder / "stopped/metrics.json").exists()
    _, checkpoint = load_checkpoint(str(folder / "stopped/checkpoints")) or ("", None)
    assert checkpoint is not None and checkpoint.ledger.step > 0
    seconds = str(checkpoint.ledger.started + 5)
    again = docker(*start, *train, "--resume", "auto", "--max-seconds", seconds, seconds=280)
    assert again.returncode == 0, again.stderr
    assert f"resuming from step {checkpoint.ledger.step}" in again.stderr
    assert (folder / "stopped/metrics.json").exists()


def wait_for_lines(path: Path, number: int, container: str) -> None:
    """Wait until a container has written so many lines."""
    deadline = time.monotonic() + 120
    while not path.exists() or len(path.read_text().splitlines()) < number:
        assert time.monotonic() < deadline, docker("logs", container).stderr
        time.sleep(0.2)


def wait_for_log(text: str, container: str) -> None:
    """Wait until a container has logged a text."""
    deadline = time.monotonic() + 120
    while text not in docker("logs", container).stderr:
        assert time.monotonic() < deadline, docker("logs", container).stderr
        time.sleep(0.2)


def test_model_is_served_and_the_server_ends_in_order(image: Image, folder: Path) -> None:
    start, train = documented_command(image, folder)
    docker_output(*start, *train[:-1], "/data/served", seconds=280)
    detached = ["run", "--detach", *(word for word in start[1:] if word != "--rm")]
    container = docker_output(*detached, "dkan", "serve", "/data/served", "--name", "late")
    row = pq.read_table(folder / "flights").slice(0, 1).drop_columns(["label", "split"]).to_pylist()
    ask = (
        "import sys, urllib.request\n"
        "url = 'http://127.0.0.1:8080/v1/models/late:predict'\n"
        "print(urllib.request.urlopen(url, sys.argv[1].encode()).read().decode())"
    )
    try:
        wait_for_log("Uvicorn running on", container)
        answer = docker_output("exec", container, "python", "-c", ask, json.dumps({"instances": row}))
        assert 0 < json.loads(answer)["predictions"][0]["label_probability"] < 1
        docker_output("stop", "--time", "60", container)
        assert docker_output("inspect", "--format", "{{.State.ExitCode}}", container) == "0"
    finally:
        docker("rm", "--force", container)
