"""Rows of requests, as the columns that are scored."""

import base64
import math
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from dkan_core import DataError
from dkan_core.data.encoding.preprocessor import FIRST_CODE, CategoryFeature, NumericFeature, Preprocessor
from dkan_core.data.encoding.sparse import SparseFeature
from dkan_core.serving.rows import Tensor, rows_of_instances, rows_of_tensors, tensor_types

PREPROCESSOR = Preprocessor(
    numeric=[NumericFeature(name="x", knots=[0.0, 1.0], scores=[-1.0, 1.0])],
    coded=[CategoryFeature(name="site", vocabulary=["left"])],
    numeric_dtype="uint8",
)


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([1, 2.5, None], [1.0, 2.5, None]),
        ([None, None], [None, None]),
        ([2**63, -1], [2.0**63, -1.0]),
        ([2**53 + 1, 0.5], [2.0**53, 0.5]),
    ],
)
def test_numbers_of_json_become_floats(values: list[Any], expected: list[Any]) -> None:
    found = rows_of_instances([{"x": value, "site": "left", "note": [1]} for value in values], PREPROCESSOR)
    assert found.schema == pa.schema([("x", pa.float64()), ("site", pa.string())])
    assert found["x"].to_pylist() == expected


@pytest.mark.parametrize("values", [[2**64 - 1, 2**63, None], [2**64 - 1, 1], [0, 2**64 - 1]])
def test_large_integers_of_a_tensor_are_read(values: list[Any]) -> None:
    tensors = [
        Tensor("x", "UINT64", [len(values)], values),
        Tensor("site", "BYTES", [len(values)], ["left"] * len(values)),
    ]
    found = rows_of_tensors(tensors, PREPROCESSOR)["x"].to_pylist()
    assert found == [None if value is None else float(value) for value in values]
    with pytest.raises(DataError, match="row 1: column 'x' is declared INT64, found 18446744073709551615"):
        rows_of_tensors(
            [Tensor("x", "INT64", [2], [1, 2**64 - 1]), Tensor("site", "BYTES", [2], ["left"] * 2)], PREPROCESSOR
        )


@pytest.mark.parametrize("values", [[10**16 + 1, 0.5], [2**63], [2**63, -1], [2**53 + 1, None, 1.0]])
def test_large_whole_numbers_are_read_as_floats_where_a_tensor_says_so(values: list[Any]) -> None:
    sites = Tensor("site", "BYTES", [len(values)], ["left"] * len(values))
    for datatype, kind in (("FP64", np.float64), ("FP32", np.float32)):
        found = rows_of_tensors([Tensor("x", datatype, [len(values)], values), sites], PREPROCESSOR)["x"].to_pylist()
        assert found == [None if value is None else kind(value) for value in values]
    for wrong in (True, "1"):
        tensor = Tensor("x", "FP64", [len(values)], [*values[:-1], wrong])
        with pytest.raises(DataError, match=f"row {len(values) - 1}: column 'x' is declared FP64, found {wrong!r}"):
            rows_of_tensors([tensor, sites], PREPROCESSOR)


def test_truth_values_are_the_texts_of_training() -> None:
    found = rows_of_instances([{"x": 1, "site": value} for value in (True, False, None)], PREPROCESSOR)
    assert found["site"].to_pylist() == ["true", "false", None]


@pytest.mark.parametrize("vocabulary", [["true", "false"], ["True", "False"], ["FALSE", "TRUE", "unknown"]])
def test_truth_values_of_requests_are_those_of_training_however_it_wrote_them(vocabulary: list[str]) -> None:
    feature = CategoryFeature(name="site", vocabulary=vocabulary)
    preprocessor = PREPROCESSOR.model_copy(update={"coded": [feature]})
    sent: list[list[Any]] = [[True, False], ["True", "False"], ["true", "false"], ["TRUE", "FALSE"]]
    places = [[text.lower() for text in vocabulary].index(text) for text in ("true", "false")]
    for values in sent:
        kind = "BOOL" if values[0] is True else "BYTES"
        numbers = Tensor("x", "FP64", [2], [1.0, 2.0])
        for rows in (
            rows_of_instances([{"x": 1, "site": value} for value in values], preprocessor),
            rows_of_tensors([numbers, Tensor("site", kind, [2], values)], preprocessor),
        ):
            codes = preprocessor.transform(rows, "rows")["categorical"][:, 0]
            assert codes.tolist() == [FIRST_CODE + place for place in places]


def test_what_pandas_has_for_missing_values_is_missing_in_every_column() -> None:
    instances = [{"x": 1.0, "site": "left"}, {"x": math.nan, "site": math.nan}]
    found = rows_of_instances(instances, PREPROCESSOR)
    assert found["site"].to_pylist() == ["left", None]
    tensors = [Tensor("x", "FP64", [2], [1.0, math.nan]), Tensor("site", "BYTES", [2], ["left", math.nan])]
    assert rows_of_tensors(tensors, PREPROCESSOR)["site"].to_pylist() == ["left", None]


def test_columns_of_truth_values_are_tensors_of_them() -> None:
    coded = [CategoryFeature(name="site", vocabulary=["true", "false"])]
    preprocessor = PREPROCESSOR.model_copy(update={"coded": coded})
    assert tensor_types(preprocessor) == {"x": "FP64", "site": "BOOL"}
    tensors = [Tensor("x", "FP64", [2], [1.0, 2.0]), Tensor("site", "BOOL", [2], [True, math.nan])]
    assert rows_of_tensors(tensors, preprocessor)["site"].to_pylist() == ["true", None]


def test_vectors_of_bits_are_sent_as_base64() -> None:
    vector = SparseFeature(name="bits", ids=[0, 9], counts=[1, 1], sample_rows=2, vector_bytes=2)
    preprocessor = Preprocessor(numeric=[], coded=[], sparse=[vector], numeric_dtype="uint8")
    sent = [{"b64": base64.b64encode(b"\x80\x40").decode()}, None]
    found = rows_of_instances([{"bits": value} for value in sent], preprocessor)
    assert found["bits"].to_pylist() == [b"\x80\x40", None] and not tensor_types(preprocessor)
    for wrong in ("8040", [1, 0], {"b64": "?"}, {"b64": "gAAA"}, {"other": ""}):
        with pytest.raises(DataError, match=r"row 1: column 'bits': expected \{\"b64\": TEXT\} with 2 bytes in base64"):
            rows_of_instances([{"bits": None}, {"bits": wrong}], preprocessor)
    with pytest.raises(DataError, match="column 'bits' holds vectors of bits, which no tensor can; send rows to /v1"):
        rows_of_tensors([Tensor("bits", "BYTES", [1], [None])], preprocessor)


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"x": "1", "site": "left"}, "row 1: column 'x' is string; the model was trained with numbers there"),
        ({"x": 1}, "row 1: column 'site' is missing; the model was trained with it"),
        ({"x": True, "site": "left"}, "row 1: column 'x' is bool; the model was trained with numbers there"),
        ({"x": 10**400, "site": "left"}, "row 1: column 'x': 1000.* cannot be read"),
        ({"x": 1, "site": "\ud800"}, "row 1: column 'site': .* cannot be read"),
        ({"x": 1, "site": 2}, "row 1: column 'site' is int64; the model was trained with categories"),
        ({"x": 1, "site": True}, "column 'site' holds values of several types; expected one"),
        ("x", "row 1: expected an object of column and value, found 'x'"),
    ],
)
def test_row_that_is_wrong_is_named(row: Any, message: str) -> None:
    with pytest.raises(DataError, match=f"^request: {message}"):
        rows_of_instances([{"x": 1, "site": "left"}, row], PREPROCESSOR)
