"""Component: places with {date} to the places of one run."""

from typing import NamedTuple

from kfp import dsl

from components.image import IMAGE


@dsl.component(base_image=IMAGE, install_kfp_package=False)
def resolve_places(
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
    """Replace {date} by the day on which this step runs, and refuse places that the pods of a run do not share.

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
        volume_path: Where every step mounts a volume. Empty: places are URIs.

    Returns:
        data_uri: The same with the date, such as 2026-11-21, in UTC.
        output_uri: The same with the date.
        publish_uri: The same with the date.
        registered_version: The same with the date.
        serving_uri: The same with the date.
    """
    form = dict(locals())
    from dkan_core import resolve_places

    return resolve_places(form, volume_path)
