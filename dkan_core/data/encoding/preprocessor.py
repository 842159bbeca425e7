"""Preprocessor: raw columns to the arrays a model reads (``fitting`` chooses it).

Numeric columns become normal scores (the standard normal quantile of a value's mid-rank in the train split).
Columns of strings and booleans become codes. A numeric column with missing values, or whose values repeat much,
is also given codes for its frequent values, so that a model can treat them apart ("value codes").

Shape suffixes: N rows, F numeric features, C coded features.
"""

import hashlib
import json
from collections import Counter
from functools import cached_property
from typing import Annotated, Any, Literal, Self

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from pydantic import AfterValidator, Field, NonNegativeInt, model_validator

from dkan_core.data.encoding.column_threads import map_columns
from dkan_core.data.encoding.features import Feature, rising
from dkan_core.data.encoding.raw_columns import INTEGER, buckets_of, column_named, column_of_numbers, numbers, texts_of
from dkan_core.data.encoding.sparse import SparseFeature, sparse_codes
from dkan_core.data.source.times import TimePart
from dkan_core.utils.arrays import Float64
from dkan_core.utils.schemas import Schema, read_json

# Covers 99.7% of a normal distribution. A wider range would make the storage steps larger for all rows, for the sake
# of a few extreme rows whose exact order changes with every new sample.
SCORE_LIMIT = 3.0
# uint8 without 0, which is missing. Compared with float32, the area under the ROC curve moved by 0.0005 at most.
STEPS = 254
# A decision: the rare values of a column together hold too little information for more than 256 rates.
MAX_BUCKETS = 256
# The same in every column, so that readers of the arrays find unseen and missing values without a vocabulary.
UNSEEN, MISSING, FIRST_CODE = 0, 1, 2
# As Arrow, JSON and SQL, Python, and R and spreadsheets write truth values.
TRUTHS = ("true", "True", "TRUE"), ("false", "False", "FALSE")

Score = Annotated[float, Field(ge=-SCORE_LIMIT, le=SCORE_LIMIT)]

# Measured with 29 columns: below, handing columns to threads cost more than it saved (1 row: 4.6 ms instead of 2.4).
THREADED_ROWS = 2048


class NumericFeature(Feature):
    """A numeric column and its map to normal scores, linear between knots."""

    name: str
    """The column, or a part of its calendar, such as ``departure.hour``."""

    knots: Annotated[list[float], AfterValidator(rising)]
    """Rising values."""

    scores: list[Score]
    """Normal score of each knot."""

    time: TimePart | None = None
    """What of a column of dates or times it is; None where the column holds numbers."""

    @property
    def column(self) -> str:
        """The source column that it is read from."""
        return self.name if self.time is None else self.time.column

    # Cached: a server encodes a few rows at a time, and building the arrays costs more than encoding them.
    @cached_property
    def curve(self) -> tuple[Float64, Float64]:
        """Knots and scores as arrays."""
        return np.asarray(self.knots, dtype=np.float64), np.asarray(self.scores, dtype=np.float64)

    @model_validator(mode="after")
    def _check(self) -> Self:
        if not len(self.knots) == len(self.scores) > 0:
            raise ValueError(f"there must be a score for each knot, got {len(self.scores)} for {len(self.knots)}")
        if self.scores != sorted(self.scores):
            raise ValueError("scores: must not fall where the knots rise")
        return self


class _Coded(Feature):
    name: str
    """Column."""

    vocabulary: list[Any]
    """Values by code, from code 2 on."""

    @property
    def cardinality(self) -> int:
        """Number of codes."""
        return FIRST_CODE + len(self.names)

    @property
    def names(self) -> list[Any]:
        """What the codes from 2 on stand for."""
        return self.vocabulary


class CategoryFeature(_Coded):
    """Codes of a column of strings or booleans: 0 unseen, 1 missing, its values by falling frequency, then buckets."""

    kind: Literal["category"] = "category"
    """What the column is."""

    vocabulary: list[str]

    buckets: Annotated[int, Field(ge=0, le=MAX_BUCKETS)] = 0
    """Codes behind those of the vocabulary: by hash, each stands for some of all other values; 0: those are unseen."""

    @property
    def names(self) -> list[Any]:
        """What the codes from 2 on stand for."""
        return [*self.vocabulary, *(f"(others, {bucket + 1} of {self.buckets})" for bucket in range(self.buckets))]

    @property
    def holds_booleans(self) -> bool:
        """Whether all values of the vocabulary are truth values, so that the column holds booleans."""
        return bool(self.vocabulary) and {*self.vocabulary} <= {"true", "false"}

    @cached_property
    def takes_integers(self) -> bool:
        """Whether integers are looked up by their decimal text: some value is the text of one."""
        return any(map(INTEGER.fullmatch, self.vocabulary))

    @cached_property
    def codes(self) -> dict[str, int]:
        """Code of each value of the vocabulary, and of other spellings of a truth value that it has in one spelling."""
        codes = {value: code for code, value in enumerate(self.vocabulary, FIRST_CODE)}
        for spellings in TRUTHS:
            known = [codes[text] for text in spellings if text in codes]
            if len(known) == 1:
                codes |= dict.fromkeys(spellings, known[0])
        return codes

    @cached_property
    def values(self) -> tuple[pa.Array, npt.NDArray[np.int32]]:
        """The texts that have a code, and the code of each, with that of all others at the end."""
        return pa.array([*self.codes], pa.string()), np.array([*self.codes.values(), UNSEEN], np.int32)


class ValueFeature(_Coded):
    """Codes of a numeric column: 0 not frequent, 1 missing, then its frequent values."""

    kind: Literal["value"] = "value"
    vocabulary: Annotated[list[float], AfterValidator(rising)]

    @cached_property
    def values(self) -> Float64:
        """The vocabulary as an array."""
        return np.asarray(self.vocabulary, dtype=np.float64)


CodedFeature = Annotated[CategoryFeature | ValueFeature, Field(discriminator="kind")]


class Preprocessor(Schema):
    """The whole encoding; saved with a model, so that raw rows can be scored anywhere.

    It is the schema of ``preprocessor.json``, and of ``encoding`` in a manifest.
    """

    numeric: list[NumericFeature]
    """Numeric columns."""

    coded: list[CodedFeature]
    """Categorical columns, and numeric ones with codes for frequent values."""

    numeric_dtype: Literal["uint8", "float16", "float32"]
    """Storage type of the normal scores."""

    sparse: list[SparseFeature] = Field(default_factory=list)
    """Columns of lists of IDs and of bit vectors."""

    row_codes: NonNegativeInt = 0
    """Codes of such columns that no row of the prepared data exceeds. Like ``counts`` it encodes nothing."""

    counts: dict[str, list[NonNegativeInt]] | None = None
    """Rows of the sample by column and value, from ``histograms.count_values``; None where an earlier dkan wrote
    this. It encodes nothing: two preprocessors are equal without it."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        numeric = {feature.name for feature in self.numeric}
        values = [feature.name for feature in self.coded if feature.kind == "value"]
        categories = [*self.categories, *(feature.name for feature in self.sparse)]
        # A column of times gives several features, and none of another kind.
        plain = [feature.name for feature in self.numeric if feature.time is None]
        unique = (
            [*(feature.name for feature in self.numeric), *categories],
            values,
            [*plain, *categories, *self.times],
        )
        twice = [name for names in unique for name, count in Counter(names).items() if count > 1]
        if twice:
            raise ValueError(f"column {twice[0]!r} occurs twice")
        for feature in self.coded:
            if feature.kind == "value" and feature.name not in numeric:
                raise ValueError(f"coded: {feature.name!r} is of kind 'value', but no numeric column")
            if len({*feature.vocabulary}) < len(feature.vocabulary):
                raise ValueError(f"coded: the vocabulary of {feature.name!r} holds a value twice")
        bins = {feature.name: len(feature.knots) + 2 for feature in self.numeric}
        bins |= {feature.name: feature.cardinality for feature in self.category_features}
        if self.counts is not None and {name: len(counts) for name, counts in self.counts.items()} != bins:
            raise ValueError("counts: must hold the rows of each column's bins")
        return self

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Preprocessor) and all(
            getattr(self, name) == getattr(other, name) for name in ("numeric", "coded", "sparse", "numeric_dtype")
        )

    @property
    def columns(self) -> list[str]:
        """Source columns that are read."""
        numeric = dict.fromkeys(feature.column for feature in self.numeric)
        return [*numeric, *self.categories, *(feature.name for feature in self.sparse)]

    @property
    def categories(self) -> list[str]:
        """Those of them that hold categories."""
        return [feature.name for feature in self.category_features]

    @property
    def category_features(self) -> list[CategoryFeature]:
        """The codes of those columns."""
        return [feature for feature in self.coded if feature.kind == "category"]

    @property
    def row_values(self) -> int:
        """Numbers and codes of an encoded row."""
        return len(self.numeric) + len(self.coded) + self.row_codes

    @property
    def times(self) -> dict[str, str | None]:
        """Source columns of dates and times, with their time zone."""
        return {feature.time.column: feature.time.zone for feature in self.numeric if feature.time is not None}

    def calendar_of(self, name: str) -> list[str]:
        """Return the numeric features that are parts of the calendar of a column of times."""
        parts = (each for each in self.numeric if each.column == name)
        return [each.name for each in parts if each.time is not None and each.time.part != "seconds"]

    @property
    def source_types(self) -> dict[str, pa.DataType]:
        """Source columns with a type that each can be given in: 64-bit floats, timestamps or strings."""
        types = dict.fromkeys(self.columns, pa.float64()) | dict.fromkeys(self.categories, pa.string())
        types |= {feature.name: feature.source_type for feature in self.sparse}
        return types | {name: pa.timestamp("us", zone) for name, zone in self.times.items()}

    @property
    def folder_types(self) -> dict[str, str]:
        """Source columns with the type that they are read as where they are in the names of folders."""
        aliases = {pa.float64(): "double", pa.string(): "string"}
        return {name: aliases.get(kind, "date32") for name, kind in self.source_types.items()}

    def numbers_of(self, rows: pa.RecordBatch | pa.Table, name: str, where: str) -> Float64:
        """Return a numeric feature's values, NaN where missing."""
        return numbers(rows, name, where, self._times_by_feature.get(name))

    def column_of(self, rows: pa.RecordBatch | pa.Table, name: str, where: str) -> pa.ChunkedArray | pa.Array:
        """Return a feature's values as a reader wants to see them, with the arguments of ``numbers_of``."""
        time = self._times_by_feature.get(name)
        if time is None or time.part == "seconds":
            return column_named(rows, name, where)
        return column_of_numbers(rows, name, where, time)

    @cached_property
    def _times_by_feature(self) -> dict[str, TimePart]:
        return {feature.name: feature.time for feature in self.numeric if feature.time is not None}

    @cached_property
    def kept(self) -> dict[Any, Any]:
        """Cache, filled by callers, of what is slow to derive from the encoding, such as code edges."""
        return {}

    @property
    def digest(self) -> str:
        """SHA-256 of what decides how rows are encoded: two preprocessors are equal if theirs are."""
        plain = self.model_dump(exclude={"counts", "row_codes"} | ({"sparse"} if not self.sparse else set()))
        return hashlib.sha256(json.dumps(plain, sort_keys=True).encode()).hexdigest()

    def transform(self, rows: pa.RecordBatch | pa.Table, where: str) -> dict[str, npt.NDArray[Any]]:
        """Encode rows.

        Args:
            rows: At least the columns in ``columns``.
            where: The file, as messages should call it.

        Shape:
            - Output: ``numeric`` (N, F), ``categorical`` (N, C) int32, ``sparse`` (N, S) int32, as many as the longest
              row has; each only where there is such a feature

        Raises:
            DataError: A column is missing or of another kind than in training.
        """
        value_coded = {feature.name: feature for feature in self.coded if feature.kind == "value"}

        codes: dict[str, npt.NDArray[np.int32]] = {}

        def encode_numeric(feature: NumericFeature) -> npt.NDArray[Any]:
            values = numbers(rows, feature.name, where, feature.time)
            if feature.name in value_coded:
                codes[feature.name] = value_codes(values, value_coded[feature.name])
            return quantize(normal_scores(values, feature), self.numeric_dtype)

        def encode_coded(feature: CategoryFeature | ValueFeature) -> npt.NDArray[np.int32]:
            if feature.kind == "value":
                return codes[feature.name]
            return category_codes(column_named(rows, feature.name, where), feature, where)

        encode_all = map if len(rows) < THREADED_ROWS else map_columns
        arrays: dict[str, npt.NDArray[Any]] = {}
        # The numeric columns first: their values give the value codes, too, and are then read only once.
        if self.numeric:
            # Stacked column by column and then transposed: three times faster than stacking along the second axis.
            scores_FN = np.stack(list(encode_all(encode_numeric, self.numeric)))
            arrays["numeric"] = np.ascontiguousarray(scores_FN.T)
        if self.coded:
            codes_CN = np.stack(list(encode_all(encode_coded, self.coded)))
            arrays["categorical"] = np.ascontiguousarray(codes_CN.T)
        if self.sparse:
            arrays["sparse"] = sparse_codes(rows, self.sparse, where)
        return arrays

    def to_dict(self) -> dict[str, Any]:
        """Return the plain form that is saved as JSON."""
        # An unknown histogram is left out, so that data prepared by earlier versions keep their fingerprint.
        left_out = {"counts"} if self.counts is None else set()
        return self.model_dump(exclude=left_out if self.sparse else left_out | {"sparse", "row_codes"})

    @classmethod
    def from_dict(cls, plain: Any) -> "Preprocessor":
        """Rebuild a preprocessor from its plain form; DataError names the key that is not as it should be."""
        return read_json(cls, json.dumps(plain), "encoding")


def normal_scores(values: Float64, feature: NumericFeature) -> npt.NDArray[np.float32]:
    """Map values to normal scores in ±3, NaN where missing.

    Shape:
        - Input and output: ``(N,)``
    """
    with np.errstate(over="ignore", invalid="ignore"):
        scores = np.interp(values, *feature.curve)
    if len(feature.knots) == 1:
        scores[np.isnan(values)] = np.nan  # with one knot, np.interp gives NaN that knot's score
    # Where the distance of two knots overflows or underflows, the slope is NaN or infinite: take the next knot's score.
    lost = ~np.isnan(values) & ~(np.abs(scores) <= SCORE_LIMIT)
    if lost.any():
        knots, of_knots = feature.curve
        scores[lost] = of_knots[np.searchsorted(knots, values[lost]).clip(max=len(knots) - 1)]
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


def value_codes(values: Float64, feature: ValueFeature) -> npt.NDArray[np.int32]:
    """Return the codes of a numeric column's frequent values.

    Shape:
        - Input and output: ``(N,)``
    """
    codes = np.zeros(len(values), dtype=np.int32)
    if feature.vocabulary:
        known = feature.values
        index = np.minimum(np.searchsorted(known, values), len(known) - 1)
        codes = np.where(known[index] == values, index + FIRST_CODE, UNSEEN).astype(np.int32)
    codes[np.isnan(values)] = MISSING
    return codes


def category_codes(column: pa.ChunkedArray | pa.Array, feature: CategoryFeature, where: str) -> npt.NDArray[np.int32]:
    """Return the codes of a column of strings or booleans, or of integers where the vocabulary has such texts.

    Shape:
        - Input and output: ``(N,)``
    """
    texts = texts_of(column, feature.name, where, integers=feature.takes_integers)
    values, code_of = feature.values
    found = pc.fill_null(pc.index_in(texts, value_set=values), -1)
    codes: npt.NDArray[np.int32] = code_of[found.to_numpy(zero_copy_only=False)]
    if feature.buckets:
        others = (codes == UNSEEN) & np.asarray(pc.is_valid(texts).to_numpy(zero_copy_only=False))
        codes[others] = FIRST_CODE + len(feature.vocabulary) + buckets_of(texts, others, feature.buckets)
    if texts.null_count:
        codes[np.asarray(pc.is_null(texts).to_numpy(zero_copy_only=False))] = MISSING
    return codes
