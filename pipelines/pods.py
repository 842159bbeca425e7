"""A step's image, resources, credentials, volumes, retries and labels on a cluster.

Run-time parameters set them; those that Kubernetes takes only from the compiled file are in ``Settings``.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from kfp import kubernetes
from kfp.dsl import PipelineTask
from kfp.dsl.pipeline_channel import PipelineChannel

from components.image import IMAGE
from dkan_core.config.kubernetes import CORES_RULE, LABELS_RULE, MEMORY_RULE, SHM_RULE, within
from dkan_core.utils.storage.credentials import CONFIG_KEYS, SECRET_KEYS, SECRET_PATH, own_name
from pipelines.caller import look_at_names_alone
from pipelines.form import Parameter, Values, merged

look_at_names_alone()

VOLUME_PATH = "/mnt/dkan"
# Enough pods to keep a bucket busy, and few enough that a cluster starts their drivers quickly.
PARTS_AT_A_TIME = 16

IMAGE_PARAMETER = Parameter(name="image", type=str, default=IMAGE, description="Image of every step.")
CREDENTIALS = (
    Parameter(
        name="secret_name",
        type=str,
        default="dkan-storage",
        description=f"Secret with {' and '.join(SECRET_KEYS[:2])}; its files are in {SECRET_PATH}. "
        "It need not exist, but must be named.",
    ),
    Parameter(
        name="config_map_name",
        type=str,
        default="dkan-storage",
        description=f"ConfigMap with {', '.join(CONFIG_KEYS[:2])} and the like. It need not exist, but must be named.",
    ),
)


def _resources(prefix: str, step: str, memory: str, memory_of: str = "") -> tuple[Parameter, ...]:
    """Return the parameters of a step's resources, and of the nodes that it may run on."""
    return (
        Parameter(name=f"{prefix}cpu", type=str, default="4", description=f"CPU limit of {step}."),
        Parameter(name=f"{prefix}memory", type=str, default=memory, description=f"Memory limit of {step}{memory_of}."),
        Parameter(
            name=f"{prefix}node_selector",
            type=dict,
            default={},
            description=f"Labels that nodes must have for {step}. Empty: any node.",
        ),
        Parameter(
            name=f"{prefix}tolerations",
            type=list,
            default=[],
            description=f"Tolerations of {step}, as in a pod's spec. Empty: none.",
        ),
    )


# Not shared with training, which may need GPU nodes: the other steps would occupy these for hours.
OTHER_STEPS = _resources("step_", "every step but training", "8Gi")
TRAINING_STEP = (
    Parameter(
        name="gpu_type", type=str, default="nvidia.com/gpu", description="Resource name of the GPUs on the cluster."
    ),
    *_resources("", "the training step", "16Gi", ", with its /dev/shm"),
)
VOLUME = (
    Parameter(
        name="pvc_name",
        type=str,
        default="dkan",
        description=f"PersistentVolumeClaim, mounted at {VOLUME_PATH} in every step. It must exist.",
    ),
)
# Rules for settings that kfp would compile as they are, and Kubernetes or Argo refuse when a run starts.
SETTINGS_RULES = {
    "shm_size": SHM_RULE,
    "control_cpu": CORES_RULE,
    "control_memory": MEMORY_RULE,
    "labels": LABELS_RULE,
    **dict.fromkeys(("retries", "timeout", "parallelism"), within(0)),
}

# Parameters of every step.
STEP = (IMAGE_PARAMETER, *CREDENTIALS, *OTHER_STEPS)


@dataclass(frozen=True, kw_only=True)
class Settings:
    """What can only be set when a pipeline is compiled."""

    # The default of a container is 64 MB, too little for the GPUs of a node, which exchange data through it.
    shm_size: str = "2Gi"
    """Size of the training step's /dev/shm, which counts against its memory limit."""

    retries: int = 3
    """How often a step whose process failed is started again; training resumes from its last checkpoint."""

    backoff: str = "30s"
    """Pause before the first retry; each later one is twice as long."""

    retry_window: str = "604800s"
    """How long after its first start a step may still run or be started again; a week."""

    # Importing torch and kfp takes 0.7 GB, and Kubeflow's launcher needs some more.
    control_cpu: str = "1"
    """CPU limit of steps that load neither rows nor weights, such as checks and the launcher of a TrainJob."""

    control_memory: str = "2Gi"
    """Memory limit of these steps."""

    timeout: int = 0
    """Seconds after which Kubernetes ends a training step's pod; 0 sets no limit."""

    run_as_user: int | None = None
    """uid of every step, and of the nodes of a TrainJob. Default: the image's, or what the cluster chooses."""

    run_as_non_root: bool = True
    """Whether a step may not run as root."""

    # Not in the form, which cannot leave a field out: a pod that names a secret loses those of its service account.
    image_pull_secrets: tuple[str, ...] = ()
    """Secrets of the registry that the image comes from. Default: those of the service account."""

    labels: Mapping[str, str] = field(default_factory=lambda: {"app.kubernetes.io/part-of": "dkan"})
    """Labels of every pod."""

    annotations: Mapping[str, str] = field(default_factory=dict)
    """Annotations of every pod."""

    caching: bool = True
    """Whether preparation and training with the same data and settings are taken from an earlier run."""

    volume: bool = False
    """Whether every step mounts the PersistentVolumeClaim ``pvc_name``."""

    parallelism: int = 0
    """How many pods of a loop run at the same time; 0 sets no limit."""

    def __post_init__(self) -> None:
        for name, rule in SETTINGS_RULES.items():
            if not rule.holds(value := getattr(self, name)):
                raise ValueError(f"{name} must be {rule.expected}, got {value!r}")
        secrets: object = self.image_pull_secrets
        if isinstance(secrets, str):
            raise ValueError(f"image_pull_secrets must be several names such as ({secrets!r},), got {secrets!r}")
        if self.run_as_user == 0 and self.run_as_non_root:
            raise ValueError("run_as_user 0: is root, and no pod starts as root unless run_as_non_root is False")

    def form(self, asked: Iterable[Parameter]) -> list[Parameter]:
        """Return what is asked for and what every step is given."""
        return merged(asked, STEP, VOLUME if self.volume else ())


def configure_pod(
    task: PipelineTask,
    values: Values,
    settings: Settings,
    *,
    cached: bool = False,
    prefix: str = "step_",
    is_control: bool = False,
    is_retried: bool = True,
) -> PipelineTask:
    """Configure what all steps have in common.

    Args:
        task: The step.
        values: The form: at least the parameters of ``STEP``, each as a placeholder or as a plain value.
        settings: What is fixed when the pipeline is compiled.
        cached: Whether its outputs depend on nothing but its inputs.
        prefix: How the parameters of its resources and its nodes begin.
        is_control: Whether it loads neither rows nor weights, so that little suffices, whatever the form says.
        is_retried: Whether it is started again when its process fails; it then finds what it wrote before. No for steps
            that usually fail because of what they find, such as a column that is missing or a score that is too low, or
            that wait for the cluster up to a limit of their own.
    """
    task.set_container_image(values["image"])
    # The cache's key has the inputs, not the content at a URI, so a fingerprint of the data is among the inputs.
    task.set_caching_options(cached and settings.caching)
    if is_control:
        task.set_cpu_limit(settings.control_cpu).set_memory_limit(settings.control_memory)
    else:
        cpu, memory = values[f"{prefix}cpu"], values[f"{prefix}memory"]
        task.set_cpu_limit(cpu).set_memory_limit(memory)
        _register(task, cpu, memory)
    secret, config_map = values["secret_name"], values["config_map_name"]
    # Optional: if pods have rights from a service account, there may be no Secret and no ConfigMap.
    # Under dkan's own names, because Kubeflow's launcher in the same container uses AWS_... for its artifacts.
    kubernetes.use_secret_as_env(task, secret, {key: own_name(key) for key in SECRET_KEYS}, optional=True)
    kubernetes.use_secret_as_volume(task, secret, SECRET_PATH, optional=True)
    kubernetes.use_config_map_as_env(task, config_map, {key: own_name(key) for key in CONFIG_KEYS}, optional=True)
    kubernetes.add_node_selector_json(task, values[f"{prefix}node_selector"])
    kubernetes.add_toleration_json(task, values[f"{prefix}tolerations"])
    kubernetes.set_security_context(task, run_as_user=settings.run_as_user, run_as_non_root=settings.run_as_non_root)
    if settings.image_pull_secrets:
        kubernetes.set_image_pull_secrets(task, list(settings.image_pull_secrets))
    for name, value in settings.labels.items():
        kubernetes.add_pod_label(task, name, value)
    for name, value in settings.annotations.items():
        kubernetes.add_pod_annotation(task, name, value)
    if settings.volume:
        kubernetes.mount_pvc(task, values["pvc_name"], VOLUME_PATH)
    _register(task, values["image"])
    if is_retried:
        task.set_retry(
            settings.retries,
            backoff_duration=settings.backoff,
            backoff_factor=2.0,
            backoff_max_duration=settings.retry_window,
        )
    return task


def _register(task: PipelineTask, *values: Any) -> None:
    """Have the SDK pass parameters into a loop or condition, which it does not do for images and resources."""
    task.register_pipeline_channels([value for value in values if isinstance(value, PipelineChannel)])


def place_training(task: PipelineTask, values: Values, settings: Settings) -> PipelineTask:
    """Give the training step GPUs, shared memory, and its own resources and nodes.

    The GPU count is text, because Kubeflow compiles a number but then gives the pod no GPU.
    """
    configure_pod(task, values, settings, cached=True, prefix="")
    task.set_accelerator_type(values["gpu_type"]).set_accelerator_limit(values["num_gpus"])
    _register(task, values["gpu_type"], values["num_gpus"])
    # Not named shm alone: Kubeflow names the volumes of a Secret and of a claim after them.
    kubernetes.empty_dir_mount(task, "dkan-shm", "/dev/shm", medium="Memory", size_limit=settings.shm_size)
    if settings.timeout:
        kubernetes.set_timeout(task, settings.timeout)
    return task
