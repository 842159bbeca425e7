"""Evaluation, the gate, and publishing, registering and serving behind it."""

from collections.abc import Callable
from typing import Any, NamedTuple

from kfp import dsl
from kfp.dsl.base_component import BaseComponent

from components.deployment.deploy_model import deploy_model
from components.deployment.publish_model import publish_model
from components.deployment.register_model import register_model
from components.evaluation.approve_model import approve_model
from components.evaluation.evaluate_fastkan import evaluate_fastkan
from pipelines.form import Parameter, Values, as_pipeline, bind, merged, parameters_of
from pipelines.pods import Settings, configure_pod

RESULTS = ("average_precision", "previous_average_precision", "comparable")
GATE = parameters_of(approve_model, leave_out=RESULTS)
# What a form may leave empty, though the component cannot: then nothing is registered.
REGISTRY = merged(
    parameters_of(register_model, leave_out=("model_uri", "run_id", "run_name")),
    changed={"registry_url": {"default": ""}},
)
SERVING = merged(parameters_of(deploy_model), changed={"inference_service": {"default": ""}})
PUBLISHING = merged(parameters_of(publish_model), REGISTRY, SERVING)
PARAMETERS = merged(parameters_of(evaluate_fastkan, leave_out=("split",)), GATE, PUBLISHING)


class Outputs(NamedTuple):
    """Outputs of a pipeline."""

    average_precision: float
    approved: bool
    model: dsl.Model
    report: dsl.HTML


DESCRIBED = {
    "average_precision": "Average precision on the test split.",
    "approved": "Whether the model passed the gate.",
    "model": "Run folder: the best model under model/, its metrics, the history and the logs.",
    "report": "One self-contained page: curves, calibration, thresholds, training history.",
}


def build_finish(settings: Settings) -> Callable[[Values, Any, Any], Outputs]:
    """Return what evaluates a model, decides, and publishes it."""
    artifacts = (
        Parameter(name="model", type=dsl.Input[dsl.Model], description="Run folder of the approved model."),
        Parameter(name="metrics", type=dsl.Input[dsl.Metrics], description="Its test metrics."),
    )
    registering = _build_registering(settings, artifacts[1])
    deploying = _build_deploying(settings, artifacts[0])

    def publish(values: Values) -> None:
        published = configure_pod(bind(publish_model, values), values, settings)
        with dsl.If(values["registry_url"] != "", name="registry"):
            bind(registering, values).after(published)
        with dsl.If(values["inference_service"] != "", name="serving"):
            bind(deploying, values, model=published.output)

    # A task behind a condition gets its resources from parameters only through a pipeline of its own.
    publishing = as_pipeline(
        publish,
        name="publish-approved",
        summary="Publish the approved model, register it, and serve it.",
        parameters=[*artifacts, *settings.form(PUBLISHING)],
    )

    def finish(values: Values, prepared: Any, model: Any) -> Outputs:
        evaluated = bind(evaluate_fastkan, values, prepared=prepared, model=model, split="test")
        results = configure_pod(evaluated, values, settings).outputs
        scores = {name: results[name] for name in RESULTS}
        approved = configure_pod(
            bind(approve_model, values, **scores), values, settings, is_control=True, is_retried=False
        ).output
        with dsl.If(approved == True, name="approved"):  # noqa: E712 - kfp compares the output when it runs
            bind(publishing, values, model=model, metrics=results["metrics"])
        return Outputs(results["average_precision"], approved, model, results["report"])

    return finish


def _build_registering(settings: Settings, metrics: Parameter) -> BaseComponent:
    """Return the pipeline of the step that registers a published model."""

    def register(values: Values) -> None:
        run = {"run_id": dsl.PIPELINE_JOB_ID_PLACEHOLDER, "run_name": dsl.PIPELINE_JOB_NAME_PLACEHOLDER}
        task = bind(register_model, values, model_uri=values["publish_uri"], **run)
        configure_pod(task, values, settings)

    return as_pipeline(
        register,
        name="register-published",
        summary="Register the published model.",
        parameters=[metrics, *settings.form(PUBLISHING)],
    )


def _build_deploying(settings: Settings, model: Parameter) -> BaseComponent:
    """Return the pipeline of the step that serves a published model."""

    def deploy(values: Values) -> None:
        # Not retried: that would be once more serving_timeout.
        configure_pod(bind(deploy_model, values), values, settings, is_control=True, is_retried=False)

    return as_pipeline(
        deploy,
        name="deploy-published",
        summary="Serve the published model.",
        parameters=[model, *settings.form(SERVING)],
    )
