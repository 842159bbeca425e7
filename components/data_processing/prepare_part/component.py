"""Component: one stage of a preparation for one part."""

from typing import NamedTuple

from kfp import dsl

from components.image import IMAGE


@dsl.component(base_image=IMAGE, install_kfp_package=False)
def prepare_part(prepared_uri: str, stage: str, part: int, data_fingerprint: str = "") -> NamedTuple(
    "Outputs", [("rows", int)]
):
    """Run one stage of a preparation for one part.

    Args:
        prepared_uri: Folder or bucket for the prepared shards, one folder per data set.
        stage: What to do with the part: survey, encode or assemble, in this order.
        part: Number of the part, one of those that plan_preparation returned.
        data_fingerprint: Output of fingerprint_parquet: the folder under prepared_uri. Empty: prepared_uri itself.

    Returns:
        rows: Rows that were read, encoded or written.
    """
    from dkan_core import prepare_part, prepared_folder

    # Whole numbers in a list reach a step as floats.
    return (prepare_part(prepared_folder(prepared_uri, data_fingerprint), stage, int(part)),)  # type: ignore[arg-type]
