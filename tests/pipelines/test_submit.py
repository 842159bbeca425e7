"""``python -m pipelines submit`` against a server over real HTTP: every outcome, and trouble on the way."""

import json
import re
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import typer
from click.testing import Result
from typer.core import TyperGroup
from typer.testing import CliRunner

from pipelines.__main__ import app
from pipelines.submission import submit
from pipelines.submission.server import Pace
from pipelines.submission.watch import RunOutcome
from tests.pipelines.kubeflow import GIVEN, Kubeflow, state, task, waited

ROOT = Path(__file__).parents[2]
TASKS = [
    "approve-model",
    "check-training",
    "condition-1",
    "evaluate-fastkan",
    "fingerprint-parquet",
    "prepare-parquet",
    "resolve-uris",
    "train-fastkan",
]

RUNNING = state("RUNNING", task("prepare-parquet", "RUNNING"))
SUCCEEDED = state("SUCCEEDED", *(task(name, "SUCCEEDED") for name in TASKS))
FAILED = state(
    "FAILED",
    task("prepare-parquet", "SUCCEEDED", task_id="1"),
    task("train-fastkan", "FAILED", task_id="2", child_tasks=[{"pod_name": "pod-7"}]),
    task("executor", "FAILED", "num_gpus is 4, but\x1b[31m 2 are visible\nmore", task_id="3", pod_name="pod-7"),
    error="a step failed",
)


def test_without_wait_the_run_is_started_and_its_address_printed(
    run: Callable[..., Result], kubeflow: Kubeflow
) -> None:
    result = run("--version-name", "abc123", "--run-name", "nightly", "--params", "epochs=3", "--run-as", "dkan")
    assert result.exit_code == 0, result.output
    assert f"{kubeflow.host}/#/runs/details/run-1" in result.stdout
    (started,) = kubeflow.runs
    assert started["display_name"] == "nightly" and started["experiment_id"] == "experiment_id-0"
    assert started["service_account"] == "dkan"
    assert started["pipeline_version_reference"] == {
        "pipeline_id": "pipeline_id-0", "pipeline_version_id": "pipeline_version_id-0"
    }  # fmt: skip
    assert started["runtime_config"]["parameters"] == {"data_uri": "s3://bucket/flights", "label": "late", "epochs": 3}
    assert kubeflow.asked("GET /runs/run-1") == 0


def test_dry_run_prints_what_would_be_submitted_and_sends_nothing(
    run: Callable[..., Result], kubeflow: Kubeflow
) -> None:
    result = run("--dry-run", "--version-name", "abc123", "--params", "epochs=3", "--wait")
    assert result.exit_code == 0 and not kubeflow.requests
    first, _, rest = result.stdout.partition("\n")
    assert first == "pipeline fastkan-training, version abc123"
    assert json.loads(rest) == {"data_uri": "s3://bucket/flights", "label": "late", "epochs": 3}
    refused = run("--dry-run", "--params", "epochs=few")
    assert refused.exit_code == 2 and "must be a whole number" in refused.stderr


def test_what_is_there_by_name_is_used_again(run: Callable[..., Result], kubeflow: Kubeflow) -> None:
    for version in ("one", "one", "two"):
        assert run("--version-name", version).exit_code == 0
    assert [entry["display_name"] for entry in kubeflow.pipelines] == ["fastkan-training"]
    assert [entry["display_name"] for entry in kubeflow.versions] == ["one", "two"]
    assert len(kubeflow.experiments) == 1 and len(kubeflow.runs) == 3


def test_a_version_without_a_name_is_named_by_its_content(run: Callable[..., Result], kubeflow: Kubeflow) -> None:
    assert run().exit_code == run().exit_code == 0
    (version,) = kubeflow.versions
    assert re.fullmatch("[0-9a-f]{12}", version["display_name"])


def test_run_that_succeeds_is_followed_to_its_end(
    run: Callable[..., Result], kubeflow: Kubeflow, tmp_path: Path
) -> None:
    kubeflow.states = [state("PENDING"), RUNNING, RUNNING, SUCCEEDED]
    result, summary, suite = waited(run, tmp_path)
    assert result.exit_code == 0, result.output
    assert result.stdout.count("prepare-parquet: RUNNING") == 1 and "train-fastkan: SUCCEEDED" in result.stdout
    assert summary["outcome"] == "succeeded" and summary["exit_code"] == 0 and summary["run_id"] == "run-1"
    assert [(entry["name"], entry["seconds"]) for entry in summary["tasks"]] == [(name, 12.0) for name in TASKS]
    assert [case.get("name") for case in suite.findall("testcase")] == TASKS
    counts = {name: suite.get(name) for name in ("tests", "failures", "errors", "skipped")}
    assert counts == {"tests": "8", "failures": "0", "errors": "0", "skipped": "0"}
    assert sorted(path.name for path in tmp_path.iterdir()) == ["junit.xml", "summary.json"], "nothing is left aside"


def test_failure_names_task_and_error(run: Callable[..., Result], kubeflow: Kubeflow, tmp_path: Path) -> None:
    kubeflow.states = [RUNNING, FAILED]
    result, summary, suite = waited(run, tmp_path)
    assert result.exit_code == 1
    assert "train-fastkan failed: num_gpus is 4, but" in result.stderr and "\x1b" not in result.stderr
    assert "error: failed: a step failed" in result.stderr
    ended = {"prepare-parquet": "SUCCEEDED", "train-fastkan": "FAILED"}
    assert {entry["name"]: entry["state"] for entry in summary["tasks"]} == dict.fromkeys(TASKS, "PENDING") | ended
    failure = suite.find("testcase[@name='train-fastkan']/failure")
    assert failure is not None and "2 are visible" in failure.get("message", "") and "more" in (failure.text or "")
    assert suite.find("testcase[@name='evaluate-fastkan']/skipped") is not None
    assert (suite.get("failures"), suite.get("skipped")) == ("1", "6")


def test_failure_outside_the_tasks(run: Callable[..., Result], kubeflow: Kubeflow, tmp_path: Path) -> None:
    kubeflow.states = [state("FAILED", task("root-driver", "FAILED", "no such bucket"), error="exit code 1")]
    result, _, suite = waited(run, tmp_path)
    assert result.exit_code == 1 and "root-driver failed: no such bucket" in result.stderr
    assert suite.find("testcase[@name='root-driver']/failure") is not None
    kubeflow.states = [state("FAILED", error="quota exceeded")]
    result, _, suite = waited(run, tmp_path)
    failure = suite.find("testcase[@name='run']/failure")
    assert result.exit_code == 1 and failure is not None and "quota exceeded" in failure.get("message", "")


@pytest.mark.parametrize(("last", "code"), [("CANCELED", 3), ("SKIPPED", 1)])
def test_each_end_of_a_run_has_its_exit_code(
    run: Callable[..., Result], kubeflow: Kubeflow, tmp_path: Path, last: str, code: int
) -> None:
    kubeflow.states = [RUNNING, state("CANCELING"), state(last)]
    result, summary, suite = waited(run, tmp_path)
    assert result.exit_code == summary["exit_code"] == code
    assert suite.find("testcase[@name='run']") is not None


def test_run_continues_when_the_wait_times_out(run: Callable[..., Result], kubeflow: Kubeflow, tmp_path: Path) -> None:
    kubeflow.states = [RUNNING]
    result, summary, suite = waited(run, tmp_path, "--timeout", "0.1")
    assert result.exit_code == 4 and summary["outcome"] == "timeout"
    assert "no end within 0.1 s, state RUNNING; the run continues" in result.stderr
    assert suite.get("errors") == "1"


def test_timeout_while_the_server_is_silent(run: Callable[..., Result], kubeflow: Kubeflow, tmp_path: Path) -> None:
    kubeflow.states = [RUNNING, 503]
    result, _, _ = waited(run, tmp_path, "--timeout", "0.1")
    assert result.exit_code == 4 and "answers 503" in result.stderr


@pytest.mark.parametrize("trouble", [500, 503, 429, "drop"])
def test_requests_are_tried_again_while_the_server_fails(
    run: Callable[..., Result], kubeflow: Kubeflow, monkeypatch: pytest.MonkeyPatch, trouble: Any
) -> None:
    monkeypatch.setattr(submit, "PACE", Pace(first=0.01, slowest=0.02))
    kubeflow.states = [RUNNING, *[trouble] * 6, SUCCEEDED]
    kubeflow.faults = {"GET /healthz": [trouble], "POST /pipelines/upload_version": [503, 409]}
    result = run("--wait")
    assert result.exit_code == 0, result.output
    assert len(kubeflow.versions) == len(kubeflow.runs) == 1


@pytest.mark.parametrize("trouble", [502, "drop"])
def test_server_that_keeps_failing_ends_the_wait_and_not_the_run(
    run: Callable[..., Result], kubeflow: Kubeflow, tmp_path: Path, trouble: Any
) -> None:
    kubeflow.states = [RUNNING, trouble]
    result, summary, _ = waited(run, tmp_path)
    assert result.exit_code == 5 and summary["url"].endswith("run-1") and "the run continues" in summary["message"]


def test_refused_connection_is_named(tmp_path: Path) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        host = f"http://127.0.0.1:{free.getsockname()[1]}"
    result = CliRunner().invoke(app, ["submit", "--host", host, *GIVEN, "--summary", str(tmp_path / "summary.json")])
    assert result.exit_code == 5 and "Connection refused" in result.stderr
    assert json.loads((tmp_path / "summary.json").read_text())["outcome"] == "unreachable"


def test_a_run_is_never_started_twice(run: Callable[..., Result], kubeflow: Kubeflow) -> None:
    kubeflow.faults = {"POST /runs": ["drop"]}
    result = run("--run-name", "nightly")
    assert result.exit_code == 5 and kubeflow.asked("POST /runs") == 1
    assert "whether run 'nightly' started" in result.stderr


def test_namespace_comes_from_the_option_or_from_the_pod(
    run: Callable[..., Result], kubeflow: Kubeflow, tmp_path: Path
) -> None:
    kubeflow.multi_user = True
    (tmp_path / "namespace").write_text("of-the-pod")
    for options, expected in ((["--namespace", "team"], "team"), ([], "of-the-pod")):
        kubeflow.requests.clear()
        assert run(*options).exit_code == 0
        asked = {what: query.get("namespace") for what, query, _ in kubeflow.requests}
        assert asked["GET /pipelines"] == asked["GET /experiments"] == expected
    assert not (tmp_path / "home").exists(), "the SDK would remember the namespace in the home folder"


def test_summary_that_cannot_be_written(run: Callable[..., Result], tmp_path: Path) -> None:
    result = run("--wait", "--summary", str(tmp_path / "none" / "summary.json"))
    assert result.exit_code == 2 and "summary.json" in result.stderr


def test_a_server_without_tls_is_not_asked_again(kubeflow: Kubeflow, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(submit, "PACE", Pace(first=60))
    result = CliRunner().invoke(app, ["submit", "--host", kubeflow.host.replace("http:", "https:"), *GIVEN])
    assert result.exit_code == 5 and "SSL" in result.stderr


def test_every_exit_code_and_option_is_documented() -> None:
    assert len({outcome.value for outcome in RunOutcome}) == len(RunOutcome) == 6
    page = (ROOT / "docs/guides/ci.md").read_text()
    for outcome in RunOutcome:
        assert re.search(rf"[:;] {outcome.value} ", " ".join(submit.EXIT_CODES.split())), outcome
        assert f"| {outcome.value} | {outcome.name.lower()} |" in page
    command = typer.main.get_command(app)
    assert isinstance(command, TyperGroup)
    options = {option for parameter in command.commands["submit"].params for option in parameter.opts}
    block = next(block for block in page.split("```") if "pipelines submit --host" in block)
    assert set(re.findall(r"--[a-z][a-z-]+", page)) | {"--pipeline", "--run-name"} == options
    assert set(re.findall(r"--[a-z][a-z-]+", block)) <= options
