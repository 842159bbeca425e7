"""Training: one run on one node or several, or several runs, the best of which by validation is published."""

from typing import Any, NamedTuple

from kfp import dsl, kubernetes
from kfp.dsl.base_component import BaseComponent

from components.training.check_training import check_training
from components.training.check_training_nodes import check_training_nodes
from components.training.choose_best_run import choose_best_run
from components.training.train_fastkan import train_fastkan
from components.training.train_fastkan_nodes import train_fastkan_nodes
from dkan_core.tracking.mlflow.sweep import VARIABLE as SWEEP_VARIABLE
from pipelines.form import REQUIRED, Parameter, Values, as_pipeline, bind, merged, parameters_of
from pipelines.pods import (
    STEP,
    TRAINING_STEP,
    VOLUME,
    VOLUME_PATH,
    Settings,
    configure_pod,
    place_training,
)
from pipelines.steps import TrainingStep

PARAMETERS = merged(parameters_of(train_fastkan, leave_out=("checkpoint_key", "data_fingerprint")), TRAINING_STEP)

# Not used by training; it makes the cache distinguish data, which a URI alone does not.
KNOWN_BY = Parameter(name="data_fingerprint", type=str, description="Fingerprint of the data.")

# Argo labels every pod with the name of its workflow; each run of a pipeline has its own workflow.
WORKFLOW = "metadata.labels['workflows.argoproj.io/workflow']"

SWEEP_SETTINGS = Parameter(
    name="sweep",
    type=list[dict],  # type: ignore[type-arg] # the form shows the type as it stands here
    default=[{"learning_rate": 0.003}, {"learning_rate": 0.01}, {"learning_rate": 0.03}],
    description="Settings of dkan train by name, one run per entry, no two alike; the best by validation is published.",
)


class Trained(NamedTuple):
    """Outputs of a sweep."""

    model: dsl.Model


def check(component: BaseComponent, values: Values, settings: Settings) -> Any:
    """Return the task that fails where settings of a training are wrong."""
    return configure_pod(
        bind(component, values, **_of_nodes(settings)), values, settings, is_control=True, is_retried=False
    )


def _of_nodes(settings: Settings) -> Values:
    """Return the nodes' settings that are not in the form."""
    volume = {"mount_path": VOLUME_PATH} if settings.volume else {}
    return volume | ({"run_as_user": settings.run_as_user} if settings.run_as_user else {})


def _train_once(settings: Settings, name: str, *, in_sweep: bool = False) -> Any:
    def train(values: Values, prepared: Any) -> Any:
        task = bind(train_fastkan, values, prepared=prepared, checkpoint_key=name)
        if in_sweep:
            # Lets MLflow show all runs of a pipeline's run under one parent.
            kubernetes.use_field_path_as_env(task, SWEEP_VARIABLE, WORKFLOW)
        return place_training(task, values, settings).outputs["model"]

    return train


def _sweep(settings: Settings, name: str) -> Any:
    once = _train_once(settings, name, in_sweep=True)
    data = Parameter(name="prepared", type=dsl.Input[dsl.Dataset], default=REQUIRED, description="Prepared data.")

    def best_of(values: Values) -> Trained:
        with dsl.ParallelFor(values["sweep"], parallelism=settings.parallelism) as entry:
            model = once({**values, "settings": entry}, values["prepared"])
        best = choose_best_run(models=dsl.Collected(model))
        return Trained(configure_pod(best, values, settings, is_control=True).outputs["model"])

    # kfp's local runner passes a loop no task outputs but its items, so the fingerprint comes from outside.
    sweep = as_pipeline(
        best_of,
        name=f"{name}-runs",
        summary="Train once for each entry of a sweep, and choose the best.",
        parameters=[data, KNOWN_BY, *settings.form([*PARAMETERS, SWEEP_SETTINGS])],
        returns=Trained,
    )

    def train(values: Values, prepared: Any) -> Any:
        return bind(sweep, values, prepared=prepared).outputs["model"]

    return train


def _train_on_nodes(settings: Settings, _: str) -> Any:
    if settings.timeout:
        raise ValueError(f"timeout {settings.timeout}: on several nodes it is timeout_seconds of the form")
    if settings.run_as_user == 0:
        raise ValueError("run_as_user 0: the nodes of a TrainJob may not run as root")

    def train(values: Values, prepared: Any) -> Any:
        task = bind(train_fastkan_nodes, values, prepared=prepared, **_of_nodes(settings))
        # Not retried, as that would create another job with its own restarts and timeout_seconds.
        task = configure_pod(task, values, settings, cached=True, is_control=True, is_retried=False)
        return task.outputs["model"]

    return train


ONCE = TrainingStep(parameters=PARAMETERS, build=_train_once, check=check_training)
SWEEP = TrainingStep(
    parameters=[*(parameter for parameter in PARAMETERS if parameter.name != "settings"), SWEEP_SETTINGS],
    build=_sweep,
    check=check_training,
)
ON_NODES = TrainingStep(
    parameters=parameters_of(
        train_fastkan_nodes,
        leave_out=(*("mount_path", "run_as_user", "data_fingerprint"), *(each.name for each in (*STEP, *VOLUME))),
    ),
    build=_train_on_nodes,
    check=check_training_nodes,
)
