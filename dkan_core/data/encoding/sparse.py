"""Sparse columns, in which each row names a few of many ids: lists of integers, such as tags, and bit vectors.

An id in the vocabulary, or a hash bucket of other ids, is a code; a row has each code at most once. The codes of all
sparse columns are numbered in one sequence from 1 on, to index one table of weights; 0 pads shorter rows.

Shape suffixes: N rows, K ids of all rows, S codes of the longest row.
"""

from collections.abc import Sequence
from functools import cached_property
from typing import Annotated

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pydantic import AfterValidator, Field, model_validator

from dkan_core.data.encoding.features import Feature
from dkan_core.data.encoding.raw_columns import column_named
from dkan_core.data.hashing import splitmix64
from dkan_core.data.source.column_types import ID_LIST, is_id_list
from dkan_core.errors import DataError
from dkan_core.utils.arrays import Int32, Int64
from dkan_core.utils.messages import Advice, drop_advice

EMPTY = 0
# Per column. The manifest lists the ids, and the model has a weight vector for each.
MAX_IDS = 1 << 20
# Per row. Batches and spill files reserve space in every row for as many codes as the longest row has.
MAX_ROW_IDS = 4096
# Rows whose bits are unpacked at once; an unpacked bit takes a byte.
UNPACKED_ROWS = 4096


def _rising_ids(ids: list[int]) -> list[int]:
    if (np.diff(np.asarray(ids, np.int64)) <= 0).any():
        raise ValueError("must rise from each ID to the next")
    return ids


class SparseFeature(Feature):
    """Codes of a column of lists of integers, or of vectors of bits."""

    name: str
    """Column."""

    ids: Annotated[list[Annotated[int, Field(ge=-(2**63), lt=2**63)]], AfterValidator(_rising_ids)]
    """IDs with a code of their own, rising; of a vector the numbers of its bits."""

    buckets: Annotated[int, Field(ge=0)] = 0
    """Codes behind those of the IDs: by hash, each stands for some of all other IDs; 0: those are left out."""

    vector_bytes: Annotated[int, Field(ge=0)] = 0
    """Bytes of a vector of bits, in the order of ``numpy.packbits``; 0: the column holds lists."""

    counts: list[Annotated[int, Field(ge=0)]]
    """How many rows of the sample that the IDs were found in have each code."""

    sample_rows: Annotated[int, Field(ge=1)]
    """Rows of that sample."""

    @model_validator(mode="after")
    def _check(self) -> "SparseFeature":
        if not self.ids:
            raise ValueError("ids: there must be one")
        if len(self.counts) != self.size or max(self.counts) > self.sample_rows:
            raise ValueError(f"counts: must be {self.size} numbers up to {self.sample_rows}, one for each code")
        return self

    @property
    def ones(self) -> float:
        """Mean number of codes in a row of the sample."""
        return sum(self.counts) / self.sample_rows

    @property
    def size(self) -> int:
        """Number of codes."""
        return len(self.ids) + self.buckets

    @property
    def source_type(self) -> pa.DataType:
        """The type that the column is read as."""
        return pa.binary(self.vector_bytes) if self.vector_bytes else ID_LIST

    @property
    def expected(self) -> str:
        """The words for its values, for messages."""
        return f"vectors of {self.vector_bytes} bytes" if self.vector_bytes else "lists of integers"

    def fits(self, kind: pa.DataType) -> bool:
        """Return whether a column of a type can be encoded, or has no value; bytes must turn out to be as many."""
        if not self.vector_bytes:
            return is_id_list(kind) or bool(pa.types.is_null(kind))
        of_any_length = (pa.types.is_null, pa.types.is_binary, pa.types.is_large_binary)
        return bool(kind == self.source_type) or any(fits(kind) for fits in of_any_length)

    @cached_property
    def known(self) -> Int64:
        """The ids as an array."""
        return np.asarray(self.ids, np.int64)

    def codes_of(self, ids_K: Int64) -> Int64:
        """Return the index of each id among the column's codes, -1 where it has none.

        Shape:
            - Input and output: ``(K,)``
        """
        index_K = np.minimum(np.searchsorted(self.known, ids_K), len(self.known) - 1)
        other_K = np.full(len(ids_K), -1, np.int64)
        if self.buckets:
            other_K = len(self.ids) + (splitmix64(ids_K.view(np.uint64)) % np.uint64(self.buckets)).astype(np.int64)
        return np.where(self.known[index_K] == ids_K, index_K, other_K)


def ids_of(column: pa.ChunkedArray | pa.Array, name: str, where: str) -> tuple[Int64, Int64]:
    """Return the row, never falling, and the id of each entry of a column; a row may have an id twice, null is none.

    Args:
        column: Lists of integers, or vectors of bits.
        name: Its name.
        where: The rows, as messages should call them.

    Shape:
        - Output: ``(K,)``, ``(K,)``

    Raises:
        DataError: The column is of another kind, or an id does not fit in 64 bits with a sign.
    """
    whole = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
    if pa.types.is_null(whole.type):
        return np.empty(0, np.int64), np.empty(0, np.int64)
    if pa.types.is_fixed_size_binary(whole.type):
        return _ones_of(whole)
    try:
        lists = whole.cast(ID_LIST)
    except pa.ArrowException as error:
        raise DataError(
            f"{where}: column {name!r} is {whole.type}; expected lists of integers of 64 bits with a sign ({error})"
        ) from error
    lengths = pc.fill_null(pc.list_value_length(lists), 0).to_numpy(zero_copy_only=False)
    rows_K = np.repeat(np.arange(len(lists)), lengths)
    ids = lists.flatten()
    if ids.null_count:
        rows_K = rows_K[np.asarray(ids.is_valid())]
        ids = ids.drop_null()
    return rows_K, ids.to_numpy()


def _ones_of(vectors: pa.FixedSizeBinaryArray) -> tuple[Int64, Int64]:
    """Return the row of each one in vectors of bits, and its number."""
    width = vectors.type.byte_width
    content = np.frombuffer(vectors.buffers()[1] or b"", np.uint8)
    bytes_NW = content[vectors.offset * width : (vectors.offset + len(vectors)) * width].reshape(-1, width)
    if vectors.null_count:
        bytes_NW = np.where(np.asarray(vectors.is_valid())[:, None], bytes_NW, np.uint8(0))
    rows, bits = [np.empty(0, np.int64)], [np.empty(0, np.int64)]
    for start in range(0, len(bytes_NW), UNPACKED_ROWS):
        found = np.nonzero(np.unpackbits(bytes_NW[start : start + UNPACKED_ROWS], axis=1))
        rows.append(found[0] + start)
        bits.append(found[1])
    return np.concatenate(rows), np.concatenate(bits)


def longest_rows(
    rows: pa.RecordBatch | pa.Table, names: Sequence[str], where: str, advice: Advice = drop_advice
) -> dict[str, int]:
    """Return by column how many ids the longest of some rows has at most; an id that is repeated may count again.

    Args:
        rows: At least the columns ``names``.
        names: Columns of lists of ids or of bit vectors.
        where: The rows, as messages should call them.
        advice: Says of columns how to leave them out.

    Raises:
        DataError: They are more than ``MAX_ROW_IDS``.
    """
    longest = {}
    for name in names:
        rows_K, ids_K = ids_of(column_named(rows, name, where), name, where)
        longest[name] = _longest_row(rows_K, ids_K, name, where, f", or {advice([name])}")
    return longest


def _longest_row(rows_K: Int64, ids_K: Int64, name: str, where: str, otherwise: str = "") -> int:
    counts_N = np.bincount(rows_K)
    ends_N = np.cumsum(counts_N)
    # Repeated ids count once. Finding them takes a sort, so only rows that seem too long are checked.
    for row in np.flatnonzero(counts_N > MAX_ROW_IDS):
        counts_N[row] = len(np.unique(ids_K[ends_N[row] - counts_N[row] : ends_N[row]]))
    longest = int(counts_N.max(initial=0))
    if longest > MAX_ROW_IDS:
        raise DataError(
            f"{where}: column {name!r} has {longest:,} IDs in a row; expected at most {MAX_ROW_IDS:,}: "
            f"shorten its lists{otherwise}"
        )
    return longest


def sparse_codes(rows: pa.RecordBatch | pa.Table, features: Sequence[SparseFeature], where: str) -> Int32:
    """Return the codes of rows, rising in each.

    Args:
        rows: At least the columns of the features.
        features: All columns of this kind, in the order of their codes.
        where: The rows, as messages should call them.

    Shape:
        - Output: ``(N, S)``, 0 behind a row's last code; S at least 1

    Raises:
        DataError: A column is missing or of another kind, or a row has more than ``MAX_ROW_IDS`` ids.
    """
    end = 1 + sum(feature.size for feature in features)
    keys, first = [], 1
    for feature in features:
        rows_K, ids_K = ids_of(_checked(column_named(rows, feature.name, where), feature, where), feature.name, where)
        _longest_row(rows_K, ids_K, feature.name, where)
        codes_K = feature.codes_of(ids_K)
        has_code_K = codes_K >= 0
        keys.append(rows_K[has_code_K] * end + codes_K[has_code_K] + first)
        first += feature.size
    row_K, code_K = np.divmod(_sorted_once(np.concatenate(keys)), end)
    counts_N = np.bincount(row_K, minlength=len(rows))
    starts_N = np.cumsum(counts_N) - counts_N
    codes_NS = np.zeros((len(rows), max(1, int(counts_N.max(initial=0)))), np.int32)
    codes_NS[row_K, np.arange(len(row_K)) - starts_N[row_K]] = code_K
    return codes_NS


def _sorted_once(keys_K: Int64) -> Int64:
    """Return different numbers in order."""
    # np.unique hashes integers, which took thirty times as long on these keys, which come row by row.
    ordered = np.sort(keys_K, kind="stable")
    return ordered[np.diff(ordered, prepend=-1) > 0]


def _checked(column: pa.ChunkedArray | pa.Array, feature: SparseFeature, where: str) -> pa.ChunkedArray | pa.Array:
    if not feature.fits(column.type):
        raise DataError(
            f"{where}: column {feature.name!r} is {column.type}; the model was trained with {feature.expected} there"
        )
    if not feature.vector_bytes or pa.types.is_null(column.type):
        return column
    try:
        return column.cast(feature.source_type)
    except pa.ArrowInvalid:
        raise DataError(f"{where}: column {feature.name!r} holds others than {feature.expected}") from None


def count_ids(column: pa.ChunkedArray | pa.Array, name: str, where: str) -> pa.Table:
    """Return the ids of a column ("value") and how many rows have each ("rows"), in any order; null is none of them."""
    rows_K, ids_K = ids_of(column, name, where)
    found, index_K = np.unique(ids_K, return_inverse=True)
    # An id that a row has twice counts once.
    once = _sorted_once(rows_K * len(found) + index_K)
    return pa.table({"value": found, "rows": np.bincount(once % max(1, len(found)), minlength=len(found))})


def fit_sparse(
    column: pa.ChunkedArray | pa.Array, name: str, where: str, counts: pa.Table, max_ids: int | None, buckets: int
) -> SparseFeature | None:
    """Choose which ids have a code of their own: the most frequent ones; None where there is no id.

    Args:
        column: Of rows of the train split.
        name: Its name.
        where: The rows, as messages should call them.
        counts: Its ids, null maybe among them, and the rows of each, from ``count_ids``: of these rows or of more.
        max_ids: How many at most. Default: ``MAX_IDS``.
        buckets: Codes that all other ids share by their hash, where there are others.
    """
    counts = counts.filter(pc.is_valid(counts["value"]))
    if not len(counts):
        return None
    # Ties are broken by the id: the choice must not depend on the order of the rows.
    ordered = counts.sort_by([("rows", "descending"), ("value", "ascending")])
    frequent = np.sort(ordered["value"].slice(0, max_ids or MAX_IDS).to_numpy())
    others = buckets if len(counts) > len(frequent) else 0
    feature = SparseFeature(
        name=name,
        ids=frequent.tolist(),
        buckets=others,
        vector_bytes=column.type.byte_width if pa.types.is_fixed_size_binary(column.type) else 0,
        counts=[0] * (len(frequent) + others),
        sample_rows=len(column),
    )
    codes_NS = sparse_codes(pa.table({name: column}), [feature], where)
    counts_C = np.bincount(codes_NS.ravel(), minlength=feature.size + 1)[1:]
    return feature.model_copy(update={"counts": counts_C.tolist()})


def left_out_shares(
    sample: pa.RecordBatch | pa.Table, features: Sequence[SparseFeature], where: str
) -> dict[str, float]:
    """Return by column which share of the ids in some rows has no code of its own."""
    shares = {}
    for feature in features:
        _, ids_K = ids_of(column_named(sample, feature.name, where), feature.name, where)
        own_K = np.isin(ids_K, feature.known)
        shares[feature.name] = float(1 - own_K.mean()) if len(ids_K) else 0.0
    return shares
