"""Raw columns to the inputs of a model: ``Preprocessor.transform`` and ``decode_scores`` as nodes of a graph.

All boundaries match: values are compared in float64 with the same numbers, and the score between two
knots is computed by the same operations in the same order.

Shape suffixes: N rows, F numeric features, V value-coded features, K the longest row of a table, a power of two.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass

import numpy as np

from dkan_core.data.encoding.preprocessor import (
    FIRST_CODE,
    MISSING,
    SCORE_LIMIT,
    STEPS,
    UNSEEN,
    CategoryFeature,
    NumericFeature,
    Preprocessor,
    ValueFeature,
)
from dkan_core.data.encoding.raw_columns import LARGEST
from dkan_core.errors import DataError
from dkan_core.onnx_export.graph import ML_DOMAIN, Graph
from dkan_core.utils.arrays import Float64


@dataclass(frozen=True, kw_only=True)
class EncodedColumns:
    """Names of the values that hold a model's inputs."""

    scores: str | None
    """Decoded normal scores ``(N, F)`` float32; None without numeric columns."""

    score_codes: str | None
    """Codes of the stored scores ``(N, F)`` int64, as ``model.decoding.score_codes`` gives them; None if not read."""

    codes: dict[int, str]
    """Codes ``(N,)`` int64 of each coded feature that the model reads."""


@dataclass(frozen=True, kw_only=True)
class _Numbers:
    """Names of the values of numeric columns ``(N, F)``, and of which of them are missing."""

    values: str
    missing: str


def add_encoding(
    graph: Graph, preprocessor: Preprocessor, read: Collection[int], missing_text: str, *, tables: bool = False
) -> EncodedColumns:
    """Add an input for every column, and what encodes them.

    Args:
        graph: Where the nodes go.
        preprocessor: The encoding.
        read: Indexes of the coded features that the model reads.
        missing_text: Text that stands for a missing value.
        tables: Whether the model looks up codes of scores.

    Raises:
        DataError: ``missing_text`` is one of a column's categories.
    """
    scores, codes_of_scores, codes = None, None, {}
    if preprocessor.numeric:
        columns = [graph.input(feature.name, float) for feature in preprocessor.numeric]
        given = graph.node("Concat", *columns, axis=1)
        # Infinity counts as missing, as in `Preprocessor.transform`.
        missing = graph.node("Or", graph.node("IsNaN", given), graph.node("IsInf", given))
        lowest, highest = (graph.number(limit, np.float64) for limit in (-LARGEST, LARGEST))
        numbers = _Numbers(values=graph.node("Min", graph.node("Max", given, lowest), highest), missing=missing)
        scores = _add_scores(graph, numbers, preprocessor)
        if tables:
            codes_of_scores = _add_score_codes(graph, scores, numbers)
        codes = _add_value_codes(graph, numbers, preprocessor, read)
    for index, feature in enumerate(preprocessor.coded):
        if isinstance(feature, CategoryFeature):
            codes[index] = _add_category_codes(graph, feature, missing_text)
    return EncodedColumns(scores=scores, score_codes=codes_of_scores, codes=codes)


def _add_scores(graph: Graph, numbers: _Numbers, preprocessor: Preprocessor) -> str:
    """Add the normal scores as a model reads them: stored, and decoded again."""
    scores = graph.cast(_add_normal_scores(graph, numbers.values, preprocessor.numeric), np.float32)
    if preprocessor.numeric_dtype == "uint8":
        # `quantize` adds 1 so that 0 can stand for missing, and `decode_scores` subtracts it, so both are left out.
        raised = graph.node("Add", scores, graph.number(SCORE_LIMIT))
        steps = graph.node("Round", graph.node("Mul", raised, graph.number(STEPS / (2 * SCORE_LIMIT))))
        stretched = graph.node("Mul", steps, graph.number(2 * SCORE_LIMIT / STEPS))
        scores = graph.node("Sub", stretched, graph.number(SCORE_LIMIT))
    elif preprocessor.numeric_dtype == "float16":
        scores = graph.cast(graph.cast(scores, np.float16), np.float32)
    return graph.node("Where", numbers.missing, graph.number(0.0), scores)


def _add_score_codes(graph: Graph, scores: str, numbers: _Numbers) -> str:
    """Add the codes of decoded scores, which index the rows of a table."""
    steps = graph.node(
        "Mul", graph.node("Add", scores, graph.number(SCORE_LIMIT)), graph.number(STEPS / (2 * SCORE_LIMIT))
    )
    codes = graph.cast(graph.node("Add", graph.node("Round", steps), graph.number(1)), np.int64)
    return graph.node("Where", numbers.missing, graph.number(0, np.int64), codes)


def _add_normal_scores(graph: Graph, values: str, features: Sequence[NumericFeature]) -> str:
    """Add ``normal_scores`` of all columns: ``numpy.interp``, or the next knot's score where that is not a number."""
    first, last = (
        graph.constant(np.array([[feature.knots[end] for feature in features]]), name)
        for end, name in ((0, "first_knots"), (-1, "last_knots"))
    )
    inside = graph.node("Min", graph.node("Max", values, first), last)
    knots_FK = _table([feature.knots for feature in features], end=np.inf)
    scores_FK = _table([feature.scores for feature in features])
    with np.errstate(over="ignore", invalid="ignore"):
        slopes = [np.diff(feature.scores) / np.diff(feature.knots) for feature in features]
    slopes_FK = _table([[*slope, 0.0] for slope in slopes])

    knots = graph.constant(knots_FK.ravel(), "knots")
    # Padded by one, as the index after the last one is looked up as well; values after a row's last knot are not used.
    scores = graph.constant(np.append(scores_FK.ravel(), 0.0), "scores")
    indices = _add_search(graph, inside, knots, knots_FK.shape)
    knot, score = (graph.node("Gather", table, indices) for table in (knots, scores))
    slope = graph.node("Gather", graph.constant(slopes_FK.ravel(), "slopes"), indices)
    next_score = graph.node("Gather", scores, graph.node("Add", indices, graph.indexes(1)))
    between = graph.node("Add", graph.node("Mul", slope, graph.node("Sub", inside, knot)), score)
    # Where the distance of two knots overflows or underflows, the slope is NaN or infinite.
    sound = graph.node("LessOrEqual", graph.node("Abs", between), graph.number(SCORE_LIMIT, np.float64))
    between = graph.node("Where", sound, between, next_score)
    return graph.node("Where", graph.node("Equal", inside, knot), score, between)


def _add_value_codes(
    graph: Graph, numbers: _Numbers, preprocessor: Preprocessor, read: Collection[int]
) -> dict[int, str]:
    """Add ``value_codes`` of the features that are read; return their codes ``(N,)`` by index."""
    features = {
        index: feature
        for index, feature in enumerate(preprocessor.coded)
        if isinstance(feature, ValueFeature) and index in read
    }
    if not features:
        return {}
    names = [feature.name for feature in preprocessor.numeric]
    columns = graph.indexes(*(names.index(feature.name) for feature in features.values()))
    values, missing = (graph.node("Gather", name, columns, axis=1) for name in (numbers.values, numbers.missing))
    vocabulary_VK = _table([feature.vocabulary for feature in features.values()], end=np.inf)
    vocabulary = graph.constant(vocabulary_VK.ravel(), "vocabulary")
    indices = _add_search(graph, values, vocabulary, vocabulary_VK.shape)
    # Each vocabulary begins at a multiple of the width, so the remainder is the index in it.
    index_inside = graph.node("Mod", indices, graph.indexes(vocabulary_VK.shape[1]))
    code = graph.node("Add", index_inside, graph.indexes(FIRST_CODE))
    is_known = graph.node("Equal", values, graph.node("Gather", vocabulary, indices))
    found = graph.node("Where", is_known, code, graph.number(UNSEEN, np.int64))
    codes = graph.node("Where", missing, graph.number(MISSING, np.int64), found)
    return {
        index: graph.node("Gather", codes, graph.number(column, np.int64), axis=1)
        for column, index in enumerate(features)
    }


def _add_category_codes(graph: Graph, feature: CategoryFeature, missing_text: str) -> str:
    """Add a column of texts; return its codes ``(N,)``."""
    if feature.buckets:
        raise DataError(
            f"column {feature.name!r}: its rare values share codes by their hash, which ONNX cannot compute; prepare "
            "without --max-categories, or score with `dkan predict`"
        )
    if missing_text in feature.codes:
        raise DataError(
            f"column {feature.name!r}: {missing_text!r} is one of its categories, and would also stand for a missing "
            "value, as ONNX has no nulls; choose another text with --missing-text"
        )
    codes = graph.node(
        "LabelEncoder",
        graph.input(feature.name, str),
        domain=ML_DOMAIN,
        keys_strings=[*feature.codes, missing_text],
        values_int64s=[*feature.codes.values(), MISSING],
        default_int64=UNSEEN,
    )
    return graph.node("Squeeze", codes, graph.indexes(1))


def _table(rows: Sequence[Sequence[float]], end: float = 0.0) -> Float64:
    """Return rows of a power of two of numbers, filled up at their ends."""
    width = 1 << (max(1, *map(len, rows)) - 1).bit_length()
    return np.array([[*row, *[end] * (width - len(row))] for row in rows])


def _add_search(graph: Graph, values: str, table: str, shape: tuple[int, ...]) -> str:
    """Add a binary search of each column's values in its row of a table.

    Args:
        graph: Where the nodes go.
        values: ``(N, F)``.
        table: Rows of rising numbers, filled up with infinity, one after the other.
        shape: Of the rows, (F, K).

    Returns:
        Where in the table the last number lies that is not above the value, or else the row's first: ``(N, F)`` int64,
        or ``(1, F)`` where each row has one number.
    """
    rows, width = shape
    indices = graph.constant(np.arange(0, rows * width, width)[None], "first_places")
    step = width // 2
    while step:
        further = graph.node("Add", indices, graph.indexes(step))
        above = graph.node("Less", values, graph.node("Gather", table, further))
        indices = graph.node("Where", above, indices, further)
        step //= 2
    return indices
