"""Labels that are not 0, 1 and null: one value of a column counts as 1, all others as 0, and NaN as null."""

from collections.abc import Mapping, Sequence

import pyarrow as pa
import pyarrow.compute as pc

from dkan_core.data.source.column_types import is_number, is_text
from dkan_core.errors import DataError

# The numbers that booleans become.
BOOLEANS = {"true": 1, "false": 0}


def with_nulls(rows: pa.RecordBatch, labels: Sequence[str]) -> pa.RecordBatch:
    """Return rows whose labels are null where they are NaN, as pandas has what was not measured.

    >>> with_nulls(pa.record_batch({"late": [1.0, float("nan"), None]}), ["late"]).to_pydict()
    {'late': [1.0, None, None]}
    """
    for name in labels:
        index = rows.schema.get_field_index(name)
        column = rows.column(index)
        if pa.types.is_floating(column.type):
            # Arrow cannot count 16-bit floats.
            column = column.cast(pa.float32()) if pa.types.is_float16(column.type) else column
            rows = rows.set_column(index, name, pc.if_else(pc.is_nan(column), None, column))
    return rows


def with_positive(rows: pa.RecordBatch, positive: Mapping[str, str], where: str) -> pa.RecordBatch:
    """Return rows whose labels are 0, 1 and null.

    Args:
        rows: Rows of the source.
        positive: By label column, the value that counts as 1, as text; other columns stay as they are.
        where: The file, as messages should call it.

    Raises:
        DataError: The value cannot be one of its column, or the column holds another spelling of it.

    >>> rows = pa.record_batch({"outcome": ["late", "on time", None], "late": [1, 0, 1]})
    >>> with_positive(rows, {"outcome": "late"}, "flights").to_pydict()
    {'outcome': [1, 0, None], 'late': [1, 0, 1]}
    """
    for name, text in positive.items():
        index = rows.schema.get_field_index(name)
        column = rows.column(index)
        if pa.types.is_null(column.type):
            rows = rows.set_column(index, name, column.cast(pa.uint8()))
            continue
        try:
            value = value_of(text, column.type)
        except pa.ArrowException:
            number = BOOLEANS.get(text.casefold()) if is_number(column.type) else None
            # If another file holds numbers, the column is read as numbers from every file.
            hint = "" if number is None else f"; where a file holds numbers, {text} is {number}: write {number} instead"
            raise DataError(
                f"{where}: label column {name!r} is {column.type}, which cannot hold the positive value {text!r}{hint}"
            ) from None
        _check_spelling(name, column, text, where)
        rows = rows.set_column(index, name, pc.equal(column, value).cast(pa.uint8()))
    return rows


def other_values(column: pa.Array, text: str) -> dict[str, int]:
    """Return, as texts, the values of a label's column other than the one that counts as 1, each with its rows.

    >>> other_values(pa.array(["late", "on time", None, "early", "on time"]), "late")
    {'on time': 2, 'early': 1}
    >>> other_values(pa.array([1.0, 2.0]), "2")
    {'1': 1}
    """
    measured = column.drop_null()
    if not len(measured):
        return {}
    values, rows = pc.value_counts(measured).flatten()
    other = pc.not_equal(values, value_of(text, column.type))
    return dict(zip(values.filter(other).cast(pa.string()).to_pylist(), rows.filter(other).to_pylist(), strict=True))


def value_of(text: str, kind: pa.DataType) -> pa.Scalar:
    """Return a label's value in its type. Whole numbers may be written as 2.0: one missing value makes them floats.

    Raises:
        ArrowInvalid: The type does not hold it.
    """
    value = pa.scalar(text)
    try:
        return value.cast(kind)
    except pa.ArrowInvalid:
        if not pa.types.is_integer(kind):
            raise
        return value.cast(pa.float64()).cast(kind)


def _check_spelling(name: str, column: pa.Array, text: str, where: str) -> None:
    """Raise DataError where another spelling of the value that counts as 1 would count as 0."""
    if not is_text(column.type):
        return
    spelled = text.strip().casefold()
    for value in other_values(column, text):
        if value.strip().casefold() == spelled:
            raise DataError(
                f"{where}: label column {name!r} holds {value!r}, and {text!r} is the value that counts as 1; spell "
                "both alike, or if they differ on purpose, make the label 0 and 1"
            )


def differing_positive(ours: Mapping[str, str], theirs: Mapping[str, str]) -> tuple[str, str, str] | None:
    """Return the first label of which two data sets or models count different values as 1, with both values.

    Case and spaces around a value do not count, nor do labels that hold 0 and 1 on one side.

    >>> [differing_positive({"bought": "yes"}, {"bought": other}) for other in ("no", "Yes")]
    [('bought', 'yes', 'no'), None]
    """
    for label, value in ours.items():
        other = theirs.get(label, value)
        if value.strip().casefold() != other.strip().casefold():
            return label, value, other
    return None


def check_positive(ours: Mapping[str, str], where: str, theirs: Mapping[str, str], other: str) -> None:
    """Raise DataError where data or a model count another value of a label as 1 than a model, called ``other``."""
    if differing := differing_positive(ours, theirs):
        label, value, known = differing
        raise DataError(f"{where}: counts {value!r} of label {label} as 1, and {other} counts {known!r}")
