"""Component: raw Parquet to a text that changes with it."""

from kfp import dsl

from components.image import IMAGE


@dsl.component(base_image=IMAGE, install_kfp_package=False)
def fingerprint_parquet(
    data_uri: str,
    label: str = "",
    drop: str = "",
    group: str = "",
    split_column: str = "",
    split: str = "70/10/20",
    weight: str = "",
    numeric_dtype: str = "uint8",
    seed: int = 0,
    initial_model_uri: str = "",
) -> str:
    """Return a text that changes when the files do, or how they are prepared: a cache key, which a URI alone is not.

    Args:
        data_uri: Parquet files, folders or globs, local or s3:// or gs://; several separated by a comma or a new line.
        label: Label column holding 0, 1 or null (not measured); several separated by a comma make a multi-label model.
        drop: Columns to leave out, separated by a comma.
        group: Column whose equal values stay in one split; not a feature. Empty: every row by itself.
        split_column: Column holding train, valid or test for each row; not a feature. Empty: split by hash.
        split: Percentages of rows (or groups) in train/valid/test when there is no split column.
        weight: Column holding a non-negative weight for each row; not a feature. Empty: all rows weigh the same.
        numeric_dtype: Storage type of the numeric columns: uint8, float16 or float32.
        seed: Decides split, statistics sample and shuffle.
        initial_model_uri: Earlier model to continue from: its encoding, labels and weights. Empty: start from scratch.

    Returns:
        Digest of the settings and of the files' names, sizes and modification stamps; none is read.
    """
    from dkan_core import fingerprint_sources

    settings = (label, drop, group, split_column, split, weight, numeric_dtype, seed)
    return fingerprint_sources(data_uri, repr(settings), model=initial_model_uri)
