"""Prepared rows back to their source columns, so that a model with another encoding can read them."""

import pyarrow as pa

from dkan_core.data.encoding.preprocessor import FIRST_CODE, Preprocessor
from dkan_core.explanation.columns import Column, read_codes, read_values, source_columns
from dkan_core.explanation.grid import written_value
from dkan_core.utils.arrays import Arrays

# Text for categories that were rare or unseen; no vocabulary contains it.
UNKNOWN = "\N{REPLACEMENT CHARACTER}dkan: not in the vocabulary"
# What a person calls them.
RARE = "rare or unseen"


def inverse_transform(arrays: Arrays, encoding: Preprocessor) -> pa.Table:
    """Return the source columns of prepared rows; values that were not seen in training, and rare ones, are unknown.

    Shape:
        - Input: ``numeric`` (N, F), ``categorical`` (N, C)
        - Output: N rows
    """
    columns: dict[str, pa.Array] = {}
    for column in source_columns(encoding):
        if column.numeric is not None:
            columns[column.name] = pa.array(read_values(column, arrays), from_pandas=True)
        elif column.coded is not None:
            # Each hash bucket has a text of its own, so that no encoding mixes its values with those that have a code.
            others = [f"{UNKNOWN} {name}" for name in column.coded.names[len(column.coded.vocabulary) :]]
            # In the order of codes: unseen, missing, known values.
            names = [UNKNOWN, None, *column.coded.vocabulary, *others]
            assert names.index(None) + 1 == FIRST_CODE
            columns[column.name] = pa.array(names, pa.string()).take(pa.array(read_codes(column, arrays)))
    return pa.table(columns)


def written_values(rows: pa.Table, encoding: Preprocessor) -> pa.Table:
    """Return what ``inverse_transform`` returned as a person would write it, null where missing.

    Shape:
        - Input and output: N rows
    """
    texts = {}
    for column in source_columns(encoding):
        # Each value once, however many rows have it.
        values = rows[column.name].combine_chunks().dictionary_encode()
        written = [_written(column, value) for value in values.dictionary.to_pylist()]
        texts[column.name] = pa.array(written, pa.string()).take(values.indices)
    return pa.table(texts)


def _written(column: Column, value: float | str) -> str:
    if isinstance(value, str):
        return RARE if value.startswith(UNKNOWN) else value
    return written_value(column, value) if column.is_calendar else _number(value)


def _number(value: float) -> str:
    """Write a number only as exactly as it is known.

    >>> _number(21.0), _number(-0.0), _number(1234567.0), _number(0.12345), _number(-12345.6), _number(1.5e-7)
    ('21', '0', '1234567', '0.1235', '-12350', '1.5e-07')
    """
    known = value if value.is_integer() else float(f"{value:.4g}")
    return f"{known + 0.0:.0f}" if known.is_integer() and abs(known) < 1e15 else f"{known:.4g}"
