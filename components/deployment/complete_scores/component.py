"""Component: the gate of batch scoring."""

from typing import NamedTuple

from kfp import dsl

from components.image import IMAGE


@dsl.component(base_image=IMAGE, install_kfp_package=False)
def complete_scores(output_uri: str, max_psi: float = 0.0, min_average_precision: float = 0.0) -> NamedTuple(
    "Outputs", [("rows", int)]
):
    """Write _scoring.json if the scores are complete and within the limits, or fail and name the column or metric.

    Args:
        output_uri: Where the scores go, one file for each file of data_uri: s3://, gs:// or a shared volume. In a
            pipeline, {date} is the run's date.
        max_psi: Largest population stability index of a column or score; 0 sets no limit.
        min_average_precision: Minimum average precision; needs label. 0 sets no limit.

    Returns:
        rows: Rows that were scored.
    """
    from dkan_core import complete_scoring

    return (complete_scoring(output_uri, max_psi=max_psi, min_average_precision=min_average_precision),)
