"""Component: a published model, served by KServe."""

from kfp import dsl

from components.image import IMAGE


@dsl.component(base_image=IMAGE, install_kfp_package=False)
def deploy_model(
    model: dsl.Input[dsl.Model],
    inference_service: str,
    serving_uri: str = "",
    serving_runtime: str = "dkan",
    serving_account: str = "",
    serving_timeout: int = 900,
) -> str:
    """Serve a published model with KServe, and wait until it is served.

    Args:
        model: Model that publish_model wrote.
        inference_service: InferenceService, in the namespace of the run, that is updated to this model or created.
            Empty: not served.
        serving_uri: Where KServe finds the model, such as pvc://CLAIM/FOLDER. In a pipeline, {date} is the run's date.
            Empty: where it was published.
        serving_runtime: ServingRuntime or ClusterServingRuntime of dkan.
        serving_account: Service account of the server's pods, which may read the model. Empty: the namespace's default.
        serving_timeout: Seconds to wait until the model is served.

    Returns:
        URL of the InferenceService.
    """
    from dkan_core import deploy

    return deploy(
        model.path,
        inference_service,
        serving_uri or model.metadata.get("uri", model.uri),
        runtime=serving_runtime,
        service_account=serving_account,
        timeout_seconds=serving_timeout,
    )
