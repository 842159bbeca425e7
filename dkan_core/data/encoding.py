"""Preprocessor: raw columns to the arrays a model reads.

Numeric columns become normal scores (the standard normal quantile of a value's mid-rank in the train split).
Columns of strings and booleans become codes. A numeric column with missing values, or whose values repeat much,
is also given codes for its frequent values, so that a model can treat them apart ("value codes").

Shape suffixes: N rows, F numeric features, C coded features.
"""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from statistics import NormalDist
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from dkan_core.data.schema import is_number, is_text
from dkan_core.errors import DataError
from dkan_core.machine import available_cores

SCORE_LIMIT = 3.0
STEPS = 254
LEVELS = np.linspace(-SCORE_LIMIT, SCORE_LIMIT, STEPS + 1)
LEVEL_RANKS = np.array([NormalDist().cdf(level) for level in LEVELS])
JUMP = 0.25 * 2 * SCORE_LIMIT / STEPS
UNSEEN, MISSING, FIRST_CODE = 0, 1, 2

MAX_EXACT_KNOTS = 512
MAX_VOCABULARY = 65_536
MIN_CATEGORY_ROWS = 2
MAX_VALUE_CODES = 254
MIN_VALUE_ROWS = 20
MIN_REPEATED_SHARE = 0.1
MAX_VALUE_CODED_COLUMNS = 256

Float64 = npt.NDArray[np.float64]


class _UselessColumnError(DataError):
    """A column says nothing about a row."""


# NumPy and Arrow let go of the interpreter on whole columns, so columns are encoded side by side.
_columns_pool = ThreadPoolExecutor(available_cores(), thread_name_prefix="dkan-encode")


@dataclass(frozen=True, kw_only=True)
class NumericFeature:
    """A numeric column and its map to normal scores, linear between knots."""

    name: str
    knots: list[float]
    scores: list[float]


@dataclass(frozen=True, kw_only=True)
class CodedFeature:
    """A column's codes: 0 unseen, 1 missing, then its vocabulary."""

    name: str
    kind: Literal["category", "value"]
    vocabulary: list[str] | list[float]

    @property
    def cardinality(self) -> int:
        """Number of codes."""
        return FIRST_CODE + len(self.vocabulary)


@dataclass(frozen=True, kw_only=True)
class Preprocessor:
    """The whole encoding; saved beside a model, so that raw rows can be scored anywhere."""

    numeric: list[NumericFeature]
    coded: list[CodedFeature]
    numeric_dtype: Literal["uint8", "float16", "float32"]

    @property
    def columns(self) -> list[str]:
        """Source columns that are read."""
        names = [feature.name for feature in self.numeric]
        return names + [feature.name for feature in self.coded if feature.kind == "category"]

    def transform(self, rows: pa.RecordBatch | pa.Table, where: str) -> dict[str, npt.NDArray[Any]]:
        """Encode rows.

        Args:
            rows: At least the columns in ``columns``.
            where: The file, as messages should call it.

        Shape:
            - Output: ``numeric`` (N, F), ``categorical`` (N, C) int32; each only where there is such a feature

        Raises:
            DataError: A column is missing or of another kind than in training.
        """
        value_coded = {feature.name: feature for feature in self.coded if feature.kind == "value"}

        codes: dict[str, npt.NDArray[np.int32]] = {}

        def encode_numeric(feature: NumericFeature) -> npt.NDArray[Any]:
            values = numbers(rows, feature.name, where)
            if feature.name in value_coded:
                codes[feature.name] = value_codes(values, value_coded[feature.name])
            return quantize(normal_scores(values, feature), self.numeric_dtype)

        arrays: dict[str, npt.NDArray[Any]] = {}
        if self.numeric:
            scores_FN = np.stack(list(_columns_pool.map(encode_numeric, self.numeric)))
            arrays["numeric"] = np.ascontiguousarray(scores_FN.T)
        if self.coded:
            codes_CN = [
                codes[feature.name]
                if feature.kind == "value"
                else category_codes(_column(rows, feature.name, where), feature, where)
                for feature in self.coded
            ]
            arrays["categorical"] = np.ascontiguousarray(np.stack(codes_CN).T)
        return arrays

    def to_dict(self) -> dict[str, Any]:
        """Return the plain form that is saved as JSON."""
        # ``asdict`` would copy each of millions of knots on its own.
        return {
            "numeric": [dict(vars(feature)) for feature in self.numeric],
            "coded": [dict(vars(feature)) for feature in self.coded],
            "numeric_dtype": self.numeric_dtype,
        }

    @classmethod
    def from_dict(cls, plain: dict[str, Any]) -> "Preprocessor":
        """Rebuild a preprocessor from its plain form."""
        return cls(
            numeric=[NumericFeature(**feature) for feature in plain["numeric"]],
            coded=[CodedFeature(**feature) for feature in plain["coded"]],
            numeric_dtype=plain["numeric_dtype"],
        )


def fit_preprocessor(
    sample: pa.Table,
    numeric: Sequence[str],
    categorical: Sequence[str],
    numeric_dtype: Literal["uint8", "float16", "float32"],
    where: str,
    *,
    useless: Literal["refuse", "leave out"] = "refuse",
) -> Preprocessor:
    """Choose knots and vocabularies from a sample of the train split.

    Args:
        sample: Rows of the train split.
        numeric: Columns of numbers.
        categorical: Columns of strings or booleans.
        numeric_dtype: How normal scores are stored.
        where: The rows, as messages should call them.
        useless: What becomes of a column that holds no value at all, or of a category column no value of which repeats.

    Raises:
        DataError: There is a useless column, and it is to be refused.
    """
    scored, coded = [], []
    passed_over = [_UselessColumnError] if useless == "leave out" else []
    for name in categorical:
        with suppress(*passed_over):
            coded.append(_fit_category(_column(sample, name, where), name, where))
    for name in numeric:
        values = numbers(sample, name, where)
        with suppress(*passed_over):
            scored.append(_fit_numeric(values, name, where))
            codes = _fit_value_codes(values, name) if len(numeric) <= MAX_VALUE_CODED_COLUMNS else None
            coded += [codes] if codes is not None else []
    return Preprocessor(numeric=scored, coded=coded, numeric_dtype=numeric_dtype)


def _fit_numeric(values: Float64, name: str, where: str) -> NumericFeature:
    unique, counts = np.unique(values[~np.isnan(values)], return_counts=True)
    if not len(unique):
        raise _no_value(name, len(values), where)
    mid_rank = (np.cumsum(counts) - counts / 2) / counts.sum()
    if len(unique) > MAX_EXACT_KNOTS:
        above = np.clip(np.searchsorted(mid_rank, LEVEL_RANKS), 0, len(unique) - 1)
        # Where the score jumps, as at a frequent value, the last value before the jump keeps its own score too.
        jumps = _inverse_normal(mid_rank[above]) - LEVELS > JUMP
        chosen = np.unique([*above, *np.maximum(above[jumps] - 1, 0)])
        unique, mid_rank = unique[chosen], mid_rank[chosen]
    scores = np.clip(_inverse_normal(mid_rank), -SCORE_LIMIT, SCORE_LIMIT)
    return NumericFeature(name=name, knots=unique.tolist(), scores=scores.round(6).tolist())


def _inverse_normal(ranks: Float64) -> Float64:
    return np.array([NormalDist().inv_cdf(rank) for rank in ranks])


def _fit_value_codes(values: Float64, name: str) -> CodedFeature | None:
    """Code the frequent values of a numeric column, or None where that would say nothing new."""
    missing = bool(np.isnan(values).any())
    unique, counts = np.unique(values[~np.isnan(values)], return_counts=True)
    order = np.lexsort((unique, -counts))[:MAX_VALUE_CODES]
    frequent = order[counts[order] >= MIN_VALUE_ROWS]
    repeats = len(unique) > 2 and counts[frequent].sum() >= MIN_REPEATED_SHARE * len(values)
    if not repeats and not missing:
        return None
    vocabulary = np.sort(unique[frequent]).tolist() if repeats else []
    return CodedFeature(name=name, kind="value", vocabulary=vocabulary)


def _fit_category(column: pa.ChunkedArray | pa.Array, name: str, where: str) -> CodedFeature:
    counts = pc.value_counts(_texts(column, name, where).drop_null()).to_pylist()
    if not counts:
        raise _no_value(name, len(column), where)
    repeated = sorted((-entry["counts"], entry["values"]) for entry in counts if entry["counts"] >= MIN_CATEGORY_ROWS)
    if not repeated:
        raise _UselessColumnError(
            f"{where}: column {name!r} looks like an identifier ({len(counts):,} values, none repeats); "
            f"leave it out with --drop {name}"
        )
    return CodedFeature(name=name, kind="category", vocabulary=[value for _, value in repeated[:MAX_VOCABULARY]])


def _no_value(name: str, rows: int, where: str) -> _UselessColumnError:
    return _UselessColumnError(
        f"{where}: column {name!r} holds no value in {rows:,} rows of train; leave it out: --drop {name}"
    )


def _column(rows: pa.RecordBatch | pa.Table, name: str, where: str) -> pa.ChunkedArray | pa.Array:
    index = rows.schema.get_field_index(name)
    if index < 0:
        raise DataError(f"{where}: column {name!r} is missing or there twice; the model was trained with it")
    return rows.column(index)


def numbers(rows: pa.RecordBatch | pa.Table, name: str, where: str) -> Float64:
    """Return a numeric column with NaN for null, NaN and infinity.

    Shape:
        - Output: ``(N,)``
    """
    column = _column(rows, name, where)
    if not (is_number(column.type) or pa.types.is_null(column.type)):
        raise DataError(f"{where}: column {name!r} is {column.type}; the model was trained with numbers there")
    values: Float64 = column.cast(pa.float64(), safe=False).to_numpy(zero_copy_only=False)
    infinite = np.isinf(values)
    return np.where(infinite, np.nan, values) if infinite.any() else values


def normal_scores(values: Float64, feature: NumericFeature) -> npt.NDArray[np.float32]:
    """Map values to normal scores in ±3, NaN where missing.

    Shape:
        - Input and output: ``(N,)``
    """
    with np.errstate(over="ignore", invalid="ignore"):
        scores = np.interp(values, feature.knots, feature.scores)
    # Between knots closer or farther apart than a float can say, the slope is no number: take the next knot's score.
    lost = ~np.isnan(values) & ~(np.abs(scores) <= SCORE_LIMIT)
    if lost.any():
        place = np.searchsorted(feature.knots, values[lost]).clip(max=len(feature.knots) - 1)
        scores[lost] = np.asarray(feature.scores)[place]
    return scores.astype(np.float32)


def quantize(scores: npt.NDArray[np.float32], dtype: str) -> npt.NDArray[Any]:
    """Store scores as uint8 (0 missing, 1 to 255 for -3 to 3 in 254 steps) or as floats.

    >>> quantize(np.array([np.nan, -3, 0, 3], dtype=np.float32), "uint8")
    array([  0,   1, 128, 255], dtype=uint8)
    """
    if dtype != "uint8":
        return scores.astype(dtype)
    steps: npt.NDArray[np.float32] = np.rint((scores + SCORE_LIMIT) * (STEPS / (2 * SCORE_LIMIT))) + 1
    steps[np.isnan(steps)] = 0
    return steps.astype(np.uint8)


def value_codes(values: Float64, feature: CodedFeature) -> npt.NDArray[np.int32]:
    """Return the codes of a numeric column's frequent values.

    Shape:
        - Input and output: ``(N,)``
    """
    codes = np.zeros(len(values), dtype=np.int32)
    if feature.vocabulary:
        known = np.asarray(feature.vocabulary, dtype=np.float64)
        place = np.clip(np.searchsorted(known, values), 0, len(known) - 1)
        codes = np.where(known[place] == values, place + FIRST_CODE, UNSEEN).astype(np.int32)
    codes[np.isnan(values)] = MISSING
    return codes


def category_codes(column: pa.ChunkedArray | pa.Array, feature: CodedFeature, where: str) -> npt.NDArray[np.int32]:
    """Return the codes of a string or boolean column.

    Shape:
        - Input and output: ``(N,)``
    """
    texts = _texts(column, feature.name, where)
    found = pc.fill_null(pc.index_in(texts, value_set=pa.array(feature.vocabulary, pa.string())), UNSEEN - FIRST_CODE)
    codes = np.array(found.to_numpy(zero_copy_only=False), dtype=np.int32) + FIRST_CODE
    codes[np.asarray(pc.is_null(texts).to_numpy(zero_copy_only=False))] = MISSING
    return codes.astype(np.int32)


def _texts(column: pa.ChunkedArray | pa.Array, name: str, where: str) -> pa.ChunkedArray | pa.Array:
    kind = column.type.value_type if pa.types.is_dictionary(column.type) else column.type
    if not (is_text(kind) or pa.types.is_boolean(kind) or pa.types.is_null(kind)):
        raise DataError(f"{where}: column {name!r} is {kind}; the model was trained with categories there")
    return column.cast(kind).cast(pa.string())
