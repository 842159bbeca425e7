"""The encoding equals its definition, written out here without the code under test."""

import json
from decimal import Decimal
from statistics import NormalDist
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from dkan_core import DataError
from dkan_core.data.encoding import distinct, fitting
from dkan_core.data.encoding.distinct import distinct_values
from dkan_core.data.encoding.fitting import fit_preprocessor
from dkan_core.data.encoding.histograms import count_values
from dkan_core.data.encoding.preprocessor import FIRST_CODE, MISSING, UNSEEN, Preprocessor, normal_scores
from dkan_core.data.source.column_types import is_number
from dkan_core.model.decoding import decode_scores
from tests import warm
from tests.native import needs_native

STEP = 6 / 254
Column = npt.NDArray[Any]


def expected_scores(values: Column) -> Column:
    """Normal quantile of the mid-rank: (rows below + half the equal rows) / rows."""
    below = np.array([(values < value).sum() for value in values])
    equal = np.array([(values == value).sum() for value in values])
    ranks = (below + equal / 2) / len(values)
    return np.clip([NormalDist().inv_cdf(rank) for rank in ranks], -3, 3)


def fit(columns: dict[str, Any], dtype: Any = "float32") -> tuple[Preprocessor, pa.Table]:
    table = pa.table(columns)
    text = [name for name in table.schema.names if not is_number(table.schema.field(name).type)]
    numeric = [name for name in table.schema.names if name not in text]
    return fit_preprocessor(table, numeric, text, dtype, "rows"), table


def encode(columns: dict[str, Any], dtype: Any = "float32") -> dict[str, Column]:
    preprocessor, table = fit(columns, dtype)
    return preprocessor.transform(table, "rows")


def distributions() -> dict[str, Column]:
    rng = np.random.default_rng(0)
    n = 3000
    return {
        "normal": rng.normal(size=n),
        "heavy tail": rng.standard_cauchy(n),
        "integers": rng.integers(0, 50, n).astype(float),
        "mass below": np.where(rng.random(n) < 0.9, 0, rng.lognormal(size=n)),
        "mass above": np.where(rng.random(n) < 0.9, 1e6, rng.lognormal(size=n)),
        "mass in the middle": np.where(
            rng.random(n) < 0.5, 0, rng.normal(size=n) + np.where(rng.random(n) < 0.5, -9, 9)
        ),
        "wide gap": np.concatenate([rng.random(n // 2), 1e9 + rng.random(n - n // 2)]),
        "constant": np.full(n, 7.0),
    }


@pytest.mark.parametrize("name", distributions())
def test_scores_are_normal_quantiles_of_mid_ranks_within_a_step(name: str) -> None:
    values = distributions()[name]
    wanted = expected_scores(values)
    scores = encode({"x": values})["numeric"][:, 0]
    assert np.abs(scores - wanted).max() <= 1.25 * STEP + 1e-5
    codes = encode({"x": values}, "uint8")["numeric"][:, 0].astype(float)
    assert np.abs((codes - 1) * STEP - 3 - wanted).max() <= 1.75 * STEP + 1e-5


@settings(max_examples=50)
@given(
    st.lists(st.floats(allow_nan=False, allow_infinity=False, width=32), min_size=2, max_size=700), st.integers(0, 99)
)
def test_encoding_is_monotone_also_between_and_beyond_seen_values(values: list[float], seed: int) -> None:
    preprocessor, _ = fit({"x": values}, "uint8")
    new = np.concatenate([np.random.default_rng(seed).choice(values, 50) * 1.01, values, [-1e300, 1e300]])
    codes = preprocessor.transform(pa.table({"x": np.sort(new)}), "rows")["numeric"][:, 0]
    assert (np.diff(codes.astype(int)) >= 0).all()
    assert codes.min() >= 1


@pytest.mark.parametrize("hole", [None, float("nan"), float("inf"), float("-inf")])
@pytest.mark.parametrize("values", [[1.0, 2.0, 3.0], [5.0, 5.0, 5.0]], ids=["some values", "one value"])
def test_missing_is_kept_apart(hole: float | None, values: list[float]) -> None:
    column = pa.array([*values, hole] * 30, pa.float64())
    missing = np.array([False, False, False, True] * 30)
    for dtype, is_missing in (("uint8", lambda x: x == 0), ("float16", np.isnan), ("float32", np.isnan)):
        arrays = encode({"x": column}, dtype)
        assert arrays["numeric"].dtype == dtype
        np.testing.assert_array_equal(is_missing(arrays["numeric"][:, 0]), missing)
        np.testing.assert_array_equal(arrays["categorical"][:, 0] == MISSING, missing)


@pytest.mark.parametrize("dtype", ["uint8", "float32"])
def test_models_tell_the_only_value_of_a_column_from_a_missing_one(dtype: Any) -> None:
    """A flag of 1 and null: missing is read as 0, where the middle of a column is."""
    for share in (0.01, 0.5, 0.99):
        column = pa.array([None if row < 1_000 * share else 1.0 for row in range(1_000)], pa.float64())
        stored = encode({"x": column}, dtype)["numeric"]
        scores = decode_scores(torch.from_numpy(stored))[:, 0].numpy()
        assert (scores[: round(1_000 * share)] == 0).all() and scores[-1] > 1


def test_missing_values_do_not_move_the_scores() -> None:
    values = np.random.default_rng(0).normal(size=500)
    holes = np.concatenate([values, np.full(300, np.nan)])
    np.testing.assert_array_equal(encode({"x": holes})["numeric"][:500], encode({"x": values})["numeric"])


def test_categories_have_a_code_each_by_frequency_and_one_for_missing_and_one_for_unseen() -> None:
    preprocessor, table = fit({"c": ["b"] * 5 + ["a"] * 3 + ["z"] * 3 + [None] * 4 + ["once"]})
    assert preprocessor.coded[0].vocabulary == ["b", "a", "z"]
    codes = preprocessor.transform(table, "rows")["categorical"][:, 0]
    assert codes.tolist() == [2] * 5 + [3] * 3 + [4] * 3 + [1] * 4 + [0]
    later = preprocessor.transform(pa.table({"c": ["new", "a", None]}), "rows")["categorical"][:, 0]
    assert later.tolist() == [UNSEEN, 3, MISSING]


@pytest.mark.parametrize(
    ("train", "given", "codes"),
    [
        ([True, True, False, False, True], ["True", "FALSE", "true", "tRUE", None], [2, 3, 2, UNSEEN, MISSING]),
        (["True", "True", "False", "False", "True"], [True, False, None], [2, 3, MISSING]),
        (["TRUE", "TRUE", "no", "no", "TRUE"], ["True", "false", "no"], [2, UNSEEN, 3]),
        # Two spellings in training are two values, and a third one is neither.
        (["true", "true", "True", "True", "false", "false"], ["True", "true", "TRUE"], [2, 4, UNSEEN]),
    ],
)
def test_truth_values_match_however_they_are_written(train: list[Any], given: list[Any], codes: list[int]) -> None:
    preprocessor = fit_preprocessor(pa.table({"paid": train}), [], ["paid"], "uint8", "rows")
    rows = pa.table({"paid": given})
    assert preprocessor.transform(rows, "rows")["categorical"][:, 0].tolist() == codes
    assert (
        count_values(rows, preprocessor, "rows")["paid"].tolist()
        == np.bincount(codes, minlength=4).tolist()[: preprocessor.coded[0].cardinality]
    )


def test_vocabulary_keeps_the_most_frequent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fitting, "MAX_VOCABULARY", 3)
    values = [f"v{index}" for index in range(9) for _ in range(index + 2)]
    found, _ = fit({"c": values, "few": values[:2] * 27})
    assert found.coded[0].vocabulary == ["v8", "v7", "v6"]
    assert fitting.full_vocabularies(found) == [
        "column 'c': only the 3 most frequent values have a code; 50.00% of the rows hold others; see --max-categories"
    ]


def test_column_that_is_nearly_empty_is_not_called_an_identifier() -> None:
    with pytest.raises(DataError, match=r"column 'c' is missing in most rows \(2 values, none repeats\); leave it out"):
        fit({"c": ["a", "b", *[None] * 50]})


@pytest.mark.parametrize(
    "kind",
    [pa.string(), pa.large_string(), pa.string_view(), pa.dictionary(pa.int8(), pa.string()), pa.bool_()],
    ids=str,
)
def test_every_text_type_gives_the_same_codes(kind: pa.DataType) -> None:
    plain = ["true", "false", "true", None] * 10
    values = [None if value is None else value == "true" for value in plain] if kind == pa.bool_() else plain
    column = (
        pa.array(values, kind.value_type).dictionary_encode()
        if pa.types.is_dictionary(kind)
        else pa.array(values, kind)
    )
    preprocessor, _ = fit({"c": pa.array(plain)})
    wanted = preprocessor.transform(pa.table({"c": pa.array(plain)}), "rows")["categorical"]
    np.testing.assert_array_equal(preprocessor.transform(pa.table({"c": column}), "rows")["categorical"], wanted)


WIDTHS = [pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.uint8(), pa.uint16(), pa.uint32(), pa.uint64()]
FLOATS = [pa.float16(), pa.float32(), pa.float64()]
DECIMALS = [pa.decimal128(9, 2), pa.decimal256(40, 2)]


@pytest.mark.parametrize("kind", [*WIDTHS, *FLOATS, *DECIMALS], ids=str)
def test_every_number_type_gives_the_same_scores(kind: pa.DataType) -> None:
    plain = [*range(100), None]
    values = [None if x is None else Decimal(x) for x in plain] if pa.types.is_decimal(kind) else plain
    column = pa.array(np.array(range(100), np.float16)) if kind == pa.float16() else pa.array(values, kind)
    wanted = encode({"x": pa.array(plain, pa.float64())})["numeric"]
    np.testing.assert_array_equal(encode({"x": column})["numeric"], wanted[: len(column)])


def test_repeating_numbers_also_get_a_code_a_value() -> None:
    rng = np.random.default_rng(0)
    values = np.where(rng.random(2000) < 0.5, rng.choice([0.0, 0.25, 99.0], 2000), rng.normal(size=2000))
    preprocessor, table = fit({"x": values})
    assert preprocessor.coded[0].vocabulary == [0.0, 0.25, 99.0]
    codes = preprocessor.transform(table, "rows")["categorical"][:, 0]
    for code, value in enumerate([0.0, 0.25, 99.0], start=FIRST_CODE):
        np.testing.assert_array_equal(codes == code, values == value)
    assert not fit({"x": rng.normal(size=2000)})[0].coded


def test_numbers_with_a_dozen_rows_a_value_have_codes_as_well() -> None:
    days = np.arange(340.0).repeat(12)
    preprocessor, table = fit({"day": days, "often": np.arange(204.0).repeat(20)})
    codes = {feature.name: feature.vocabulary for feature in preprocessor.coded}
    assert codes == {"day": np.arange(340.0).tolist(), "often": np.arange(204.0).tolist()}
    encoded = preprocessor.transform(table, "rows")["categorical"][:, 0]
    np.testing.assert_array_equal(encoded, FIRST_CODE + days)
    # Where frequent values hold half of the rows, the others have none.
    assert fit({"x": np.r_[np.zeros(4080), days]})[0].coded[0].vocabulary == [0.0]
    # Nor have values of fewer than eight rows.
    assert not fit({"x": np.arange(340.0).repeat(7)})[0].coded


def test_numbers_beyond_the_largest_count_as_it_in_codes_and_counts() -> None:
    limits = np.finfo(np.float64).max * np.array([-1, 1])
    preprocessor, table = fit({"x": np.r_[limits.repeat(300), np.random.default_rng(0).normal(size=900)]})
    assert preprocessor.coded[0].vocabulary == [-1e300, 1e300]
    codes = preprocessor.transform(table, "rows")["categorical"][:, 0]
    assert codes.tolist() == [FIRST_CODE] * 300 + [FIRST_CODE + 1] * 300 + [UNSEEN] * 900
    counted = count_values(table, preprocessor, "rows")["x"]
    assert preprocessor.counts is not None and counted.tolist() == preprocessor.counts["x"]


def test_encoding_survives_json_to_the_bit() -> None:
    rng = np.random.default_rng(0)
    columns = {
        "x": rng.normal(size=900),
        "y": rng.integers(0, 9, 900),
        "c": rng.choice(np.array(["a", "b", None]), 900),
    }
    for dtype in ("uint8", "float16", "float32"):
        preprocessor, table = fit(columns, dtype)
        again = Preprocessor.from_dict(json.loads(json.dumps(preprocessor.to_dict())))
        for name, array in preprocessor.transform(table, "rows").items():
            assert again.transform(table, "rows")[name].tobytes() == array.tobytes()


@pytest.mark.parametrize(
    ("fitted", "given", "message"),
    [
        ({"x": [1.0, 2.0]}, {"y": [1.0]}, "'x' is missing"),
        ({"x": [1.0, 2.0]}, {"x": ["1"]}, "'x' is string; the model was trained with numbers"),
        ({"c": ["a", "a"]}, {"c": [1]}, "'c' is int64; the model was trained with categories"),
        ({"c": ["a", "a"]}, {"c": pa.array([1], pa.timestamp("s"))}, r"'c' is timestamp\[s\]; .* categories"),
    ],
)
def test_rows_of_another_kind_are_named(fitted: dict[str, Any], given: dict[str, Any], message: str) -> None:
    preprocessor, _ = fit(fitted)
    with pytest.raises(DataError, match=f"new.parquet: column {message}"):
        preprocessor.transform(pa.table(given), "new.parquet")


def test_column_of_nulls_only_is_all_missing_when_scoring() -> None:
    preprocessor, _ = fit({"x": [1.0, 2.0, None], "c": ["a", "a", "b"]})
    arrays = preprocessor.transform(pa.table({"x": pa.nulls(2), "c": pa.nulls(2)}), "rows")
    assert np.isnan(arrays["numeric"]).all()
    assert (arrays["categorical"] == MISSING).all()


@pytest.mark.parametrize(
    "values", [10.0 ** -np.linspace(0, 322, 3000), np.linspace(0, 1e-320, 3000), np.array([-1.7e308, 0, 1.7e308] * 9)]
)
def test_values_too_close_or_too_far_for_a_float_keep_finite_ordered_scores(values: np.ndarray) -> None:
    feature = fit_preprocessor(pa.table({"p": values}), ["p"], [], "uint8", "here").numeric[0]
    scores = normal_scores(np.sort(values), feature)
    assert np.isfinite(scores).all() and np.abs(scores).max() <= 3 and (np.diff(scores) >= 0).all()


@pytest.mark.parametrize("native", [False, pytest.param(True, marks=needs_native)])
@pytest.mark.parametrize("kind", [np.float32, np.float64])
@pytest.mark.parametrize("zeros", [[], [0.0], [-0.0], [0.0, -0.0]])
def test_distinct_values_are_those_of_a_sort_in_float64(
    monkeypatch: pytest.MonkeyPatch, kind: Any, zeros: list[float], *, native: bool
) -> None:
    if not native:
        monkeypatch.setattr(distinct, "native_library", lambda: None)
    rng = np.random.default_rng(0)
    values = rng.permutation(np.r_[rng.normal(size=99), rng.integers(1, 9, 99), 40 * zeros, np.inf, np.nan]).astype(
        kind
    )
    found = distinct_values(pa.table({"x": values}), "x", "rows")
    # Which of two equal zeros is kept does not depend on the order of the rows.
    expected, counts = np.unique(values[np.isfinite(values)].astype(np.float64) + 0.0, return_counts=True)
    assert found.values.astype(np.float64).tobytes() == expected.tobytes()
    assert (found.counts.tolist(), found.missing, found.rows) == (counts.tolist(), 2, len(values))
    assert found.most == max(counts)
    ranks = np.r_[found.mid_ranks(np.arange(len(expected))), 0, 0.3, 1]
    mid_ranks = (np.cumsum(counts) - counts / 2) / counts.sum()
    assert found.indices_from(ranks).tolist() == np.searchsorted(mid_ranks, ranks).tolist()


@pytest.mark.parametrize("values", [[], [np.nan, np.inf], [2.0]])
def test_columns_of_few_values_have_as_many_distinct_ones(values: list[float]) -> None:
    found = distinct_values(pa.table({"x": pa.array(values, pa.float32())}), "x", "rows")
    finite = [value for value in values if np.isfinite(value)]
    assert (found.values.tolist(), found.missing, found.most) == (finite, len(values) - len(finite), len(finite))


NUMERIC = {"name": "x", "knots": [0.0, 1.0], "scores": [-1.0, 1.0]}
CATEGORY = {"name": "c", "kind": "category", "vocabulary": ["a", "b"]}
VALUE = {"name": "x", "kind": "value", "vocabulary": [0.0, 1.0]}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"numeric": [{**NUMERIC, "knots": [1.0, 0.0]}]}, r"numeric\.0\.knots: must rise .* got 1.0 before 0.0"),
        ({"numeric": [{**NUMERIC, "knots": [0.0, float("nan")]}]}, r"numeric\.0\.knots\.1: .* finite number"),
        ({"numeric": [{**NUMERIC, "knots": ["0", 1.0]}]}, r"numeric\.0\.knots\.0: .* got '0'"),
        ({"numeric": [{**NUMERIC, "knots": [], "scores": []}]}, r"numeric\.0: there must be a score for each knot"),
        ({"numeric": [{**NUMERIC, "scores": [0.0]}]}, r"numeric\.0: .* a score for each knot, got 1 for 2"),
        ({"numeric": [{**NUMERIC, "scores": [-1.0, 1e9]}]}, r"numeric\.0\.scores\.1: .* got 1000000000\.0"),
        ({"numeric": [{**NUMERIC, "scores": [1.0, -1.0]}]}, r"numeric\.0: scores: must not fall"),
        ({"numeric": [{**NUMERIC, "unit": "m"}]}, r"numeric\.0\.unit: Extra inputs"),
        ({"numeric": [{"name": "x", "knots": [0.0]}]}, r"numeric\.0\.scores: Field required"),
        ({"numeric": [NUMERIC, NUMERIC]}, "column 'x' occurs twice"),
        ({"coded": [CATEGORY, CATEGORY]}, "column 'c' occurs twice"),
        ({"coded": [VALUE, VALUE]}, "column 'x' occurs twice"),
        ({"coded": [{**VALUE, "name": "y"}]}, "coded: 'y' is of kind 'value', but no numeric column"),
        ({"coded": [{**VALUE, "vocabulary": [1.0, 0.0]}]}, r"coded\.0\.value\.vocabulary: must rise"),
        ({"coded": [{**CATEGORY, "vocabulary": ["a", "a"]}]}, "coded: the vocabulary of 'c' holds a value twice"),
        ({"coded": [{**CATEGORY, "vocabulary": [3]}]}, r"coded\.0\.category\.vocabulary\.0: .* got 3"),
        ({"coded": [{**CATEGORY, "kind": "text"}]}, r"coded\.0: .*'category', 'value'"),
        ({"numeric_dtype": "float64"}, "numeric_dtype: .* got 'float64'"),
    ],
)
def test_encoding_that_was_tampered_with_is_refused(change: dict[str, Any], message: str) -> None:
    plain = {"numeric": [NUMERIC], "coded": [CATEGORY, VALUE], "numeric_dtype": "uint8"}
    assert Preprocessor.from_dict(plain).to_dict() == plain
    with pytest.raises(DataError, match=f"^encoding: {message}"):
        Preprocessor.from_dict({**plain, **change})


def test_encoding_that_was_used_equals_one_that_was_not() -> None:
    """What is kept to encode faster is no part of it."""
    table = pa.table({"x": [1.0, 2.0, 2.0, 3.0] * 30, "city": ["Oslo", "Rome", "Oslo", "Bern"] * 30})
    used = fit_preprocessor(table, ["x"], ["city"], "uint8", "t")
    new = Preprocessor.model_validate_json(json.dumps(used.to_dict()))
    for rows in (table, table.slice(0, 5)):
        used.transform(rows, "t")
        assert used == new and new == used
    new.transform(table, "t")
    assert used == new
    assert used != used.model_copy(update={"numeric": [used.numeric[0].model_copy(update={"name": "other"})]})


# A process that has encoded columns is forked, and has the child do the same; one that hangs is ended by its alarm.
FORKING = """
import os, signal, sys, time
from dkan_core.data.encoding.column_threads import map_columns
# Enough for every thread to be started.
columns = [0.002] * 300
list(map_columns(time.sleep, columns))
child = os.fork()
if not child:
    signal.alarm(30)
    os._exit(list(map_columns(time.sleep, columns)) != [None] * 300)
sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


def test_forked_process_encodes_columns_with_threads_of_its_own() -> None:
    done = warm.server().run(["-c", FORKING])
    assert done.returncode == 0, done.stderr
