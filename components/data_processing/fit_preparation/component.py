"""Component: the counts of all parts to one encoding."""

from kfp import dsl

from components.image import IMAGE


@dsl.component(base_image=IMAGE, install_kfp_package=False)
def fit_preparation(prepared_uri: str, data_fingerprint: str = "") -> None:
    """Check the counts of all parts, and choose the encoding of the rows.

    Args:
        prepared_uri: Folder or bucket for the prepared shards, one folder per data set.
        data_fingerprint: Output of fingerprint_parquet: the folder under prepared_uri. Empty: prepared_uri itself.
    """
    from dkan_core import fit_preparation, prepared_folder

    fit_preparation(prepared_folder(prepared_uri, data_fingerprint))
