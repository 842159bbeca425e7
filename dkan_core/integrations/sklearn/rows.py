"""Rows that a classifier is given: checked as scikit-learn's own estimators do, and encoded."""

from collections import Counter
from collections.abc import Sequence
from functools import partial
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from scipy.sparse import csr_matrix, issparse
from sklearn.base import BaseEstimator
from sklearn.utils.validation import validate_data

from dkan_core.config import PrepareConfig
from dkan_core.data.encoding.column_hints import column_warnings
from dkan_core.data.encoding.extending import extended_encoding, with_counts
from dkan_core.data.encoding.fitting import fit_preprocessor
from dkan_core.data.encoding.preprocessor import Preprocessor
from dkan_core.data.encoding.source_check import check_features
from dkan_core.data.encoding.sparse import MAX_ROW_IDS, longest_rows
from dkan_core.data.encoding.value_counts import ValueCounts
from dkan_core.data.preparation.statistics import sample_rows
from dkan_core.data.source.column_types import column_types
from dkan_core.data.source.frames import column_names, is_frame, nulls_as_numbers, to_table, without_empty_types
from dkan_core.data.source.roles import check_kinds, feature_columns
from dkan_core.integrations.sklearn.categorical import chosen_columns, with_categories
from dkan_core.utils.caller import warn_caller
from dkan_core.utils.messages import Advice, drop_advice, listed_names

SPARSE_COLUMN = "columns"
"""Column name of a sparse matrix in a model's encoding."""

# Most cells of a sparse matrix with other values than 0 and 1, which is converted to an array: 800 MB in float64.
MAX_DENSE_CELLS = 100_000_000


OUT_OF_X: Advice = partial(drop_advice, argument="X")

EvalSet: TypeAlias = tuple[Any, Any] | list[tuple[Any, Any]]
"""Rows and labels, or a list of the one pair of them."""


def read_features(estimator: BaseEstimator, X: Any, *, fitting: bool, as_ids: bool | None = None) -> pa.Table:
    """Check rows as scikit-learn's own estimators do, and return them with the names of the features.

    Args:
        estimator: Whose rows they are; while fitting, it is told their number and names.
        X: Frame, array, or sparse matrix.
        fitting: Whether it is to be trained with them.
        as_ids: Whether a sparse matrix is read as the ids of its ones; else as an array. Default: as in training;
            while fitting, if it holds zeros and ones alone.

    Raises:
        ValueError: There is no row, columns share a name, or the features are not those of training; or a sparse matrix
            holds other values than zeros and ones, and is too large for an array.
    """
    if issparse(X):
        X = validate_data(estimator, X, reset=fitting, dtype=None, accept_sparse="csr", ensure_all_finite=False)
        if as_ids is None:
            as_ids = not len(_other_values(X)) if fitting else reads_ids(estimator.preprocessor_.columns)
        if as_ids:
            return _ids_of_ones(X, estimator.categorical_features)
        if X.shape[0] * X.shape[1] > MAX_DENSE_CELLS:
            remedy = "leave out columns, or give X != 0 to train on zeros and ones" if fitting else "give fewer rows"
            raise ValueError(
                f"A sparse X of {X.shape[0]:,} x {X.shape[1]:,} with other values than zeros and ones is read as an "
                f"array, of at most {MAX_DENSE_CELLS:,} cells; {remedy}"
            )
        X = X.toarray()
    # scikit-learn does not read the column names of an Arrow batch.
    X = pa.table(X) if isinstance(X, pa.RecordBatch) else X
    if is_frame(X):
        _check_names(X)
        X = X if fitting else _select_columns(estimator, X)
        # Conversion to an array would lose the types of a frame with numbers and text.
        validate_data(estimator, X, reset=fitting, skip_check_array=True)
        for count, kind in zip(X.shape, ("sample", "feature"), strict=True):
            if count == 0:
                raise ValueError(f"Found array with 0 {kind}(s) (shape={X.shape}) while a minimum of 1 is required.")
    elif hasattr(type(X), "columns"):
        raise TypeError(
            f"X is a {type(X).__name__}; give a frame of pandas, polars or Arrow (collect() of a lazy one), an array "
            "or a scipy sparse matrix"
        )
    else:
        # NaN and infinity are missing values here.
        X = validate_data(estimator, X, reset=fitting, dtype=None, ensure_all_finite=False)
    table = with_categories(to_table(X, feature_names(estimator)), estimator.categorical_features)
    if not fitting:
        return without_empty_types(table)
    table = nulls_as_numbers(table)
    check_kinds(column_types("X", table.schema), "X", OUT_OF_X)
    return table


def feature_names(estimator: Any) -> list[str]:
    """Return the names of the columns of ``X``; x0, x1 and so on where they have none."""
    names = getattr(estimator, "feature_names_in_", [])
    # shap's KernelExplainer sets that of its copy to None.
    names = estimator._feature_names if names is None else names
    return [*names] or [f"x{index}" for index in range(estimator.n_features_in_)]


def _check_names(X: Any) -> None:
    """Raise ValueError where columns of a frame have the same name, as a model finds columns by name."""
    repeated = [name for name, count in Counter(column_names(X)).items() if count > 1]
    if repeated:
        raise ValueError(f"X has several columns called {listed_names(repeated)}; give each a name of its own")


def one_pair(eval_set: EvalSet) -> tuple[Any, Any]:
    """Return the rows and the labels to validate on.

    Raises:
        ValueError: There are several pairs, or something else.
    """
    pairs = eval_set if isinstance(eval_set, list) else [eval_set]
    if len(pairs) != 1 or not isinstance(pairs[0], tuple | list) or len(pairs[0]) != 2:
        raise ValueError("eval_set must be one pair (X, y), or a list of one such pair")
    return pairs[0]


def reads_ids(columns: Sequence[str]) -> bool:
    """Return whether columns of a table, or those that an encoding reads, are the ids of a sparse matrix."""
    return list(columns) == [SPARSE_COLUMN]


def _other_values(X: csr_matrix) -> npt.NDArray[Any]:
    other: npt.NDArray[Any] = X.data[(X.data != 0) & (X.data != 1)]
    return other


def _ids_of_ones(X: csr_matrix, categorical_features: Any) -> pa.Table:
    """Return a sparse matrix as one column of lists: the numbers of the columns with a 1 in each row."""
    if categorical_features is not None:
        raise ValueError("categorical_features: a sparse X of zeros and ones has none; give X.toarray()")
    wrong = _other_values(X)
    if len(wrong):
        raise ValueError(
            f"A sparse X must hold zeros and ones, as that of fit did, got {wrong[0]:g}; give both arrays, as "
            "ColumnTransformer does with sparse_threshold=0"
        )
    ones = X.astype(np.uint8)
    ones.sum_duplicates()
    ones.eliminate_zeros()
    longest = int(np.diff(ones.indptr).max(initial=0))
    if longest > MAX_ROW_IDS:
        raise ValueError(
            f"A sparse X of zeros and ones may have {MAX_ROW_IDS:,} ones in a row, got {longest:,}; leave out columns, "
            "such as those that are 1 in most rows, or give X.toarray()"
        )
    lists = pa.LargeListArray.from_arrays(ones.indptr.astype(np.int64), ones.indices.astype(np.int64))
    return pa.table({SPARSE_COLUMN: lists})


def check_sparsity(table: pa.Table, preprocessor: Preprocessor) -> None:
    """Raise ValueError if the rows are a sparse matrix and those of ``fit`` were not, or the reverse."""
    is_sparse, was_sparse = map(reads_ids, (table.column_names, preprocessor.columns))
    if is_sparse != was_sparse:
        fitted, remedy = ("sparse", "scipy.sparse.csr_matrix(X)") if was_sparse else ("dense", "X.toarray()")
        raise ValueError(f"X is {'sparse' if is_sparse else 'dense'}, and that of fit was {fitted}; give {remedy}")


def _select_columns(estimator: BaseEstimator, X: Any) -> Any:
    """Return a frame's columns in the order of training, if the model and not the caller chose that order."""
    if not estimator._columns_by_name or not {*estimator.feature_names_in_} <= {*column_names(X)}:
        return X
    names = estimator.feature_names_in_.tolist()
    return X[names] if hasattr(X, "iloc") else X.select(names)


def fit_encoding(estimator: BaseEstimator, table: pa.Table, base: Preprocessor | None) -> Preprocessor:
    """Choose the encoding as ``prepare`` does; columns that say nothing are left out with a warning.

    Args:
        estimator: Whose rows they are.
        table: The rows.
        base: Encoding that its columns keep; others are added to it. None: there is none.

    Raises:
        DataError: A column of the base is missing, or of another kind.
        ValueError: No column says anything.
    """
    types = column_types("X", table.schema)
    if base is not None:
        check_features(base, types, "X", because="init_model was trained with")
        added = [name for name in table.column_names if name not in base.columns]
        counted = with_counts(base, table.slice(0, sample_rows(table.num_columns)), "X")
        return extended_encoding(counted, _fit_columns(estimator, table.select(added))) if added else counted
    preprocessor = _fit_columns(estimator, table)
    if not preprocessor.columns:
        raise ValueError(
            f"No column of X says anything about its rows: {table.column_names} hold no value, or none that repeats."
        )
    return preprocessor


def _fit_columns(estimator: BaseEstimator, table: pa.Table) -> Preprocessor:
    features = feature_columns(column_types("X", table.schema), "X")
    dtype = PrepareConfig(label=("label",)).numeric_dtype
    sample = table.slice(0, sample_rows(table.num_columns))
    counts = ValueCounts(features.categorical, features.sparse)
    counts.add(table, "X")
    longest = longest_rows(table, features.sparse, "X", OUT_OF_X)
    preprocessor = fit_preprocessor(
        sample,
        features.numeric,
        features.categorical,
        dtype,
        "X",
        times=features.times,
        sparse=features.sparse,
        value_counts=counts.tables(),
        useless="leave out",
        advice=OUT_OF_X,
    )
    if features.sparse:
        preprocessor = preprocessor.model_copy(update={"row_codes": sum(longest.values())})
    used = preprocessor.columns
    left_out = [name for name in table.column_names if name not in set(used)]
    if left_out and used:
        warn_caller(f"columns {left_out} of X hold no value, or none that repeats: left out")
    codes = chosen_columns(estimator.categorical_features, feature_names(estimator))
    for text in column_warnings(sample, [*features.numeric, *features.categorical], codes):
        warn_caller(f"X: {text}")
    return preprocessor
