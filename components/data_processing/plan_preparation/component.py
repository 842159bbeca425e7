"""Component: raw Parquet to a plan of its preparation on several pods."""

from kfp import dsl

from components.image import IMAGE


@dsl.component(base_image=IMAGE, install_kfp_package=False)
def plan_preparation(
    data_uri: str,
    label: str,
    prepared_uri: str,
    num_parts: int = 8,
    overwrite: bool = False,
    # Settings of PrepareConfig, by: python -m pipelines signatures
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
    data_fingerprint: str = "",
) -> list[int]:
    """Plan a preparation on several pods: check the schema of every file and divide the rows into parts.

    Args:
        data_uri: Parquet files, folders or globs, local or s3:// or gs://; several separated by a comma or a new line.
        label: Label column, holding 0, 1 or null (not measured); several make it multi-label; separate several by
            commas. Empty: those of initial_model_uri.
        prepared_uri: Folder or bucket for the prepared shards, one folder per data set.
        num_parts: Parts to divide the rows into, at most 64, at row group boundaries; with fewer row groups there are
            fewer parts.
        overwrite: Replace an earlier result of other data or settings, or discard an interrupted preparation.
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
        data_fingerprint: Output of fingerprint_parquet: the folder under prepared_uri. Empty: prepared_uri itself.

    Returns:
        Number of each part, to loop over.
    """
    form = dict(locals())
    from dkan_core import PrepareConfig, config_from_form, plan_preparation, prepared_folder, split_sources

    config = config_from_form(PrepareConfig, form)
    # One output without a name: kfp's local runner loops over no other.
    uri = prepared_folder(prepared_uri, data_fingerprint)
    return plan_preparation(split_sources(data_uri), uri, config, parts=num_parts, overwrite=overwrite)
