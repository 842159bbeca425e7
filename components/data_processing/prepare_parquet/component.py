"""Component: raw Parquet to prepared shards."""

from kfp import dsl

from components.image import IMAGE


@dsl.component(base_image=IMAGE, install_kfp_package=False)
def prepare_parquet(
    prepared: dsl.Output[dsl.Dataset],
    data_uri: str = "",
    # Settings of PrepareConfig, by: python -m pipelines signatures
    label: str = "",
    positive: str = "",
    drop: str = "",
    categorical: str = "",
    group: str = "",
    split_column: str = "",
    split_by_time: str = "",
    split: str = "70/10/20",
    split_by: str = "row",
    weight: str = "",
    numeric_dtype: str = "uint8",
    max_categories: int = 0,
    seed: int = 0,
    initial_model_uri: str = "",
    # End of settings.
    prepared_uri: str = "",
    data_fingerprint: str = "",
    source: dsl.Input[dsl.Dataset] = None,
) -> None:
    """Prepare raw Parquet for training: check the schema, split, encode and shuffle the rows.

    Args:
        prepared: Manifest and encoded shards of each split; only the manifest if the shards go to prepared_uri.
        data_uri: Parquet files, folders or globs, local or s3:// or gs://; several separated by a comma or a new line.
        label: Label column, holding 0, 1 or null (not measured); several make it multi-label; separate several by
            commas. Empty: those of initial_model_uri.
        positive: Value of the label that counts as 1, such as late; all other values count as 0; separate several by
            commas. With several labels, LABEL=VALUE for each that does not hold 0 and 1. Empty: labels hold 0 and 1.
        drop: Column to leave out; separate several by commas. Empty: none.
        categorical: Column of integers that are codes, such as user or product IDs: each value is a category, not a
            number; separate several by commas. Empty: none.
        group: Column whose equal values stay together in one split, unless another column decides the splits. It is not
            used as a feature. Empty: every row by itself.
        split_column: Column holding train, valid or test for each row; it is not used as a feature. Empty: split by
            hash.
        split_by_time: Column of times, dates or numbers: earliest rows train, next valid, latest test; it is not used
            as a feature. Empty: none.
        split: Percentages of rows (or groups) in train/valid/test, unless split_column is given.
        split_by: What is hashed: the row's number, or its features, so that a row stays in its split when data are
            added. One of: row, content.
        weight: Column holding a non-negative weight for each row; it is not used as a feature. Empty: equal weights.
        numeric_dtype: Storage type of the numeric columns, which are stored as normal scores. One of: uint8, float16,
            float32.
        max_categories: Maximum number of values of a string column, or of IDs in lists, with codes of their own. Rarer
            ones share codes by hash. 0: all that repeat.
        seed: Seed of the split, of the sample that statistics are computed from, and of the shuffle.
        initial_model_uri: Earlier model to continue from: its encoding, labels and weights. Empty: start from scratch.
        prepared_uri: Folder or bucket for the prepared shards, one folder per data set. Empty: inside the artifact.
        data_fingerprint: Output of fingerprint_parquet: part of the cache key, and the folder under prepared_uri.
        source: Parquet of an upstream step, instead of data_uri.
    """
    form = dict(locals())
    from dkan_core import PrepareConfig, config_from_form, prepare, prepared_folder, save_pointer, split_sources

    uri = prepared_folder(prepared_uri, data_fingerprint) if prepared_uri else prepared.path
    # A step that is tried again finds its own result at the URI, whole or not: it is kept or replaced.
    config = config_from_form(PrepareConfig, form)
    sources = source.path if source else split_sources(data_uri)
    result = prepare(sources, uri, config, overwrite=True, reuse=True)
    if prepared_uri:
        save_pointer(prepared.path, result, uri)
    prepared.metadata["uri"] = uri if prepared_uri else prepared.uri
    prepared.metadata["fingerprint"] = result.fingerprint
    prepared.metadata.update({f"{name}_rows": info.rows for name, info in result.splits.items()})
