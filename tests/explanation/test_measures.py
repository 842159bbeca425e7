"""Columns, curves, pairs and slopes of known functions are read back right."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from dkan_core import (
    PrepareConfig,
    prepare,
)
from dkan_core.data.encoding.preprocessor import MISSING, SCORE_LIMIT, STEPS, normal_scores, quantize
from dkan_core.data.format.manifest import PreparedData, read_manifest
from dkan_core.explanation import slopes
from dkan_core.explanation.columns import (
    Column,
    Rows,
    Settings,
    changed_rows,
    encode_values,
    read_values,
    redrawn,
    source_columns,
)
from dkan_core.explanation.curves import Curve, describe_curve, read_curve
from dkan_core.explanation.explain import read_rows
from dkan_core.explanation.figures.curves import departing_marks, draw_curve
from dkan_core.explanation.grid import make_grid
from dkan_core.explanation.importance import measure_effects, rank_by_effect
from dkan_core.explanation.interactions import find_interactions, map_pair
from dkan_core.explanation.model_response import ModelResponse
from dkan_core.explanation.page import _about_curve
from dkan_core.explanation.response import Response, affordable_rows
from dkan_core.explanation.slopes import measure_slopes
from dkan_core.model.tabular import TabularFastKAN
from dkan_core.report.figures.canvas import Text
from dkan_core.utils.arrays import Arrays, Float64
from tests.explanation.known import NOISE, TRUE, make_source


@pytest.mark.parametrize("dtype", ["uint8", "float16", "float32"])
def test_values_are_read_and_set_as_prepare_encodes_them(dtype: Any, tmp_path: Path) -> None:
    table, _ = make_source(2000, seed=2)
    pq.write_table(table, tmp_path / "rows.parquet")
    prepare(tmp_path / "rows.parquet", tmp_path / "data", PrepareConfig(label=("label",), numeric_dtype=dtype))
    preprocessor = read_manifest(tmp_path / "data").preprocessor
    arrays = preprocessor.transform(table, "rows")
    columns = source_columns(preprocessor)
    assert [column.name for column in columns] == preprocessor.columns
    for column in columns[:6]:
        values = table[column.name].to_numpy(zero_copy_only=False).astype(float)
        cells = encode_values(column, values)
        np.testing.assert_array_equal(cells.scores_P, arrays["numeric"][:, column.numeric_index])
        if column.coded:
            np.testing.assert_array_equal(cells.codes_P, arrays["categorical"][:, column.code_index])
        read = read_values(column, arrays)
        np.testing.assert_array_equal(np.isnan(read), np.isnan(values))
        assert column.numeric is not None
        apart = normal_scores(read, column.numeric) - normal_scores(values, column.numeric)
        assert np.nanmax(np.abs(apart)) < 1.01 * 2 * SCORE_LIMIT / STEPS
        if column.name in ("flag", "spiked"):
            np.testing.assert_array_equal(read == 0, values == 0)


def test_a_column_is_set_and_redrawn_as_a_whole(known: Path) -> None:
    manifest = read_manifest(known)
    arrays = read_rows(known, manifest, "valid", 50)
    del arrays["labels"]
    columns = {column.name: column for column in source_columns(manifest.preprocessor)}
    column = columns["spiked"]
    cells = encode_values(column, np.array([0.0, 7.0, np.nan]))
    index, rows = np.divmod(np.arange(150), 50)
    done = changed_rows(arrays, rows, [(column, cells[index])])
    read = read_values(column, done).reshape(3, 50)
    assert (read[0] == 0).all() and np.isnan(read[2]).all()
    np.testing.assert_allclose(read[1], 7.0, atol=0.5)
    codes = done["categorical"][:, column.code_index].reshape(3, 50)
    assert len(np.unique(codes[:, 0])) == 3 and (codes[2] == MISSING).all()
    other = [index for index in range(arrays["numeric"].shape[1]) if index != column.numeric_index]
    np.testing.assert_array_equal(done["numeric"][50:100, other], arrays["numeric"][:, other])
    rising, order = columns["rising"], np.arange(50)[::-1]
    changed, cells = redrawn(arrays, rising, order)
    swapped = changed_rows(arrays, changed, [(rising, cells)])
    score_N = arrays["numeric"][:, rising.numeric_index]
    assert {*changed} == {*np.flatnonzero(score_N[order] != score_N)} and len(changed) > 20
    np.testing.assert_array_equal(swapped["numeric"][:, rising.numeric_index], score_N[order][changed])
    untouched = (arrays["categorical"][changed, column.code_index], swapped["categorical"][:, column.code_index])
    np.testing.assert_array_equal(*untouched)


Formula = Callable[..., Float64]


def columns_named(manifest: PreparedData, *names: str) -> list[Column]:
    by_name = {column.name: column for column in source_columns(manifest.preprocessor)}
    return [by_name[name] for name in names]


def known_response(rows: Arrays, columns: list[Column], formula: Formula) -> Response:
    """Return log-odds that are a formula of columns in their own units."""
    return Response(lambda arrays: formula(*(read_values(column, arrays) for column in columns))[:, None], rows)


def curve(response: Response, column: Column) -> Curve:
    return describe_curve(read_curve(response, column, rows=300, cells=1e9))


def test_sum_of_columns_has_bands_without_width_and_no_interaction(rows: tuple[PreparedData, Arrays]) -> None:
    manifest, arrays = rows
    left, right, bowl = columns_named(manifest, "left", "right", "bowl")
    response = known_response(arrays, [left, right, bowl], lambda a, b, c: 2 * a + b - np.abs(c) / 10)
    columns = source_columns(manifest.preprocessor)
    (measured,) = measure_effects(response, columns, cells=1e9, seed=0, advance=lambda _: None)
    ranked = rank_by_effect(response, columns, measured, top=3, cells=1e9, seed=0)
    effects = {importance.name: importance.effect for importance in ranked}
    # of a term of a sum, the effect is the standard deviation
    left_values, right_values, bowl_values = (read_values(column, arrays) for column in (left, right, bowl))
    terms = {"left": 2 * left_values, "right": right_values, "bowl": np.abs(bowl_values) / 10}
    for name, term in terms.items():
        assert effects[name] == pytest.approx(term.std(), rel=0.08)
    assert {name for name in effects if effects[name] > 0} == {"left", "right", "bowl"}
    for point in curve(response, bowl).points:
        assert point.high - point.low == pytest.approx(0, abs=1e-9)
    assert not find_interactions(response, [left, right, bowl], bins=6, rows=50, cells=1e9, advance=lambda _: None)


def test_strength_of_a_product_is_its_standard_deviation(rows: tuple[PreparedData, Arrays]) -> None:
    manifest, arrays = rows
    left, right = columns_named(manifest, "left", "right")
    response = known_response(arrays, [left, right], lambda a, b: 3 * a * b)
    (pair,) = find_interactions(response, [left, right], bins=12, rows=20, cells=1e9, advance=lambda _: None)
    assert pair.strength == pytest.approx(3, rel=0.15) and pair.share > 0.95
    shown = map_pair(response, left, right, bins=10, rows=20, cells=1e9)
    assert np.shape(shown.joint) == np.shape(shown.own) == np.shape(shown.rows) == (10, 10)
    assert np.sum(shown.rows) == 2000
    assert curve(response, left).points[0].high > 3


def test_standard_errors_of_a_map_are_those_of_the_members_mean(rows: tuple[PreparedData, Arrays]) -> None:
    manifest, arrays = rows
    left, right = columns_named(manifest, "left", "right")
    factors = np.array([2.0, 3.0, 4.0])

    class Members(Response):
        def of_members(self, rows_M: Rows, settings: Settings) -> Float64:
            changed = changed_rows(self.arrays, rows_M, settings)
            product_M = read_values(left, changed) * read_values(right, changed)
            # The second term belongs to one column, and is the same for each member.
            found: Float64 = product_M[:, None] * np.array([factors.mean(), *factors])
            return found + read_values(left, changed)[:, None]

    alone = map_pair(known_response(arrays, [left, right], np.multiply), left, right, bins=5, rows=9, cells=1e9)
    assert alone.joint_error is alone.own_error is None
    members = Members(lambda arrays: read_values(left, arrays)[:, None], arrays)
    for factor, scale in ((None, 3**-0.5), (2.0, 2.0)):
        found = map_pair(members, left, right, bins=5, rows=9, cells=1e9, error_factor=factor)
        np.testing.assert_allclose(np.array(found.own), 3 * np.array(alone.own), atol=1e-9)
        assert found.own_error is not None and found.joint_error is not None
        for error, part in ((found.own_error, alone.own), (found.joint_error, alone.joint)):
            np.testing.assert_allclose(np.array(error), scale * np.abs(part), atol=1e-9)


def test_curve_is_centred_and_its_points_stand_for_every_row(rows: tuple[PreparedData, Arrays]) -> None:
    manifest, arrays = rows
    for column in columns_named(manifest, *TRUE, *NOISE):
        grid = make_grid(column, arrays)
        assert grid.rows_P.sum() == 2000 and grid.weights_P.sum() == pytest.approx(1)
    flag, bowl = columns_named(manifest, "flag", "bowl")
    response = known_response(arrays, [flag, bowl], lambda a, b: 5 * a + b)
    read = curve(response, flag)
    assert [(point.role, point.name, point.value) for point in read.points] == [
        ("level", "0", 0.0),
        ("level", "1", 1.0),
    ]
    assert read.points[1].mean - read.points[0].mean == pytest.approx(5)
    assert sum(point.mean * point.rows for point in read.points) == pytest.approx(0, abs=1e-6)
    assert not departing_marks(read)


@pytest.mark.parametrize("dtype", ["uint8", "float32"])
@pytest.mark.parametrize("share", [0.02, 0.15], ids=["rare", "with a code"])
def test_values_that_stand_for_unknown_are_on_no_axis(share: float, dtype: Any, tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    x = np.where(rng.random(2000) < share, rng.choice([-999.0, 9999.0], 2000), rng.uniform(10, 200, 2000))
    z = rng.normal(size=2000)
    pq.write_table(pa.table({"x": x, "z": z, "y": rng.integers(0, 2, 2000)}), tmp_path / "rows.parquet")
    config = PrepareConfig(label=("y",), numeric_dtype=dtype, split="98/1/1")
    manifest = prepare(tmp_path / "rows.parquet", tmp_path / "data", config)
    arrays = read_rows(tmp_path / "data", manifest, "train", 2000)
    column, other = columns_named(manifest, "x", "z")
    values = read_values(column, arrays)
    assert {*values[(values < 10) | (values > 200)]} == {-999, 9999}
    assert 0 <= np.count_nonzero(x < 0) - np.count_nonzero(values < 0) <= len(x) - len(values)
    read = curve(known_response(arrays, [column], lambda x: 0.01 * x), column)
    line = [point.value or 0.0 for point in read.of("curve")]
    assert min(line) >= 10 and max(line) <= 200 and read.scale == "linear" and max(read.density["edges"]) <= 210
    assert [mark.value for mark in departing_marks(read)] == [-999.0, 9999.0]
    assert [mark.rows for mark in read.of("mark")] == [np.count_nonzero(values == value) for value in (-999, 9999)]
    assert read.formula is not None and read.formula.form == "line"
    assert "About 0.01·" in _about_curve(read, 1.0)
    assert "About" not in _about_curve(replace(read, formula=replace(read.formula, r2=0.79)), 1.0)
    texts = [mark.text for mark in draw_curve(read, "y").canvas.marks if isinstance(mark, Text)]
    assert {text.split("\n")[0] for text in texts} >= {"-999", "9999", "50", "150"}
    shown = map_pair(known_response(arrays, [column, other], np.add), column, other, bins=5, rows=9, cells=1e9)
    assert min(shown.first.edges) >= 10 and max(shown.first.edges) <= 200


def test_line_passes_through_the_frequent_values_of_counts(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    x, spikes = np.floor(rng.lognormal(3.5, 1.3, 6000)), rng.integers(1, 16, 6000) * 10.0
    spiked = np.where(rng.random(6000) < 0.5, spikes, rng.uniform(0, 200, 6000))
    pq.write_table(pa.table({"x": x, "spiked": spiked, "y": rng.integers(0, 2, 6000)}), tmp_path / "rows.parquet")
    manifest = prepare(tmp_path / "rows.parquet", tmp_path / "data", PrepareConfig(label=("y",), split="98/1/1"))
    arrays = read_rows(tmp_path / "data", manifest, "train", 6000)
    counts, other = columns_named(manifest, "x", "spiked")
    assert len(counts.frequent) > 16 and len(other.frequent) == 15
    grid = make_grid(counts, arrays)
    assert {*grid.roles_P} == {"curve"} and grid.rows_P.sum() == len(arrays["labels"])
    assert grid.rows_P.max() < 0.1 * grid.rows_P.sum(), "no stretch of values is left out"
    amid = make_grid(other, arrays)
    assert amid.roles_P.count("mark") == 15
    assert not np.isin(amid.values_P[[role == "curve" for role in amid.roles_P]], other.frequent).any()


CPU = torch.device("cpu")


def test_slope_is_what_finite_differences_find(rows: tuple[PreparedData, Arrays], small: TabularFastKAN) -> None:
    _, arrays = rows
    numeric, step = arrays["numeric"], 0.02
    missing = np.isnan(numeric)
    assert missing[:, 0].any() and not missing[:, 1:].any()
    measured = measure_slopes(small, CPU, arrays, 0, 1e9)
    assert measured.shape == (numeric.shape[1],)
    for index, slope in enumerate(measured):
        shift = np.zeros_like(numeric)
        shift[:, index] = step / 2
        up, down = ({**arrays, "numeric": (numeric + sign * shift).astype(np.float32)} for sign in (1, -1))
        higher, lower = (ModelResponse(small, CPU, [0], shifted).log_odds_NL for shifted in (up, down))
        steepness = np.abs(higher - lower)[~missing[:, index]].mean() / step
        assert slope == pytest.approx(steepness * np.nan_to_num(numeric[:, index]).std(), rel=0.01)


def test_slope_is_the_same_however_rows_are_stored_and_cut(
    rows: tuple[PreparedData, Arrays], small: TabularFastKAN, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, arrays = rows
    whole = measure_slopes(small, CPU, arrays, 0, 1e9)
    stored = {**arrays, "numeric": quantize(arrays["numeric"], "uint8")}
    np.testing.assert_allclose(measure_slopes(small, CPU, stored, 0, 1e9), whole, rtol=0.02)
    monkeypatch.setattr(slopes, "CHUNK_ROWS", 300)
    np.testing.assert_allclose(measure_slopes(small, CPU, arrays, 0, 1e9), whole, rtol=1e-5)
    first = {name: array[:64] for name, array in arrays.items()}
    np.testing.assert_array_equal(measure_slopes(small, CPU, arrays, 0, 1), measure_slopes(small, CPU, first, 0, 1e9))
    empty = {**arrays, "numeric": np.full_like(arrays["numeric"], np.nan)}
    assert (measure_slopes(small, CPU, empty, 0, 1e9) == 0).all()


def test_wide_data_takes_fewer_rows() -> None:
    arrays = {"numeric": np.zeros((5000, 2000), np.uint8)}
    assert affordable_rows(arrays, 2000, 4e8) == 100
    assert affordable_rows(arrays, 10**6, 4e8) == 64
    assert affordable_rows(arrays, 1, 4e8) == 5000
