"""The TrainJob of a run as plain data: its name, its command, its pods.

The SDK's ``train()`` cannot say it: it takes no secrets for the training container and no processes per node. Its
models, which are generated from the schema of TrainJobs, do not write it either: what they do not know, such as a
misspelled field, they drop without a word. The tests hold it against them.
"""

import hashlib
import json
import re
from dataclasses import asdict, fields, replace
from typing import Any, get_args

from dkan_core.config import NodesConfig, ResolvedStrategy, TrainConfig
from dkan_core.config.strategies import ONE_NODE
from dkan_core.errors import ConfigError
from dkan_core.training.setup.early_checks import check_workers
from dkan_core.utils.kubernetes_api import OWN_LABELS
from dkan_core.utils.storage.credentials import CONFIG_KEYS, SECRET_KEYS, SECRET_PATH

GROUP, VERSION, PLURAL, KIND = "trainer.kubeflow.org", "v1alpha1", "trainjobs", "TrainJob"
# What torch's runtime calls the pods' job, and the container in them.
NODE = "node"

# A proxy beside the ranks would stand between them, and outlive them.
WITHOUT_SIDECAR = {"sidecar.istio.io/inject": "false"}

# What a namespace asks of every pod that enforces the "restricted" Pod Security Standard. The image's user is no root.
POD_SECURITY = {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}}
CONTAINER_SECURITY = {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}

# Seconds from SIGTERM to SIGKILL: the checkpoint that is then written may go to a bucket.
GRACE_SECONDS = 120
# torchrun, which gets the SIGTERM, kills ranks after 30 s unless told otherwise. A variable: torch before 2.12 refuses
# the option.
SHUTDOWN = {"TORCH_ELASTIC_SHUTDOWN_TIMEOUT": str(GRACE_SECONDS - 10)}

# Kubernetes allows 63 characters, and the pods' names add to it.
NAME_LENGTH = 40

# As the schema of TrainJobs has it.
MAX_ARGUMENTS = 128

STRATEGIES = [name for name in ("auto", *get_args(ResolvedStrategy)) if name not in ONE_NODE]


def settle(config: TrainConfig, nodes: NodesConfig) -> TrainConfig:
    """Return the settings that the ranks are given: it resumes where an earlier job was stopped, and needs no server.

    Raises:
        ConfigError: A setting makes no sense on several nodes.
    """
    if config.strategy not in STRATEGIES:
        raise ConfigError(f"strategy {config.strategy}: is for one node; choose {', '.join(STRATEGIES)}")
    if config.workers not in (None, nodes.workers):
        raise ConfigError(
            f"workers {config.workers}: {nodes.nodes} nodes of {nodes.workers_on_node} are {nodes.workers}"
        )
    kind = "cuda" if nodes.gpus_per_node else "cpu"
    if config.device not in ("auto", kind):
        raise ConfigError(f"device {config.device}: with gpus_per_node {nodes.gpus_per_node} it is {kind}")
    if config.refit:
        raise ConfigError("refit: not supported on several nodes; leave it out, or train on one node")
    if config.resume not in ("auto", "never"):
        raise ConfigError(f"resume {config.resume}: a job resumes from its own checkpoints; leave it out")
    strategy = "allreduce" if config.strategy == "auto" else config.strategy
    # Here, as Kubernetes would start ranks that refuse it again and again.
    check_workers(config, strategy, nodes.workers)
    return replace(config, strategy=strategy, workers=None, device=kind, resume="auto")


def job_name(run: str, fingerprint: str, config: TrainConfig, nodes: NodesConfig) -> str:
    """Return the name of the one job that may train this: the same for a retry, another for anything else.

    >>> nodes = NodesConfig(image="dkan")
    >>> job_name("s3://bucket/Flights_1/", "f", TrainConfig(), nodes).rpartition("-")[0]
    'dkan-flights-1'
    """
    # Only what decides the result: with other resources or credentials it is the same training.
    what = [run, fingerprint, asdict(config), nodes.workers, nodes.image, nodes.mapping("env")]
    digest = hashlib.sha256(json.dumps(what, sort_keys=True).encode()).hexdigest()[:12]
    readable = re.sub(r"[^a-z0-9]+", "-", run.rstrip("/").rpartition("/")[2].lower())
    readable = readable[: NAME_LENGTH - len("dkan--") - len(digest)].strip("-")
    return "-".join(filter(None, ("dkan", readable, digest)))


def arguments(prepared: str, run: str, config: TrainConfig) -> list[str]:
    """Return torchrun's arguments: the command of one node. How many nodes there are, its environment says.

    >>> arguments("s3://b/data", "s3://b/run", TrainConfig(hidden=(32, 16), tensorboard=True, blend=False))
    ['-m', 'dkan_core', 'train', 's3://b/data', '--out', 's3://b/run', '--hidden=32', '--hidden=16', \
'--no-blend', '--tensorboard']
    """
    given = [(field, getattr(config, field.name)) for field in fields(config)]
    changed = {field.name: value for field, value in given if value != field.default}
    command = ["-m", "dkan_core", "train", prepared, "--out", run]
    options = [option for name, value in changed.items() for option in _options(name, value)]
    if len(command) + len(options) > MAX_ARGUMENTS:
        options = [f"--config={json.dumps(changed)}"]
    return [*command, *options]


def _options(name: str, value: Any) -> list[str]:
    option = name.replace("_", "-")
    if isinstance(value, bool):
        return [f"--{option}" if value else f"--no-{option}"]
    return [f"--{option}={each}" for each in (value if isinstance(value, tuple) else (value,))]


def train_job(name: str, command: list[str], nodes: NodesConfig) -> dict[str, Any]:
    """Return the TrainJob.

    Args:
        name: Of the job.
        command: Arguments of torchrun.
        nodes: What the cluster is to give.
    """
    trainer: dict[str, Any] = {
        "image": nodes.image,
        "command": ["torchrun"],
        "args": command,
        "numNodes": nodes.nodes,
        "numProcPerNode": nodes.workers_on_node,
        "env": _variables(nodes),
    }
    if resources := _resources(nodes):
        # Both: without requests the torch runtime would start one process per node, whatever numProcPerNode says.
        trainer["resourcesPerNode"] = {"limits": resources, "requests": resources}
    pods = {"metadata": {"labels": WITHOUT_SIDECAR}, "spec": _pod_spec(nodes)}
    jobs = [{"name": NODE, "template": {"spec": {"template": pods}}}]
    patch = {"manager": "dkan", "trainingRuntimeSpec": {"template": {"spec": {"replicatedJobs": jobs}}}}
    return {
        "apiVersion": f"{GROUP}/{VERSION}",
        "kind": KIND,
        "metadata": {"name": name, "labels": {**nodes.mapping("labels"), **OWN_LABELS}},
        "spec": {
            "runtimeRef": {"name": nodes.runtime},
            # Also where the launcher is gone, and does not delete the job.
            "activeDeadlineSeconds": nodes.timeout_seconds,
            "trainer": trainer,
            "runtimePatches": [patch],
        },
    }


def _resources(nodes: NodesConfig) -> dict[str, str]:
    gpus = {nodes.gpu_type: str(nodes.gpus_per_node)} if nodes.gpus_per_node else {}
    asked = {"cpu": nodes.cpu_per_node, "memory": nodes.memory_per_node}
    return {name: amount for name, amount in asked.items() if amount} | gpus


def _variables(nodes: NodesConfig) -> list[dict[str, Any]]:
    """Return the variables of the training container, the only ones that a job may set there: plain ones go before."""
    variables: dict[str, dict[str, Any]] = {name: {"value": value} for name, value in SHUTDOWN.items()}
    if nodes.secret_name:
        variables |= _references(SECRET_KEYS + CONFIG_KEYS, "secretKeyRef", nodes.secret_name)
    if nodes.config_map_name:
        variables |= _references(CONFIG_KEYS, "configMapKeyRef", nodes.config_map_name)
    # Last: what a user writes out wins over a Secret and a ConfigMap.
    variables |= {name: {"value": value} for name, value in nodes.mapping("env").items()}
    return [{"name": name, **source} for name, source in variables.items()]


def _references(keys: tuple[str, ...], kind: str, name: str) -> dict[str, dict[str, Any]]:
    return {key: {"valueFrom": {kind: {"name": name, "key": key, "optional": True}}} for key in keys}


def _pod_spec(nodes: NodesConfig) -> dict[str, Any]:
    volumes: list[dict[str, Any]] = []
    mounts = []
    if nodes.pvc_name:
        volumes.append({"name": "dkan-data", "persistentVolumeClaim": {"claimName": nodes.pvc_name}})
        mounts.append({"name": "dkan-data", "mountPath": nodes.mount_path})
    if nodes.secret_name:
        volumes.append({"name": "dkan-storage", "secret": {"secretName": nodes.secret_name, "optional": True}})
        mounts.append({"name": "dkan-storage", "mountPath": SECRET_PATH})
    if nodes.shm_size:
        volumes.append({"name": "dkan-shm", "emptyDir": {"medium": "Memory", "sizeLimit": nodes.shm_size}})
        mounts.append({"name": "dkan-shm", "mountPath": "/dev/shm"})
    user = {"runAsUser": nodes.run_as_user} if nodes.run_as_user else {}
    spec = {
        "serviceAccountName": nodes.service_account,
        "nodeSelector": nodes.mapping("node_selector"),
        "tolerations": nodes.toleration_list,
        "volumes": volumes,
        "securityContext": {**POD_SECURITY, **user},
        "terminationGracePeriodSeconds": GRACE_SECONDS,
        "containers": [{"name": NODE, "securityContext": CONTAINER_SECURITY, "volumeMounts": mounts}],
    }
    return {name: value for name, value in spec.items() if value}
