"""The TrainJob of a run as plain data: its name, its command, its pods.

The SDK's ``train()`` is not enough: it takes no secrets for the training container and no processes per node. Its
models, generated from the schema of TrainJobs, are not used either, because they silently drop fields that they do
not know, such as misspelled ones. The tests compare this module's output with them.
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
# Names of the pods' job, and of the container in them, in torch's runtime.
NODE = "node"

# A proxy would intercept the ranks' connections and outlive them.
WITHOUT_SIDECAR = {"sidecar.istio.io/inject": "false"}

# Required in namespaces that enforce the "restricted" Pod Security Standard. The image's user is not root.
POD_SECURITY = {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}}
CONTAINER_SECURITY = {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}

# Seconds from SIGTERM to SIGKILL, enough to write a checkpoint to a bucket.
GRACE_SECONDS = 120
# torchrun, which gets the SIGTERM, kills ranks after 30 s by default. This is a variable because torch before 2.12
# lacks the option.
SHUTDOWN = {"TORCH_ELASTIC_SHUTDOWN_TIMEOUT": str(GRACE_SECONDS - 10)}

# Kubernetes allows 63 characters, and the pods' names add to it.
NAME_LENGTH = 40

# Limit in the schema of TrainJobs.
MAX_ARGUMENTS = 128

STRATEGIES = [name for name in ("auto", *get_args(ResolvedStrategy)) if name not in ONE_NODE]


def settle(config: TrainConfig, nodes: NodesConfig) -> TrainConfig:
    """Return the ranks' settings: they resume where an earlier job was stopped, with a strategy that needs no server.

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
    # Checked here, because Kubernetes would restart ranks that refuse their settings again and again.
    check_workers(config, strategy, nodes.workers)
    return replace(config, strategy=strategy, workers=None, device=kind, resume="auto")


def job_name(run: str, fingerprint: str, config: TrainConfig, nodes: NodesConfig) -> str:
    """Return the name of the job that trains this: the same for a retry, another one for anything else.

    >>> nodes = NodesConfig(image="dkan")
    >>> job_name("s3://bucket/Flights_1/", "f", TrainConfig(), nodes).rpartition("-")[0]
    'dkan-flights-1'
    """
    # Only settings that affect the result: with other resources or credentials it is the same training.
    what = [run, fingerprint, asdict(config), nodes.workers, nodes.image, nodes.mapping("env")]
    digest = hashlib.sha256(json.dumps(what, sort_keys=True).encode()).hexdigest()[:12]
    readable = re.sub(r"[^a-z0-9]+", "-", run.rstrip("/").rpartition("/")[2].lower())
    readable = readable[: NAME_LENGTH - len("dkan--") - len(digest)].strip("-")
    return "-".join(filter(None, ("dkan", readable, digest)))


def arguments(prepared: str, run: str, config: TrainConfig) -> list[str]:
    """Return torchrun's arguments: the command of each node, whose environment has the number of nodes.

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
        # Requests too: without them the torch runtime starts one process per node, whatever numProcPerNode is.
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
            # Ends the job even if the launcher is gone and cannot delete it.
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
    """Return the training container's variables, the only ones that a job may set there; plain ones come first."""
    variables: dict[str, dict[str, Any]] = {name: {"value": value} for name, value in SHUTDOWN.items()}
    if nodes.secret_name:
        variables |= _references(SECRET_KEYS + CONFIG_KEYS, "secretKeyRef", nodes.secret_name)
    if nodes.config_map_name:
        variables |= _references(CONFIG_KEYS, "configMapKeyRef", nodes.config_map_name)
    # Last, so that explicit values win over a Secret and a ConfigMap.
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
