"""Component: assembled shards to a prepared data set."""

from kfp import dsl

from components.image import IMAGE


@dsl.component(base_image=IMAGE, install_kfp_package=False)
def finish_preparation(
    prepared: dsl.Output[dsl.Dataset], prepared_uri: str, data_fingerprint: str = "", fingerprint: str = ""
) -> str:
    """Check that every shard exists, write the manifest and remove the temporary files of the parts.

    Args:
        prepared: Folder with only the manifest; the shards stay where its metadata's uri says.
        prepared_uri: Folder or bucket for the prepared shards, one folder per data set.
        data_fingerprint: Output of fingerprint_parquet: the folder under prepared_uri. Empty: prepared_uri itself.
        fingerprint: Output of the step that wrote the manifest, for a second one that hands the same data on: part of
            the cache key, not used otherwise.

    Returns:
        Fingerprint of the prepared data.
    """
    from dkan_core import finish_preparation, prepared_folder, save_pointer

    uri = prepared_folder(prepared_uri, data_fingerprint)
    result = finish_preparation(uri)
    save_pointer(prepared.path, result, uri)
    prepared.metadata["fingerprint"] = result.fingerprint
    prepared.metadata["uri"] = uri
    prepared.metadata.update({f"{name}_rows": info.rows for name, info in result.splits.items()})
    return result.fingerprint
