"""Component: one part of a batch scoring."""

from typing import NamedTuple

from kfp import dsl

from components.image import IMAGE


@dsl.component(base_image=IMAGE, install_kfp_package=False)
def predict_parquet(output_uri: str, part: int) -> NamedTuple("Outputs", [("rows", int)]):
    """Score the files of one part, each to its own file.

    Args:
        output_uri: Where the scores go, one file for each file of data_uri: s3://, gs:// or a shared volume. In a
            pipeline, {date} is the run's date.
        part: Number of the part, one of those that plan_scoring returned.

    Returns:
        rows: Rows that were scored.
    """
    from dkan_core import score_part

    # Whole numbers in a list reach a step as floats.
    return (score_part(output_uri, int(part)),)
