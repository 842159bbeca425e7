"""A job is made once, followed to its end whatever the connection does, and deleted unless it ends well."""

import json
import logging
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from dkan_core import ConfigError, DataError, NodesConfig, TrainConfig, TrainingError, TrainResult, train_on_nodes
from dkan_core.training.launcher.run_folder import WRITTEN
from dkan_core.training.state.checkpoint_store import CHECKPOINTS
from dkan_core.trainjob import launch, logs
from dkan_core.utils import kubernetes_api
from dkan_core.utils.retry import RetryPolicy
from tests.training.processes import wait_until
from tests.trainjob.kubernetes import COMPLETE, FAILED, JOBS, PODS, Kubernetes, container, pod, serve, write_kubeconfig

CONFIG = TrainConfig(epochs=2, hidden=(8,), batch_size=64, learning_rate=0.02)


@pytest.fixture
def shared(tmp_path: Path, prepared: Path) -> Path:
    """What the launcher and the nodes both have mounted, with the prepared data."""
    shutil.copytree(prepared, tmp_path / "shared" / "data")
    return tmp_path / "shared"


@pytest.fixture
def nodes(shared: Path) -> NodesConfig:
    return NodesConfig(image="dkan", pvc_name="claim", mount_path=str(shared), timeout_seconds=600)


@pytest.fixture
def kubernetes(tmp_path: Path, trained: TrainResult, monkeypatch: pytest.MonkeyPatch) -> Iterator[Kubernetes]:
    """Serve a cluster whose jobs leave the run of ``trained``."""
    for module in (launch, logs):
        monkeypatch.setattr(module, "POLL_SECONDS", 0.02)
    monkeypatch.setattr(kubernetes_api, "RETRIES", RetryPolicy(first_pause=0.01, attempts=3))

    def leave_run(job: dict[str, Any]) -> None:
        command = job["spec"]["trainer"]["args"]
        shutil.copytree(Path(trained.model).parent, command[command.index("--out") + 1], dirs_exist_ok=True)

    with serve(Kubernetes(work=leave_run)) as server:
        use_kubeconfig(write_kubeconfig(tmp_path / "kubeconfig", server.url), monkeypatch)
        yield server


def use_kubeconfig(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have processes started from here, and this one, whose client has read the variable already, take a cluster."""
    monkeypatch.setenv("KUBECONFIG", str(path))
    monkeypatch.setattr("kubernetes.config.kube_config.KUBE_CONFIG_DEFAULT_LOCATION", str(path))


@pytest.fixture
def go(shared: Path, nodes: NodesConfig) -> Callable[..., TrainResult]:
    def begin(config: TrainConfig = CONFIG, **change: Any) -> TrainResult:
        return train_on_nodes(
            shared / "data", shared / "run", config, replace(nodes, **change), copy_to=shared.parent / "model"
        )

    return begin


def named(kubernetes: Kubernetes, go: Callable[..., TrainResult]) -> str:
    """Return the name that the job gets, by having it done once."""
    go()
    (name,) = kubernetes.jobs
    kubernetes.jobs.clear()
    kubernetes.created.clear()
    kubernetes.requests.clear()
    return name


def test_job_is_made_followed_and_its_result_returned(
    kubernetes: Kubernetes, go: Callable[..., TrainResult], trained: TrainResult, shared: Path
) -> None:
    result = go()
    assert result.average_precision == trained.average_precision and result.history == trained.history
    assert result.model == str(shared / "run" / "model")
    assert len(kubernetes.created) == 1 and not kubernetes.asked("DELETE")
    copied = {path.name for path in (shared.parent / "model").iterdir()}
    assert copied <= set(WRITTEN) and {"model", "metrics.json", "history.jsonl"} <= copied
    assert (shared / "run" / CHECKPOINTS).exists()


def test_progress_is_shown_where_the_job_has_it(
    kubernetes: Kubernetes, go: Callable[..., TrainResult], caplog: pytest.LogCaptureFixture
) -> None:
    kubernetes.conditions = [None] * 6 + [COMPLETE]
    metrics = [{"name": "loss", "value": "0.5"}, {"name": "average_precision", "value": "0.75"}]
    kubernetes.trainer_statuses = [
        {"progressPercentage": percentage, "estimatedRemainingSeconds": 600 - 6 * percentage, "metrics": metrics}
        for percentage in (0, 4, 9, 40, 41, 100)
    ]
    with caplog.at_level("INFO"):
        go()
    shown = [record.getMessage().partition(": ")[2] for record in caplog.records if "% done" in record.getMessage()]
    rest = "; loss 0.5; average_precision 0.75"
    assert shown == [f"0% done, about 600 s left{rest}", f"40% done, about 360 s left{rest}", f"100% done{rest}"]


def test_running_job_of_an_earlier_attempt_is_followed(kubernetes: Kubernetes, go: Callable[..., TrainResult]) -> None:
    name = named(kubernetes, go)
    kubernetes.add(name, None, None, COMPLETE)
    go()
    assert not kubernetes.created and not kubernetes.asked("DELETE")


def test_complete_job_of_an_earlier_attempt_is_the_result(
    kubernetes: Kubernetes, go: Callable[..., TrainResult]
) -> None:
    kubernetes.add(named(kubernetes, go), COMPLETE)
    go()
    assert not kubernetes.created and not kubernetes.asked(f"GET {PODS}")


def test_complete_job_whose_run_is_gone_is_done_again(
    kubernetes: Kubernetes, go: Callable[..., TrainResult], shared: Path
) -> None:
    kubernetes.add(named(kubernetes, go), COMPLETE)
    shutil.rmtree(shared / "run")
    go()
    assert len(kubernetes.created) == 1 and kubernetes.asked("DELETE") == 1


def test_failed_job_of_an_earlier_attempt_makes_way_for_a_new_one(
    kubernetes: Kubernetes, go: Callable[..., TrainResult]
) -> None:
    name = named(kubernetes, go)
    kubernetes.add(name, FAILED)
    kubernetes.lingering = 3
    go()
    assert kubernetes.asked("DELETE") == 1 and [job["metadata"]["name"] for job in kubernetes.created] == [name]


def test_job_that_another_launcher_makes_meanwhile_is_followed(
    kubernetes: Kubernetes, go: Callable[..., TrainResult]
) -> None:
    name = named(kubernetes, go)
    kubernetes.add(name, None, COMPLETE)
    kubernetes.faults[f"GET {JOBS}/{name}"] = [404]
    go()
    assert kubernetes.asked(f"POST {JOBS}") == 1 and not kubernetes.created and not kubernetes.asked("DELETE")


def test_failed_job_is_named_with_its_pods_and_its_log_and_deleted(
    kubernetes: Kubernetes, go: Callable[..., TrainResult]
) -> None:
    kubernetes.conditions = [None, FAILED]
    kubernetes.log = ["epoch 1", "error: rank-0 died (exit code 75)"]
    killed = container(restarts=2, terminated={"exitCode": 137, "reason": "OOMKilled"})
    kubernetes.pods = [pod(0), pod(1, "Failed", containerStatuses=[killed])]
    with pytest.raises(TrainingError) as caught:
        go()
    message = str(caught.value)
    assert "TrainJob team/dkan-run-" in message and "JobsFailed: jobset failed" in message
    assert "node 1 Failed, OOMKilled, exit code 137, restarts 2" in message
    assert message.endswith("  epoch 1\n  error: rank-0 died (exit code 75)")
    assert not kubernetes.jobs


def test_job_that_takes_too_long_says_what_it_waits_for_and_is_deleted(
    kubernetes: Kubernetes, go: Callable[..., TrainResult]
) -> None:
    kubernetes.conditions = [None]
    scheduled = {"type": "PodScheduled", "status": "False", "message": "0/5 nodes available: insufficient gpu"}
    kubernetes.pods = [pod(0, "Pending", conditions=[scheduled])]
    kubernetes.faults[f"GET {PODS}/pod-0/log"] = [400] * 1000
    with pytest.raises(TrainingError, match=r"timeout_seconds 1 \(node 0 Pending, 0/5 nodes available: insufficient"):
        go(timeout_seconds=1)
    assert not kubernetes.jobs and kubernetes.asked("DELETE") == 1


def test_job_that_somebody_deletes_is_an_error(kubernetes: Kubernetes, go: Callable[..., TrainResult]) -> None:
    kubernetes.conditions = [404]
    with pytest.raises(TrainingError, match="was deleted while it ran"):
        go()


def test_log_is_shown_once_over_broken_connections(
    kubernetes: Kubernetes, go: Callable[..., TrainResult], caplog: pytest.LogCaptureFixture
) -> None:
    kubernetes.log = [f"line {number}" for number in range(20)]
    kubernetes.breaks = [3, 0, 11]
    kubernetes.conditions = [*[None] * 15, COMPLETE]
    kubernetes.faults[f"GET {PODS}/pod-0/log"] = [400, "drop", 500]
    with caplog.at_level(logging.INFO, "dkan_core.trainjob"):
        go()
    shown = [record.getMessage() for record in caplog.records if record.getMessage().startswith("node 0 | ")]
    assert shown == [f"node 0 | line {number}" for number in range(20)]
    assert any("sinceSeconds=" in request for request in kubernetes.requests)
    assert "jobset.sigs.k8s.io/replicatedjob-name=node" in kubernetes.selectors[0]


def test_cluster_that_does_not_answer_for_a_while_is_asked_again(
    kubernetes: Kubernetes, go: Callable[..., TrainResult], caplog: pytest.LogCaptureFixture
) -> None:
    kubernetes.faults[f"POST {JOBS}"] = [503, "drop"]
    kubernetes.conditions = [None, *[500, "drop"] * 5, 429, None, COMPLETE]
    go()
    assert len(kubernetes.created) == 1 and "asking again" in caplog.text


def test_job_made_by_a_request_whose_answer_was_lost_is_ours(
    kubernetes: Kubernetes, go: Callable[..., TrainResult]
) -> None:
    name = named(kubernetes, go)
    # The first one has made it, and the answer to it is lost.
    kubernetes.add(name, None, COMPLETE)
    kubernetes.faults[f"GET {JOBS}/{name}"] = [404]
    kubernetes.faults[f"POST {JOBS}"] = [502]
    go()
    assert not kubernetes.asked("DELETE")


@pytest.mark.parametrize(
    ("request_", "status", "message"),
    [
        (f"POST {JOBS}", 403, r"may not do that in this namespace; it needs create, get and delete on trainjobs.*403"),
        (f"GET {JOBS}/", 403, r"cannot get TrainJob team/dkan-run-.*may not do that"),
        (f"GET {JOBS}/", 401, r"does not know this service account"),
        (f"POST {JOBS}", 404, r"no TrainJobs; install Kubeflow Trainer 2\.2 or later"),
        (f"POST {JOBS}", 422, r"the cluster refuses it \(422: trouble 422\)"),
    ],
)
def test_refusal_of_the_cluster_is_named(
    kubernetes: Kubernetes, go: Callable[..., TrainResult], request_: str, status: int, message: str
) -> None:
    kubernetes.faults[request_] = [404, 404] if status == 404 else [status]
    with pytest.raises(ConfigError, match=message):
        go()
    assert not kubernetes.created and not kubernetes.asked("DELETE")


def test_older_trainer_refuses_a_job_rather_than_leave_out_its_volumes(
    kubernetes: Kubernetes, go: Callable[..., TrainResult]
) -> None:
    kubernetes.unknown = ("runtimePatches", "activeDeadlineSeconds")
    with pytest.raises(ConfigError, match=r"Kubeflow Trainer 2\.2 or later is needed \(400: strict.*runtimePatches"):
        go()
    assert not kubernetes.created


def test_job_whose_pods_may_not_be_listed_is_deleted(kubernetes: Kubernetes, go: Callable[..., TrainResult]) -> None:
    kubernetes.faults[f"GET {PODS}"] = [403] * 3
    with pytest.raises(ConfigError, match=r"cannot list pods.*may not do that"):
        go()
    assert kubernetes.created and not kubernetes.jobs


def test_logs_that_may_not_be_read_are_no_reason_to_fail(
    kubernetes: Kubernetes, go: Callable[..., TrainResult], caplog: pytest.LogCaptureFixture
) -> None:
    kubernetes.faults[f"GET {PODS}/pod-0/log"] = [403]
    go()
    assert "no logs are shown" in caplog.text and "may not do that" in caplog.text


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_launcher_that_is_told_to_end_deletes_its_job(
    kubernetes: Kubernetes, shared: Path, nodes: NodesConfig, number: int
) -> None:
    kubernetes.conditions, kubernetes.lingering = [None], 0
    code = (
        "import signal\n"
        # A shell that starts this in the background has it ignore Ctrl-C.
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "from dkan_core import NodesConfig, TrainConfig, train_on_nodes\n"
        f"nodes = NodesConfig(image='dkan', pvc_name='claim', mount_path={str(shared)!r})\n"
        f"train_on_nodes({str(shared / 'data')!r}, {str(shared / 'run')!r}, TrainConfig(), nodes)\n"
    )
    process = subprocess.Popen([sys.executable, "-c", code], stderr=subprocess.PIPE, text=True, env=os.environ.copy())
    try:
        wait_until(lambda: kubernetes.asked(f"GET {PODS}") > 0)
        time.sleep(0.1)
        process.send_signal(number)
        _, error = process.communicate()
    finally:
        process.kill()
    assert process.returncode == (143 if number == signal.SIGTERM else -signal.SIGINT), error
    assert kubernetes.created and not kubernetes.jobs and "is deleted" in error


def test_command_of_the_job_trains(kubernetes: Kubernetes, go: Callable[..., TrainResult], shared: Path) -> None:
    def train(job: dict[str, Any]) -> None:
        trainer = job["spec"]["trainer"]
        assert trainer["command"] == ["torchrun"]
        variables = {"PET_NNODES": "1", "PET_NPROC_PER_NODE": str(trainer["numProcPerNode"]), "PET_STANDALONE": "1"}
        torchrun = [sys.executable, "-m", "torch.distributed.run", *trainer["args"]]
        environment = {**os.environ, **variables, "GLOO_SOCKET_IFNAME": "lo"}
        subprocess.run(torchrun, check=True, env=environment, capture_output=True)

    kubernetes.work = train
    config = replace(CONFIG, label_weights=(1.0,), tensorboard=True, checkpoint_uri=str(shared / "kept"))
    result = go(config, workers_per_node=2, nodes=1)
    assert result.metrics["training"]["strategy"] == "allreduce" and result.metrics["training"]["workers"] == 2
    assert list((shared / "kept").glob("step-*.safetensors"))


@pytest.mark.parametrize(
    ("prepared_", "run", "message"),
    [
        ("/elsewhere/data", "s3://b/run", "prepared must be on storage that 2 nodes share: .* got '/elsewhere/data'"),
        (
            "s3://b/data",
            "run",
            "run must be on storage .* s3://bucket/folder or a path below .* got 'run'",
        ),
        ("s3://b/data", "s3:///run", "run must be on storage .* got 's3:///run'"),
        ("minio://b/data", "s3://b/run", "prepared must be on storage that 2 nodes share"),
    ],
)
def test_place_that_nodes_cannot_reach_is_refused(nodes: NodesConfig, prepared_: str, run: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        train_on_nodes(prepared_, run, CONFIG, nodes)
    with pytest.raises(ConfigError, match="or a path on pvc_name"):
        train_on_nodes("/data/set", "/data/run", CONFIG, NodesConfig(image="dkan"))


def test_checkpoints_that_end_with_their_pod_are_refused(nodes: NodesConfig) -> None:
    with pytest.raises(ConfigError, match=r"checkpoint_uri must be on storage .* got 'kept'"):
        train_on_nodes("s3://b/data", "s3://b/run", replace(CONFIG, checkpoint_uri="kept"), nodes)


def test_data_that_are_not_there_are_named(shared: Path, nodes: NodesConfig) -> None:
    with pytest.raises(DataError, match=r"no manifest\.json there"):
        train_on_nodes(shared / "nothing", shared / "run", CONFIG, nodes)
    (shared / "data" / "manifest.json").write_text(json.dumps({"format_version": 2}))
    with pytest.raises(DataError, match="is not a dkan manifest"):
        train_on_nodes(shared / "data", shared / "run", CONFIG, nodes)


def test_process_without_a_cluster_or_the_sdk_says_so(
    go: Callable[..., TrainResult], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    use_kubeconfig(tmp_path / "nothing", monkeypatch)
    with pytest.raises(ConfigError, match="no cluster is known here"):
        go()
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"pip install '\.\[nodes\]'"):
        go()


@pytest.mark.s3
def test_run_in_a_bucket_is_read_and_copied(
    kubernetes: Kubernetes, nodes: NodesConfig, trained: TrainResult, prepared: Path, s3: str, tmp_path: Path
) -> None:
    import s3fs

    fs = s3fs.S3FileSystem()
    fs.put(str(prepared), f"{s3}/data", recursive=True)

    def leave_run(job: dict[str, Any]) -> None:
        for path in Path(trained.model).parent.rglob("*"):
            if path.is_file():
                fs.put_file(str(path), f"{s3}/run/{path.relative_to(Path(trained.model).parent)}")

    kubernetes.work = leave_run
    result = train_on_nodes(f"{s3}/data/", f"{s3}/run", CONFIG, nodes, copy_to=tmp_path / "copy")
    assert result.average_precision == trained.average_precision and result.model == f"{s3}/run/model"
    assert (tmp_path / "copy" / "model" / "model.safetensors").exists()
    assert not (tmp_path / "copy" / CHECKPOINTS).exists()
