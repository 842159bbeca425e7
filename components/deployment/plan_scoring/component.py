"""Component: a model and raw Parquet to a plan of its scoring on several pods."""

from kfp import dsl

from components.image import IMAGE


@dsl.component(base_image=IMAGE, install_kfp_package=False)
def plan_scoring(
    data_uri: str,
    output_uri: str,
    model_uri: str = "",
    columns: str = "",
    label: str = "",
    num_parts: int = 8,
    overwrite: bool = False,
    model: dsl.Input[dsl.Model] = None,
) -> list[int]:
    """Plan a scoring on several pods: check the model and every file, and distribute the files by size.

    Args:
        data_uri: Parquet files, folders or globs, local or s3:// or gs://; several separated by a comma or a new line.
        output_uri: Where the scores go, one file for each file of data_uri: s3://, gs:// or a shared volume. In a
            pipeline, {date} is the run's date.
        model_uri: Published model or run folder to score with: s3://, gs:// or a shared volume.
        columns: Columns to pass through to the scores, separated by a comma. Empty: none.
        label: Columns to compare the scores with: the model's labels, or other columns in the same order; they hold 0,
            1 or null, or the values that the model was trained with. Empty: none.
        num_parts: Parts to distribute the files over; with fewer files there are fewer parts.
        overwrite: Replace the scores of other files, of another model or settings, or discard an interrupted scoring.
        model: Run folder or published model of an upstream step, instead of model_uri.

    Returns:
        Number of each part, to loop over.
    """
    from dkan_core import plan_scoring

    passed, labels = ([name.strip() for name in text.split(",") if name.strip()] for text in (columns, label))
    # One output without a name: kfp's local runner loops over no other.
    return plan_scoring(
        model.path if model else model_uri,
        data_uri,
        output_uri,
        columns=passed,
        labels=labels,
        parts=num_parts,
        overwrite=overwrite,
    )
