"""Rows of requests, as the columns that are scored."""

from typing import Any

import pyarrow as pa
import pytest

from dkan_core import DataError
from dkan_core.data.encoding.preprocessor import CategoryFeature, NumericFeature, Preprocessor
from dkan_core.serving.rows import Tensor, rows_of_instances, rows_of_tensors

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


def test_truth_values_are_the_texts_of_training() -> None:
    found = rows_of_instances([{"x": 1, "site": value} for value in (True, False, None)], PREPROCESSOR)
    assert found["site"].to_pylist() == ["true", "false", None]


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
