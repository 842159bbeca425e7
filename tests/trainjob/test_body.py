"""The TrainJob fits the API of Kubeflow Trainer v2 and of Kubernetes, and says what was asked for."""

import copy
import re
from dataclasses import replace
from typing import Any

import kubernetes_validate
import pytest
from kubeflow_trainer_api.models import TrainerV1alpha1TrainJob
from pydantic import ValidationError
from torch.distributed.launcher.api import LaunchConfig

from dkan_core import ConfigError, NodesConfig, TrainConfig
from dkan_core.trainjob.body import arguments, job_name, settle, train_job
from tests.command import dkan

FULL = NodesConfig(
    image="registry.example/dkan:1",
    nodes=3,
    gpus_per_node=4,
    cpu_per_node="8",
    memory_per_node="64Gi",
    shm_size="8Gi",
    namespace="team",
    timeout_seconds=600,
    pvc_name="shared",
    mount_path="/data",
    secret_name="bucket",
    config_map_name="endpoint",
    service_account="trainer",
    run_as_user=1000,
    node_selector='{"zone": "a"}',
    tolerations='[{"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"}]',
    env={"NCCL_DEBUG": "INFO", "AWS_REGION": "eu-1"},
    labels={"kueue.x-k8s.io/queue-name": "gpus"},
)
CONFIG = TrainConfig(hidden=(32, 16), epochs=3, learning_rate=0.01, label_weights=(1.0, 0.5), tensorboard=True)


def body_of(nodes: NodesConfig) -> dict[str, Any]:
    config = settle(CONFIG, nodes)
    return train_job(job_name("/data/run", "f", config, nodes), arguments("/data/set", "/data/run", config), nodes)


def pod_of(body: dict[str, Any]) -> dict[str, Any]:
    """Return a pod as the runtime would make it: the trainer's fields and the patch in one."""
    trainer = body["spec"]["trainer"]
    (jobs,) = body["spec"]["runtimePatches"][0]["trainingRuntimeSpec"]["template"]["spec"]["replicatedJobs"]
    template = copy.deepcopy(jobs["template"]["spec"]["template"])
    (patch,) = template["spec"].pop("containers", [{"name": "node"}])
    container = {name: trainer[name] for name in ("image", "command", "args", "env") if name in trainer} | patch
    container["resources"] = trainer.get("resourcesPerNode", {})
    metadata = {"name": body["metadata"]["name"], **template["metadata"]}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": metadata,
        "spec": {**template["spec"], "containers": [container]},
    }


def fits_schema(body: dict[str, Any]) -> bool:
    """Return whether a body has the types and required fields of the CRD's schema, and no field beyond it.

    The client's models are generated from the CRD's schema; what they do not know is not in what they give back.
    """
    try:
        job = TrainerV1alpha1TrainJob.from_dict(copy.deepcopy(body))
    except ValidationError:
        return False
    return job is not None and job.to_dict() == body


@pytest.mark.parametrize("nodes", [FULL, NodesConfig(image="dkan")], ids=["full", "plain"])
def test_body_fits_the_schemas(nodes: NodesConfig) -> None:
    body = body_of(nodes)
    assert fits_schema(body)
    kubernetes_validate.validate(pod_of(body), kubernetes_validate.latest_version(), strict=True)


@pytest.mark.parametrize("nodes", [FULL, NodesConfig(image="dkan")], ids=["full", "plain"])
def test_pods_are_admitted_where_the_restricted_standard_is_enforced(nodes: NodesConfig) -> None:
    """As Kubernetes defines it: https://kubernetes.io/docs/concepts/security/pod-security-standards/#restricted."""
    spec = pod_of(body_of(nodes))["spec"]
    user = {"runAsUser": nodes.run_as_user} if nodes.run_as_user else {}
    assert spec["securityContext"] == {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}, **user}
    for container in spec["containers"]:
        assert container["securityContext"] == {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}
    allowed = {
        "configMap",
        "csi",
        "downwardAPI",
        "emptyDir",
        "ephemeral",
        "persistentVolumeClaim",
        "projected",
        "secret",
    }
    assert all(volume.keys() - {"name"} <= allowed for volume in spec.get("volumes", []))


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("spec", "runtimePatch"), []),
        (("spec", "trainer", "numNodes"), "2"),
        (("spec", "trainer", "envFrom"), [{"secretRef": {"name": "bucket"}}]),
        (("spec", "runtimePatches", 0, "manager"), None),
        (("spec", "runtimeRef"), {}),
    ],
)
def test_schema_check_finds_mistakes(path: tuple[str | int, ...], value: Any) -> None:
    body = body_of(FULL)
    place: Any = body
    for key in path[:-1]:
        place = place[key]
    place[path[-1]] = value
    assert not fits_schema(body)


def test_body_says_what_was_asked_for() -> None:
    body = body_of(FULL)
    trainer, pod = body["spec"]["trainer"], pod_of(body)["spec"]
    assert body["metadata"]["labels"]["kueue.x-k8s.io/queue-name"] == "gpus"
    assert body["spec"]["runtimeRef"] == {"name": "torch-distributed"} and body["spec"]["activeDeadlineSeconds"] == 600
    assert (trainer["numNodes"], trainer["numProcPerNode"], trainer["command"]) == (3, 4, ["torchrun"])
    assert trainer["resourcesPerNode"]["limits"] == {"cpu": "8", "memory": "64Gi", "nvidia.com/gpu": "4"}
    assert trainer["resourcesPerNode"]["requests"] == trainer["resourcesPerNode"]["limits"]
    assert pod["serviceAccountName"] == "trainer" and pod["nodeSelector"] == {"zone": "a"}
    assert pod["tolerations"][0]["key"] == "nvidia.com/gpu"
    assert pod["terminationGracePeriodSeconds"] == 120, "a checkpoint in a bucket takes more than 30 s"
    assert [mount["mountPath"] for mount in pod["containers"][0]["volumeMounts"]] == [
        "/data",
        "/etc/dkan/storage",
        "/dev/shm",
    ]
    sources = {variable.pop("name"): variable for variable in trainer["env"]}
    assert sources["AWS_SECRET_ACCESS_KEY"]["valueFrom"]["secretKeyRef"]["name"] == "bucket"
    assert sources["AWS_ENDPOINT_URL"]["valueFrom"]["configMapKeyRef"]["name"] == "endpoint"
    assert sources["AWS_REGION"] == {"value": "eu-1"} and sources["NCCL_DEBUG"] == {"value": "INFO"}


def test_torchrun_waits_for_the_last_checkpoint_nearly_as_long_as_the_pod_may(monkeypatch: pytest.MonkeyPatch) -> None:
    body = body_of(NodesConfig(image="dkan"))
    for variable in body["spec"]["trainer"]["env"]:
        monkeypatch.setenv(variable["name"], variable["value"])
    torchrun = LaunchConfig(min_nodes=1, max_nodes=1, nproc_per_node=1)
    assert torchrun.shutdown_timeout == pod_of(body)["spec"]["terminationGracePeriodSeconds"] - 10
    given = body_of(NodesConfig(image="dkan", env={"TORCH_ELASTIC_SHUTDOWN_TIMEOUT": "5"}))
    assert given["spec"]["trainer"]["env"] == [{"name": "TORCH_ELASTIC_SHUTDOWN_TIMEOUT", "value": "5"}]


def test_command_is_that_of_one_node() -> None:
    assert " ".join(arguments("/data/set", "/data/run", settle(CONFIG, FULL))) == (
        "-m dkan_core train /data/set --out /data/run --hidden=32 --hidden=16 --strategy=allreduce --device=cuda "
        "--epochs=3 --learning-rate=0.01 --label-weights=1.0 --label-weights=0.5 --resume=auto --tensorboard"
    )


def test_command_of_more_arguments_than_a_job_takes_has_its_settings_in_one(monkeypatch: pytest.MonkeyPatch) -> None:
    weights = tuple(1 / 3 + place for place in range(130))
    config = settle(replace(CONFIG, label_weights=weights, blend=False), FULL)
    command = arguments("/data/set", "/data/run", config)
    assert len(command) == 7 and command[-1].startswith("--config=")
    trained: list[TrainConfig] = []

    def describe(prepared: str, out: str, config: TrainConfig, *, overwrite: bool) -> str:
        trained.append(config)
        return ""

    monkeypatch.setattr("dkan_core.cli.dry_run.describe_training", describe)
    monkeypatch.setattr("dkan_core.data.format.manifest.check_is_prepared", lambda _: None)
    assert dkan(*command[2:], "--dry-run", monkeypatch=monkeypatch) == 0
    assert trained == [config]


def test_name_is_the_same_for_a_retry_and_another_for_anything_else() -> None:
    nodes, config = NodesConfig(image="dkan"), TrainConfig()
    name = job_name("s3://b/run", "f", config, nodes)
    assert name == job_name(
        "s3://b/run", "f", config, NodesConfig(image="dkan", memory_per_node="64Gi", timeout_seconds=5)
    )
    written = NodesConfig(image="dkan", env='{"A": "1"}')
    assert job_name("s3://b/run", "f", config, written) == job_name(
        "s3://b/run", "f", config, replace(written, env={"A": "1"})
    )
    others = [
        job_name("s3://b/run2", "f", config, nodes),
        job_name("s3://b/run", "g", config, nodes),
        job_name("s3://b/run", "f", TrainConfig(seed=1), nodes),
        job_name("s3://b/run", "f", config, NodesConfig(image="dkan", nodes=3)),
    ]
    assert len({name, *others}) == 5


@pytest.mark.parametrize("run", ["s3://b/" + "Long_Name." * 20, "/", "s3://b/ünïcode/", "gs://b/42"])
def test_name_is_one_that_kubernetes_takes(run: str) -> None:
    name = job_name(run, "f", TrainConfig(), NodesConfig(image="dkan"))
    # A pod's name adds to it, up to 63 characters in all.
    assert re.fullmatch(r"[a-z]([-a-z0-9]*[a-z0-9])?", name) and len(f"{name}-node-0-0-abcde") <= 63


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"image": ""}, "image: name the image"),
        ({"nodes": 0}, "nodes must be from 1 to 1,000, got 0"),
        ({"gpus_per_node": 1.5}, "gpus_per_node must be"),
        ({"shm_size": 8}, "shm_size must be text, got 8"),
        ({"shm_size": "32"}, "shm_size must be a quantity of at least 1Mi such as 8Gi, got '32'"),
        ({"timeout_seconds": 0}, "timeout_seconds must be"),
        ({"run_as_user": -1}, "run_as_user must be from 0 to"),
        ({"memory_per_node": "64 GB"}, "memory_per_node must be a quantity of at least 64Mi such as 16Gi, got '64 GB'"),
        ({"memory_per_node": "16"}, "memory_per_node must be a quantity of at least 64Mi such as 16Gi, got '16'"),
        ({"cpu_per_node": "64Gi"}, "cpu_per_node must be a number of cores above 0 such as 4 or 500m, got '64Gi'"),
        ({"gpu_type": "gpu"}, "gpu_type must be a resource name such as nvidia.com/gpu, got 'gpu'"),
        ({"gpu_type": ""}, "gpu_type must be a resource name"),
        ({"namespace": "a.b"}, "namespace must be a name of at most 63 lowercase letters, digits and hyphens"),
        ({"runtime": ""}, "runtime must be a name"),
        ({"pvc_name": "My Claim"}, "pvc_name must be a name"),
        ({"mount_path": "data"}, "mount_path must be an absolute path"),
        ({"node_selector": "zone=a"}, "node_selector must be JSON"),
        ({"node_selector": '{"zone": 1}'}, "node_selector must be a JSON object of texts"),
        ({"node_selector": "false"}, "node_selector must be a JSON object of texts"),
        ({"node_selector": {"a b": "c"}}, "node_selector must be a JSON object of labels such as"),
        ({"labels": {"team": "a b"}}, "labels must be a JSON object of labels such as .* got {'team': 'a b'}"),
        ({"env": {"A=B": "c"}}, "env must be a JSON object of variables such as"),
        ({"tolerations": "{}x"}, "tolerations must be JSON"),
        ({"env": '{"A": "1", "A": "2"}'}, r"env must be JSON, got .* \(A is given twice\)"),
        ({"env": "[" * 100_000}, "env must be JSON, got text that is nested too deeply"),
        ({"tolerations": '{"key": "gpu"}'}, "tolerations must be a JSON list of tolerations such as"),
        ({"tolerations": "0"}, "tolerations must be a JSON list of tolerations such as"),
        ({"tolerations": '[{"key": 3}]'}, "tolerations must be a JSON list of tolerations such as"),
        ({"tolerations": '[{"key": "gpu", "operatr": "Exists"}]'}, "tolerations must be .*operatr"),
        # The server takes the job, and refuses its pods until timeout_seconds have passed.
        ({"tolerations": [{"value": "gpu"}]}, "tolerations must be a JSON list of tolerations such as"),
        ({"tolerations": [{"key": "gpu", "tolerationSeconds": 60}]}, "tolerations must be .* 60"),
        ({"env": '{"PET_NNODES": "3"}'}, "PET_NNODES is set by Kubeflow Trainer"),
    ],
)
def test_setting_out_of_range_is_named(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        NodesConfig(**{"image": "dkan", **change})


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"strategy": "parameter-server"}, "strategy parameter-server: is for one node; choose auto, allreduce"),
        ({"workers": 3}, "workers 3: 2 nodes of 1 are 2"),
        ({"device": "cuda"}, "device cuda: with gpus_per_node 0 it is cpu"),
        ({"resume": "s3://b/checkpoint"}, "resume s3://b/checkpoint: a job resumes from its own"),
        ({"refit": True}, "refit: not supported on several nodes"),
        ({"mode": "average"}, "mode average: only strategy parameter-server has modes, not allreduce"),
        ({"strategy": "hybrid"}, "workers 2: strategy hybrid takes a multiple of tensor_parallel_size 2"),
        ({"strategy": "pipeline", "model": "additive"}, "strategy pipeline: model additive has no hidden layer"),
        ({"tensor_parallel_size": 2}, "tensor_parallel_size 2: only strategy hybrid takes it, not allreduce"),
    ],
)
def test_training_that_needs_one_node_is_refused(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        settle(TrainConfig(**change), NodesConfig(image="dkan"))
