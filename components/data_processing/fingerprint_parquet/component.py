"""Component: raw Parquet to a fingerprint of its files."""

from kfp import dsl

from components.image import IMAGE


@dsl.component(base_image=IMAGE, install_kfp_package=False)
def fingerprint_parquet(
    data_uri: str,
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
) -> str:
    """Return a fingerprint of the files and of their preparation settings: a cache key, which a URI alone is not.

    Args:
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

    Returns:
        Digest of the settings and of the files' names, sizes and modification times; the files are not read.
    """
    form = dict(locals())
    from dkan_core import fingerprint_sources

    # Their order is part of the digest, and so of the folder that prepared data lie in.
    settings = tuple(value for name, value in form.items() if name not in ("data_uri", "initial_model_uri"))
    return fingerprint_sources(data_uri, repr(settings), model=initial_model_uri)
