"""Converts the rows of a request, as named columns or an object per row, to the columns that an encoding reads."""

import base64
import itertools
import math
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from dkan_core.data.decimals import MAX_WHOLE
from dkan_core.data.encoding.preprocessor import Preprocessor
from dkan_core.data.encoding.raw_columns import texts_of
from dkan_core.data.encoding.source_check import check_features, integer_categories
from dkan_core.data.encoding.sparse import SparseFeature
from dkan_core.data.source.column_types import column_types, is_number, is_text
from dkan_core.data.source.times import parsed_times
from dkan_core.errors import DataError
from dkan_core.utils.messages import counted, first_line, shown

# The name of the rows in messages, where ``predict`` names a file.
REQUEST = "request"
NO_TEXTS = "the bytes of a BYTES tensor are not texts in UTF-8, each after its length in 4 bytes"

ARROW_TYPES = {
    "BOOL": pa.bool_(),
    "INT8": pa.int8(),
    "INT16": pa.int16(),
    "INT32": pa.int32(),
    "INT64": pa.int64(),
    "UINT8": pa.uint8(),
    "UINT16": pa.uint16(),
    "UINT32": pa.uint32(),
    "UINT64": pa.uint64(),
    "FP16": pa.float16(),
    "FP32": pa.float32(),
    "FP64": pa.float64(),
    "BYTES": pa.string(),
}
"""Types of the Open Inference Protocol."""

# Errors of pyarrow and NumPy for values that are no array.
NOT_AN_ARRAY = (pa.ArrowException, OverflowError, TypeError, ValueError)


class Tensor(NamedTuple):
    """A column as the Open Inference Protocol carries it."""

    name: str
    datatype: str
    shape: Sequence[int]
    data: Sequence[Any] | npt.NDArray[Any]


def tensor_types(preprocessor: Preprocessor) -> dict[str, str]:
    """Return the tensor types of the training columns; lists and vectors have none."""
    truths = {each.name for each in preprocessor.category_features if each.holds_booleans}
    sparse = {feature.name for feature in preprocessor.sparse}
    return {
        name: "FP64" if is_number(kind) else "BOOL" if name in truths else "BYTES"
        for name, kind in preprocessor.source_types.items()
        if name not in sparse
    }


def rows_of_instances(instances: Any, preprocessor: Preprocessor) -> pa.RecordBatch:
    """Return rows that came as objects of column and value.

    Args:
        instances: A list of them; null is a missing value.
        preprocessor: Which columns are read; others are ignored.

    Raises:
        DataError: It is something else, or a column is missing or of another kind than in training.
    """
    if not isinstance(instances, list):
        raise DataError(f'{REQUEST}: "instances" must be a list of rows, each an object of column and value')
    if not instances:
        return _rows({name: pa.nulls(0) for name in preprocessor.columns}, preprocessor)
    try:
        columns = {name: [row[name] for row in instances] for name in preprocessor.columns}
    except (KeyError, TypeError, IndexError):
        raise _malformed_row(instances, preprocessor) from None
    return _rows({name: _inferred(name, values, preprocessor) for name, values in columns.items()}, preprocessor)


def _malformed_row(instances: list[Any], preprocessor: Preprocessor) -> DataError:
    for number, row in enumerate(instances):
        where = f"{REQUEST}: row {number}"
        if not isinstance(row, dict):
            return DataError(f"{where}: expected an object of column and value, found {shown(row)}")
        try:
            check_features(preprocessor, dict.fromkeys(row, pa.null()), where)
        except DataError as error:
            return error
    raise AssertionError("a row that has every column was refused")


def _inferred(name: str, values: list[Any], preprocessor: Preprocessor) -> pa.Array:
    """Return the values of a column as an array of their own type."""
    if not is_number(preprocessor.source_types[name]):
        values = _with_nulls(values)
    if name in integer_categories(preprocessor):
        # As text: integers of any size may stand beside texts, as a batch may have rows of several clients.
        values = [_as_text(value) for value in values]
    vectors = next((each for each in preprocessor.sparse if each.name == name and each.vector_bytes), None)
    if vectors is not None:
        return pa.array([_vector(each, vectors, number) for number, each in enumerate(values)], vectors.source_type)
    with suppress(*NOT_AN_ARRAY):
        return _array(values)
    for number, value in enumerate(values):
        where = f"{REQUEST}: row {number}"
        try:
            kind = pa.array([value]).type
        except NOT_AN_ARRAY as error:
            found = f"{shown(value)} cannot be read ({first_line(error)})"
            raise DataError(f"{where}: column {name!r}: {found}") from None
        if is_text(kind) and name in preprocessor.times:
            continue
        others = dict.fromkeys(preprocessor.columns, pa.null())
        check_features(preprocessor, {**others, name: kind}, where)
    raise DataError(f"{REQUEST}: column {name!r} holds values of several types; expected one")


def _as_text(value: Any) -> Any:
    is_whole = isinstance(value, float) and value.is_integer() and abs(value) <= MAX_WHOLE
    return str(int(value)) if is_whole or type(value) is int else value


def _with_nulls(values: Sequence[Any] | npt.NDArray[Any]) -> list[Any]:
    """Return values with null in place of NaN, which pandas uses for missing values."""
    return [None if isinstance(value, float) and math.isnan(value) else value for value in values]


def _vector(value: Any, feature: SparseFeature, number: int) -> bytes | None:
    """Return a bit vector, which JSON requests encode as KServe's bytes: {"b64": "..."}."""
    if value is None:
        return None
    with suppress(TypeError, ValueError, KeyError):
        content = base64.b64decode(value["b64"], validate=True)
        if len(content) == feature.vector_bytes:
            return content
    wanted = f'expected {{"b64": TEXT}} with {feature.vector_bytes} bytes in base64'
    raise DataError(f"{REQUEST}: row {number}: column {feature.name!r}: {wanted}, found {shown(value)}")


def _array(values: Sequence[Any] | npt.NDArray[Any]) -> pa.Array:
    """Return values as an array; numbers without a common type become floats, as they do later anyway."""
    with suppress(*NOT_AN_ARRAY):
        return pa.array(values)
    if any(isinstance(value, bool | str) for value in values):
        raise TypeError("not only numbers")
    return pa.array([None if value is None else float(value) for value in values], pa.float64())


def rows_of_tensors(tensors: Sequence[Tensor], preprocessor: Preprocessor) -> pa.RecordBatch:
    """Return rows that came as a tensor for each column, in any order.

    Args:
        tensors: Of shape (N,) or (N, 1); null is a missing value, and so is NaN in a column of numbers.
        preprocessor: Which columns are read; others are ignored.

    Raises:
        DataError: A tensor is not what it says of itself, or a column is missing, or of another kind than in training.
    """
    if preprocessor.sparse:
        feature = preprocessor.sparse[0]
        what = "vectors of bits" if feature.vector_bytes else "lists of IDs"
        where = f"{REQUEST}: column {feature.name!r}"
        raise DataError(f"{where} holds {what}, which no tensor can; send rows to /v1/models/NAME:predict")
    needed = {*preprocessor.columns}
    column_types(REQUEST, pa.schema([(tensor.name, pa.null()) for tensor in tensors]))
    columns = {tensor.name: _column(tensor) for tensor in tensors if tensor.name in needed}
    for (before, first), (name, column) in itertools.pairwise(columns.items()):
        if len(column) != len(first):
            raise DataError(
                f"{REQUEST}: column {name!r} has {counted(len(column), 'row')}; column {before!r} has {len(first):,}"
            )
    return _rows(columns, preprocessor)


def _column(tensor: Tensor) -> pa.Array:
    name, shape = tensor.name, list(tensor.shape)
    if tensor.datatype not in ARROW_TYPES:
        known = ", ".join(ARROW_TYPES)
        raise DataError(f"{REQUEST}: column {name!r}: datatype must be one of {known}, got {shown(tensor.datatype)}")
    if not (len(shape) == 1 or (len(shape) == 2 and shape[1] == 1)) or shape[0] < 0:
        raise DataError(f"{REQUEST}: column {name!r} has shape {shape}; expected [rows] or [rows, 1]")
    values = np.ravel(tensor.data) if isinstance(tensor.data, np.ndarray) else _flat(tensor.data)
    if tensor.datatype in ("BYTES", "BOOL"):
        values = _with_nulls(values)
    if len(values) != shape[0]:
        raise DataError(f"{REQUEST}: column {name!r} has shape {shape} and {counted(len(values), 'value')}")
    if tensor.datatype == "BYTES":
        values = [_text(value, name, number) for number, value in enumerate(values)]
    return _typed(name, values, tensor.datatype)


def _flat(data: Sequence[Any]) -> list[Any]:
    """Return the values of shape (N, 1) as a flat list."""
    return [value[0] if isinstance(value, list) and len(value) == 1 else value for value in data]


def _text(value: Any, name: str, number: int) -> Any:
    if not isinstance(value, bytes):
        return value
    try:
        return value.decode()
    except UnicodeDecodeError as error:
        raise DataError(f"{REQUEST}: row {number}: column {name!r} holds text that is not UTF-8 ({error})") from None


def _typed(name: str, values: Sequence[Any] | npt.NDArray[Any], datatype: str) -> pa.Array:
    kind = ARROW_TYPES[datatype]
    column = _converted(values, kind)
    if column is not None:
        return column
    wrong = next((number for number, value in enumerate(values) if _converted([value], kind) is None), 0)
    where = f"{REQUEST}: row {wrong}: column {name!r}"
    raise DataError(f"{where} is declared {datatype}, found {shown(values[wrong])}")


def _converted(values: Sequence[Any] | npt.NDArray[Any], kind: pa.DataType) -> pa.Array | None:
    """Return values as an array of a type, or None where one is of another kind: text, truth value or number."""
    try:
        if pa.types.is_integer(kind) and all(type(value) in (int, type(None)) for value in values):
            # With a given type: inferred, large and small integers together may have none.
            return pa.array(values, kind)
        found = _array(values) if pa.types.is_floating(kind) else pa.array(values)
        if not (pa.types.is_null(found.type) or _kind(found.type) == _kind(kind)):
            return None
        # Integers must stay exact; for floats, fewer bits are what the client asked for.
        return found.cast(kind, safe=pa.types.is_integer(kind))
    except NOT_AN_ARRAY:
        return None


def _kind(kind: pa.DataType) -> tuple[bool, bool]:
    return is_text(kind), is_number(kind)


def _rows(columns: Mapping[str, pa.Array], preprocessor: Preprocessor) -> pa.RecordBatch:
    """Return the columns with the model's types, so that the rows of several requests can be concatenated."""
    times = {name: pa.timestamp("us", zone) for name, zone in preprocessor.times.items() if name in columns}
    columns = {**columns, **{name: parsed_times(columns[name], kind, name, REQUEST) for name, kind in times.items()}}
    types = {name: column.type for name, column in columns.items()}
    check_features(preprocessor, types, REQUEST)
    for name in integer_categories(preprocessor):
        columns[name] = texts_of(columns[name], name, REQUEST, integers=True)
    cast = {name: columns[name].cast(kind, safe=False) for name, kind in preprocessor.source_types.items()}
    return pa.record_batch(list(cast.values()), names=list(cast))
