"""Component: assembled shards to a prepared data set."""

from kfp import dsl

from components.image import IMAGE


@dsl.component(base_image=IMAGE, install_kfp_package=False)
def finish_preparation(prepared: dsl.Output[dsl.Dataset], prepared_uri: str) -> None:
    """Check that every shard is there, write the manifest and remove the work of the parts.

    Args:
        prepared: Folder with the manifest alone; the shards stay where its metadata's uri says.
        prepared_uri: Where the prepared data go, for every step to read and write: s3://, gs:// or a shared volume.
    """
    from dkan_core import finish_preparation

    result = finish_preparation(prepared_uri, manifest_to=prepared.path)
    prepared.metadata["fingerprint"] = result.fingerprint
    prepared.metadata["uri"] = prepared_uri
    prepared.metadata.update({f"{name}_rows": part.rows for name, part in result.splits.items()})
