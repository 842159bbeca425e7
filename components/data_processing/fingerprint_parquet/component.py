"""Component: raw Parquet to a text that changes with it."""

from kfp import dsl

from components.image import IMAGE


@dsl.component(base_image=IMAGE, install_kfp_package=False)
def fingerprint_parquet(data_uri: str, also: str = "") -> str:
    """Return a text that changes when the files do: the cache key of later steps, which a URI alone is not.

    Args:
        data_uri: Parquet files, folders or globs, local or s3:// or gs://; several separated by a comma or a new line.
        also: What else is to change the fingerprint.

    Returns:
        Digest of names, sizes and modification stamps of the files; none is read.
    """
    from dkan_core import fingerprint_sources

    return fingerprint_sources(data_uri, also)
