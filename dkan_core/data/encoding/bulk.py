"""Many rows to codes at once: by the native extension where it is built, else by ``Preprocessor.transform``.

The bytes are the same either way: natively, a value is compared with the edges at which ``transform`` changes its code.
"""

import ctypes
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from dkan_core.data.encoding.edges import CodeEdges, Int64, code_edges
from dkan_core.data.encoding.preprocessor import NumericFeature, Preprocessor, column_of_numbers
from dkan_core.native.library import ColumnArguments, EncodeArguments, native_library
from dkan_core.utils.resources import available_cores

FLOATS: dict[Any, np.dtype[Any]] = {pa.float32(): np.dtype(np.float32), pa.float64(): np.dtype(np.float64)}


class BulkEncoder:
    """Encodes batch after batch of a source.

    Args:
        preprocessor: The encoding.
    """

    def __init__(self, preprocessor: Preprocessor) -> None:
        self.preprocessor = preprocessor
        # The library reads them by address.
        self._edges: dict[tuple[str, np.dtype[Any]], CodeEdges | None] = {}

    def encode(self, rows: pa.RecordBatch, where: str, places: Int64, records: npt.NDArray[Any]) -> None:
        """Write the codes of rows into records.

        Args:
            rows: At least the columns that the preprocessor reads (N).
            where: The file, for messages.
            places: Which record each row is (N,).
            records: Structured (N,), with the fields ``numeric`` and ``categorical`` as far as there are such features.

        Raises:
            DataError: A column is missing or of another kind than in training.
        """
        if not self._encode_natively(rows, where, places, records):
            for name, array in self.preprocessor.transform(rows, where).items():
                records[name][places] = array
        elif self.preprocessor.coded:
            records["categorical"][places] = self.preprocessor.transform_coded(rows, where)

    def _encode_natively(self, rows: pa.RecordBatch, where: str, places: Int64, records: npt.NDArray[Any]) -> bool:
        """Encode the numeric columns; tells whether that is possible."""
        library, features = native_library(), self.preprocessor.numeric
        if library is None or not features or self.preprocessor.numeric_dtype != "uint8":
            return False
        arguments, kept = (ColumnArguments * len(features))(), []
        for argument, feature in zip(arguments, features, strict=True):
            column = column_of_numbers(rows, feature.name, where)
            column = column if column.type in FLOATS else column.cast(pa.float64(), safe=False)
            kept.append(column)
            if not self._describe(argument, column, feature):
                return False
        numeric = records["numeric"]
        call = EncodeArguments(
            ctypes.addressof(arguments),
            np.ascontiguousarray(places, np.int64).ctypes.data,
            numeric.ctypes.data,
            numeric.strides[0],
            len(places),
            len(features),
        )
        library.dkan_encode(ctypes.byref(call), available_cores())
        return True

    def _describe(self, argument: ColumnArguments, column: pa.Array, feature: NumericFeature) -> bool:
        kind = FLOATS[column.type]
        key = feature.name, kind
        if key not in self._edges:
            self._edges[key] = code_edges(feature, kind)
        found = self._edges[key]
        if found is None:
            return False
        valid, values = column.buffers()
        argument.values = values.address + column.offset * kind.itemsize
        argument.valid = valid.address if valid is not None and column.null_count else None
        argument.valid_offset = column.offset
        argument.edges, argument.codes = found.edges.ctypes.data, found.codes.ctypes.data
        argument.edge_count, argument.missing = len(found.edges), found.missing
        argument.is_double = kind.itemsize == 8
        return True
