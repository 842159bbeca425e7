"""Steps after the gate: an approved model is published, registered and served."""

from kfp import dsl
from kfp.dsl.base_component import BaseComponent

from components.deployment.deploy_model import deploy_model
from components.deployment.publish_model import publish_model
from components.deployment.register_model import register_model
from pipelines.form import Parameter, Values, as_pipeline, bind, merged, parameters_of
from pipelines.pods import Settings, configure_pod

# Optional in a form, though not for the component: if empty, nothing is registered.
REGISTRY = merged(
    parameters_of(register_model, leave_out=("model_uri", "run_id", "run_name")),
    changed={"registry_url": {"default": ""}},
)
SERVING = merged(parameters_of(deploy_model), changed={"inference_service": {"default": ""}})
PARAMETERS = merged(parameters_of(publish_model), REGISTRY, SERVING)

MODEL = Parameter(name="model", type=dsl.Input[dsl.Model], description="Run folder of the approved model.")
METRICS = Parameter(name="metrics", type=dsl.Input[dsl.Metrics], description="Its test metrics.")


def build_publish(settings: Settings) -> BaseComponent:
    """Return the pipeline within the pipeline that publishes, registers and serves a model.

    A task behind a condition gets its resources from parameters only through a pipeline of its own.
    """
    registering = _build_registering(settings)
    deploying = _build_deploying(settings)

    def publish(values: Values) -> None:
        published = configure_pod(bind(publish_model, values), values, settings)
        with dsl.If(values["registry_url"] != "", name="registry"):
            bind(registering, values).after(published)
        with dsl.If(values["inference_service"] != "", name="serving"):
            bind(deploying, values, model=published.output)

    return as_pipeline(
        publish,
        name="publish-approved",
        summary="Publish the approved model, register it, and serve it.",
        parameters=[MODEL, METRICS, *settings.form(PARAMETERS)],
    )


def _build_registering(settings: Settings) -> BaseComponent:
    """Return the pipeline of the step that registers a published model."""

    def register(values: Values) -> None:
        run = {"run_id": dsl.PIPELINE_JOB_ID_PLACEHOLDER, "run_name": dsl.PIPELINE_JOB_NAME_PLACEHOLDER}
        task = bind(register_model, values, model_uri=values["publish_uri"], **run)
        configure_pod(task, values, settings)

    return as_pipeline(
        register,
        name="register-published",
        summary="Register the published model.",
        parameters=[METRICS, *settings.form(PARAMETERS)],
    )


def _build_deploying(settings: Settings) -> BaseComponent:
    """Return the pipeline of the step that serves a published model."""

    def deploy(values: Values) -> None:
        # Not retried, as that would wait for serving_timeout once more.
        configure_pod(bind(deploy_model, values), values, settings, is_control=True, is_retried=False)

    return as_pipeline(
        deploy,
        name="deploy-published",
        summary="Serve the published model.",
        parameters=[MODEL, *settings.form(SERVING)],
    )
