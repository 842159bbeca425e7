"""Component: a published model in a Kubeflow Model Registry."""

from kfp import dsl

from components.image import IMAGE


@dsl.component(base_image=IMAGE, install_kfp_package=False)
def register_model(
    metrics: dsl.Input[dsl.Metrics],
    model_uri: str,
    registry_url: str,
    registered_name: str = "",
    registered_version: str = "",
    run_id: str = "",
    run_name: str = "",
) -> str:
    """Register a published model with its card, metrics and fingerprints: once, even if the step is retried.

    Args:
        metrics: Test metrics of evaluate_fastkan.
        model_uri: Where the model was published.
        registry_url: Address of a Kubeflow Model Registry that an approved model is registered in; needs publish_uri.
            Empty: not registered.
        registered_name: Name of the registered model. Empty: the last part of publish_uri.
        registered_version: Name of its new version. In a pipeline, {date} is the run's date. Empty: from the
            fingerprints of the data and of the model.
        run_id: Id of the pipeline run, which the version links to. Empty: no link.
        run_name: Name of the pipeline run.

    Returns:
        Name of the version.
    """
    from dkan_core import ConfigError, PipelineRun, register

    if not model_uri:
        raise ConfigError("model_uri is empty: a model is registered with the URI that others fetch it from")
    run = PipelineRun(id=run_id, name=run_name) if run_id else None
    return register(
        model_uri,
        registry_url,
        name=registered_name,
        version=registered_version,
        metrics=metrics.metadata,
        run=run,
    ).version
