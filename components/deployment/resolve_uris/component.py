"""Component: fill in {date} in the URIs of a run, and check the parameters of its last steps."""

from typing import NamedTuple

from kfp import dsl

from components.image import IMAGE


@dsl.component(base_image=IMAGE, install_kfp_package=False)
def resolve_uris(
    data_uri: str = "",
    output_uri: str = "",
    publish_uri: str = "",
    registered_version: str = "",
    serving_uri: str = "",
    model_uri: str = "",
    initial_model_uri: str = "",
    previous_model_uri: str = "",
    prepared_uri: str = "",
    checkpoint_uri: str = "",
    run_uri: str = "",
    volume_path: str = "",
    label: str = "",
    min_average_precision: float = 0.0,
    max_psi: float = 0.0,
    registry_url: str = "",
    registered_name: str = "",
    inference_service: str = "",
    serving_runtime: str = "dkan",
    serving_account: str = "",
    serving_timeout: int = 900,
) -> NamedTuple(
    "Outputs",
    [
        ("data_uri", str),
        ("output_uri", str),
        ("publish_uri", str),
        ("registered_version", str),
        ("serving_uri", str),
    ],
):
    """Replace {date} by the day on which this step runs; refuse URIs and settings that later steps would fail on.

    Args:
        data_uri: Parquet files, folders or globs, local or s3:// or gs://; several separated by a comma or a new line.
        output_uri: Where the scores go, one file for each file of data_uri: s3://, gs:// or a shared volume. In a
            pipeline, {date} is the run's date.
        publish_uri: Folder or bucket for the model, where it replaces an earlier one. In a pipeline, {date} is the
            run's date. Empty: only the artifact.
        registered_version: Name of its new version. In a pipeline, {date} is the run's date. Empty: from the
            fingerprints of the data and of the model.
        serving_uri: Where KServe finds the model, such as pvc://CLAIM/FOLDER. In a pipeline, {date} is the run's date.
            Empty: where it was published.
        model_uri: Published model or run folder to score with: s3://, gs:// or a shared volume.
        initial_model_uri: Earlier model to continue from: its encoding, labels and weights. Empty: start from scratch.
        previous_model_uri: Earlier model to compare the new one with, such as the published one; it need not exist.
            Empty: none.
        prepared_uri: Folder or bucket for the prepared shards, one folder per data set. Empty: inside the artifact.
        checkpoint_uri: Folder or bucket for checkpoints: a retried step resumes from there. Empty: none kept.
        run_uri: Folder or bucket for runs and their checkpoints, each in its own folder; a path is on the claim.
        volume_path: Where every step mounts a volume. Empty: no paths, only URIs.
        label: Label columns. Empty: none, or those of an earlier model.
        min_average_precision: Minimum average precision; 0 sets no limit.
        max_psi: Largest population stability index of a column or score; 0 sets no limit.
        registry_url: Address of a Kubeflow Model Registry that an approved model is registered in; needs publish_uri.
            Empty: not registered.
        registered_name: Name of the registered model. Empty: the last part of publish_uri.
        inference_service: InferenceService, in the namespace of the run, that is updated to this model or created.
            Empty: not served.
        serving_runtime: ServingRuntime or ClusterServingRuntime of dkan.
        serving_account: Service account of the server's pods, which may read the model. Empty: the namespace's default.
        serving_timeout: Seconds to wait until the model is served.

    Returns:
        data_uri: The same with the date, such as 2026-11-21, in UTC.
        output_uri: The same with the date.
        publish_uri: The same with the date.
        registered_version: The same with the date.
        serving_uri: The same with the date.
    """
    form = dict(locals())
    from dkan_core import check_publication, resolve_uris

    check_publication(form)
    return resolve_uris(form, volume_path)
