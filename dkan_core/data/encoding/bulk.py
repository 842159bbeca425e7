"""Encoding of many rows at once: by the native extension where it is built, else by ``Preprocessor.transform``.

The bytes are the same either way: natively, a value is compared with the edges at which ``transform`` changes its code.

Shape suffixes: N rows, F numeric features, C coded features.
"""

import ctypes
from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from dkan_core.data.decimals import to_float64
from dkan_core.data.encoding.column_threads import map_columns
from dkan_core.data.encoding.edges import CodeEdges, code_edges
from dkan_core.data.encoding.preprocessor import (
    CategoryFeature,
    NumericFeature,
    Preprocessor,
    ValueFeature,
    category_codes,
    normal_scores,
    quantize,
    value_codes,
)
from dkan_core.data.encoding.raw_columns import column_named, column_of_numbers, numbers
from dkan_core.data.encoding.sparse import sparse_codes
from dkan_core.data.source.blocks import side_by_side
from dkan_core.native.library import ColumnArguments, ScatterArguments, native_library, require_library
from dkan_core.utils.arrays import Int64, UInt8
from dkan_core.utils.resources import available_cores

FLOATS: dict[Any, np.dtype[Any]] = {pa.float32(): np.dtype(np.float32), pa.float64(): np.dtype(np.float64)}
CACHE_LINE = 64
# Finding the edges of a column takes as long as computing the codes of some 5,000 rows without them.
MIN_ROWS = 4096


class BulkEncoder:
    """Encodes batch after batch of a source."""

    def __init__(self, preprocessor: Preprocessor) -> None:
        self.preprocessor = preprocessor
        self.is_native = preprocessor.numeric_dtype == "uint8" and native_library() is not None
        """Whether the codes of columns are computed block by block; else all columns are held as they were read."""
        # Stored in the preprocessor, so that all threads and parts that encode with it find the edges once.
        self._edges: dict[tuple[str, np.dtype[Any]], tuple[NumericFeature, CodeEdges | None]] = preprocessor.kept
        self._codes: UInt8 = np.empty(0, np.uint8)
        self._numeric: dict[str, list[int]] = defaultdict(list)
        self._coded: dict[str, list[int]] = defaultdict(list)
        columns = {feature.name: feature.column for feature in preprocessor.numeric}
        for index, feature in enumerate(preprocessor.numeric):
            self._numeric[feature.column].append(index)
        for index, coded in enumerate(preprocessor.coded):
            self._coded[columns.get(coded.name, coded.name)].append(index)

    def transform(self, rows: pa.RecordBatch | pa.Table, where: str) -> dict[str, npt.NDArray[Any]]:
        """Return what ``Preprocessor.transform`` returns."""
        # Several where the strings of a column are too long for one array.
        batches = rows.combine_chunks().to_batches() if isinstance(rows, pa.Table) else [rows]
        # Rows of lists may be longer than those that the encoding was made for.
        if not self.is_native or self.preprocessor.sparse or len(rows) < MIN_ROWS or len(batches) > 1:
            return self.preprocessor.transform(rows, where)
        kinds = ("numeric", np.uint8, self.preprocessor.numeric), ("categorical", np.int32, self.preprocessor.coded)
        arrays = {name: np.empty((len(rows), len(features)), kind) for name, kind, features in kinds if features}
        self.encode(batches, where, np.arange(len(rows)), arrays)
        return arrays

    def encode(
        self,
        blocks: Iterable[pa.RecordBatch],
        where: str,
        indices: Int64,
        records: npt.NDArray[Any] | Mapping[str, npt.NDArray[Any]],
    ) -> None:
        """Write the codes of rows into records.

        Args:
            blocks: Some columns of the rows each, together at least those that the preprocessor reads.
            where: The file, for messages.
            indices: Which record each row is (N,).
            records: Structured (N,), or arrays by name; with ``numeric`` and ``categorical`` as far as there are such
                features.

        Raises:
            DataError: A column is missing or of another kind than in training.
        """
        if not self.is_native:
            for name, array in self.preprocessor.transform(side_by_side(blocks), where).items():
                _put(array, indices, records[name])
            return
        codes_FN = self._codes_of(len(indices))
        coded_CN = np.empty((len(self.preprocessor.coded), len(indices)), np.int32)
        sparse = {feature.name for feature in self.preprocessor.sparse}
        missing = dict.fromkeys([*self._numeric, *self._coded, *sparse])
        lists: dict[str, pa.Array] = {}
        for block in blocks:
            self._encode_numeric(block, where, codes_FN)
            self._encode_coded(block, where, coded_CN)
            for name in block.schema.names:
                missing.pop(name, None)
            lists |= {name: block.column(name) for name in block.schema.names if name in sparse}
        for name in missing:
            column_named(pa.record_batch({}), name, where)
        if len(codes_FN):
            self._scatter(codes_FN, np.ascontiguousarray(indices, np.int64), records["numeric"])
        if len(coded_CN):
            records["categorical"][indices] = coded_CN.T
        if lists:
            _put(sparse_codes(pa.record_batch(lists), self.preprocessor.sparse, where), indices, records["sparse"])

    def _codes_of(self, rows: int) -> UInt8:
        """Return room for the codes of ``rows`` rows by column, used again for each batch."""
        # An odd number of cache lines: an even one would let the codes of many columns share a few sets of the cache.
        stride = (-(-rows // CACHE_LINE) | 1) * CACHE_LINE
        features = len(self.preprocessor.numeric)
        if self._codes.size < features * stride:
            self._codes = np.empty(features * stride, np.uint8)
        return self._codes[: features * stride].reshape(features, stride)

    def _encode_numeric(self, block: pa.RecordBatch, where: str, codes_FN: UInt8) -> None:
        """Encode the numeric features of some columns."""
        indices = [index for name in block.schema.names for index in self._numeric.get(name, ())]
        arguments, kept, count = (ColumnArguments * len(indices))(), [], 0
        for index in indices:
            feature = self.preprocessor.numeric[index]
            column = column_of_numbers(block, feature.name, where, feature.time)
            column = column if column.type in FLOATS else to_float64(column)
            edges = self._edges_of(feature, FLOATS[column.type])
            if edges is None:
                scores = normal_scores(numbers(block, feature.name, where, feature.time), feature)
                codes_FN[index, : len(block)] = quantize(scores, "uint8")
                continue
            # Keeps the edges alive, too: another thread may replace them in the shared dictionary.
            kept.append((column, edges))
            _describe(arguments[count], column, edges, codes_FN[index])
            count += 1
        if count:
            require_library().dkan_encode(ctypes.addressof(arguments), count, len(block), available_cores())

    def _edges_of(self, feature: NumericFeature, kind: np.dtype[Any]) -> CodeEdges | None:
        key = feature.name, kind
        found = self._edges.get(key)
        # An encoding that was copied with a change may hold the edges of another feature under this name.
        if found is None or found[0] is not feature:
            found = self._edges[key] = feature, code_edges(feature, kind)
        return found[1]

    def _encode_coded(self, block: pa.RecordBatch, where: str, coded_CN: npt.NDArray[np.int32]) -> None:
        """Encode the coded features of some columns."""
        indices = [index for name in block.schema.names for index in self._coded.get(name, ())]

        def encode(feature: CategoryFeature | ValueFeature) -> npt.NDArray[np.int32]:
            if feature.kind == "value":
                return value_codes(self.preprocessor.numbers_of(block, feature.name, where), feature)
            return category_codes(column_named(block, feature.name, where), feature, where)

        features = [self.preprocessor.coded[index] for index in indices]
        for index, codes in zip(indices, map_columns(encode, features), strict=True):
            coded_CN[index] = codes

    def _scatter(self, codes_FN: UInt8, indices: Int64, numeric_NF: UInt8) -> None:
        """Write codes by column to the records of their rows."""
        call = ScatterArguments(
            codes_FN.ctypes.data,
            indices.ctypes.data,
            numeric_NF.ctypes.data,
            numeric_NF.strides[0],
            codes_FN.strides[0],
            len(indices),
            len(codes_FN),
        )
        require_library().dkan_scatter(ctypes.byref(call), available_cores())


def _put(array: npt.NDArray[Any], indices: Int64, field: npt.NDArray[Any]) -> None:
    """Write rows to one field of their records. Rows of ids may be narrower than the field."""
    if array.shape == field.shape:
        field[indices] = array
        return
    field[...] = 0
    field[indices, : array.shape[1]] = array


def _describe(argument: ColumnArguments, column: pa.Array, edges: CodeEdges, out: UInt8) -> None:
    """Describe where a column's values and edges lie, and where its codes go."""
    kind = FLOATS[column.type]
    valid, values = column.buffers()
    argument.values = values.address + column.offset * kind.itemsize
    argument.valid = valid.address if valid is not None and column.null_count else None
    argument.valid_offset = column.offset
    argument.edges, argument.codes = edges.edges.ctypes.data, edges.codes.ctypes.data
    argument.edge_count = len(edges.edges)
    argument.is_double = kind.itemsize == 8
    argument.out = out.ctypes.data
