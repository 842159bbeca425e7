"""Bands hold the true curve where a model is right and where it is off, and are as wide as that takes."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from dkan_core.data.format.manifest import PreparedData
from dkan_core.explanation import bands
from dkan_core.explanation.bands import LabelSample, standard_errors
from dkan_core.explanation.columns import Column, read_values, source_columns
from dkan_core.explanation.curves import HALF_WIDTHS, ReadCurve, read_curve
from dkan_core.explanation.response import Response
from dkan_core.utils.arrays import Arrays, Float64

TERMS: dict[str, Callable[[Float64], Float64]] = {
    "left": lambda x: 1.2 * x,
    "bowl": lambda x: np.square(x / 15) - 1,
    "flag": lambda x: 0.8 * x,
}
Known = tuple[list[Column], Arrays]


@pytest.fixture(scope="module")
def known_sum(rows: tuple[PreparedData, Arrays]) -> Known:
    manifest, arrays = rows
    by_name = {column.name: column for column in source_columns(manifest.preprocessor)}
    return [by_name[name] for name in TERMS], arrays


def log_odds(known_sum: Known, arrays: Arrays, factor: float) -> Float64:
    columns, _ = known_sum
    terms = [TERMS[column.name](read_values(column, arrays)) for column in columns]
    found: Float64 = factor * np.sum(terms, axis=0) - 0.5
    return found


def read(known_sum: Known, factor: float) -> list[ReadCurve]:
    """Read the curves of a model that has learned the sum but for a factor."""
    columns, arrays = known_sum
    response = Response(lambda each: np.reshape(log_odds(known_sum, each, factor), (-1, 1)), arrays)
    return [read_curve(response, column, rows=50, cells=1e9) for column in columns]


def draw_labels(known_sum: Known, seed: int) -> Float64:
    probability = 1 / (1 + np.exp(-log_odds(known_sum, known_sum[1], 1.0)))
    return (np.random.default_rng(seed).random(len(probability)) < probability).astype(np.uint8)


def coverage_and_width(known_sum: Known, factor: float, seed: int) -> tuple[float, float]:
    curves = read(known_sum, factor)
    labels, answered = draw_labels(known_sum, seed), log_odds(known_sum, known_sum[1], factor)
    errors = standard_errors(curves, LabelSample(labels, answered, None, train_rows=8 * len(labels)))
    covered = [
        curve.grid.weights_P @ (np.abs(curve.mean_P - curve.mean_P / factor) <= HALF_WIDTHS * error_P)
        for curve, error_P in zip(curves, errors, strict=True)
    ]
    widths = [curve.grid.weights_P @ error_P for curve, error_P in zip(curves, errors, strict=True)]
    return float(np.mean(covered)), float(np.mean(widths))


# Eight draws of labels, with fixed seeds and nothing trained: the same numbers on every machine, but for rounding.
def test_bands_cover_the_truth_and_are_wider_where_the_model_is_off(known_sum: Known) -> None:
    right = np.mean([coverage_and_width(known_sum, 1.0, seed) for seed in range(8)], axis=0)
    shrunk = np.mean([coverage_and_width(known_sum, 0.75, seed) for seed in range(8)], axis=0)
    assert right[0] > 0.95, "a model that is right lies in its own band"
    assert 0.8 < shrunk[0] < 1, "one whose curves are a quarter too flat is covered nearly as often as bands say"
    assert shrunk[1] > 1.5 * right[1]


def test_bands_narrow_with_training_rows_and_hold_the_members_spread(known_sum: Known) -> None:
    curves, labels = read(known_sum, 1.0), draw_labels(known_sum, 0)
    answered = log_odds(known_sum, known_sum[1], 1.0)
    few, many = (standard_errors(curves, LabelSample(labels, answered, None, rows)) for rows in (10**3, 10**7))
    assert all((one > other).all() for one, other in zip(few, many, strict=True))
    spread = [replace(curve, member_spread_P=np.full(len(curve.mean_P), 4.0), members=4) for curve in curves]
    for error_P, wider_P in zip(many, standard_errors(spread, LabelSample(labels, answered, None, 10**7)), strict=True):
        np.testing.assert_allclose(wider_P, np.sqrt(np.square(error_P) + 4), rtol=1e-12)


def test_rows_that_were_not_measured_do_not_count(known_sum: Known) -> None:
    curves, labels = read(known_sum, 1.0), draw_labels(known_sum, 0)
    answered = log_odds(known_sum, known_sum[1], 1.0)
    hidden = np.arange(len(labels)) % 3 == 0
    weighed = standard_errors(curves, LabelSample(labels, answered, (~hidden).astype(np.float32), 10**4))
    masked = standard_errors(curves, LabelSample(np.where(hidden, 255, labels), answered, None, 10**4))
    assert all(np.isfinite(each).all() and (each > 0).all() for each in masked)
    garbage = np.where(hidden, 1e3, answered)
    again = standard_errors(curves, LabelSample(np.where(hidden, 255, labels), garbage, None, 10**4))
    # As many further rows, here and in training, without the label.
    longer = [replace(each, grid=replace(each.grid, point_N=np.tile(each.grid.point_N, 2))) for each in curves]
    twice = LabelSample(np.append(labels, np.full_like(labels, 255)), np.tile(answered, 2), None, 2 * 10**4)
    whole = standard_errors(curves, LabelSample(labels, answered, None, 10**4))
    for one, other in zip([*masked, *masked, *whole], [*weighed, *again, *standard_errors(longer, twice)], strict=True):
        np.testing.assert_array_equal(one, other)
    assert standard_errors(curves, LabelSample(np.zeros_like(labels), answered, None, 10**4)) == []


def test_unequal_weights_count_as_fewer_rows(known_sum: Known) -> None:
    curves, labels = read(known_sum, 1.0), draw_labels(known_sum, 0)
    answered = log_odds(known_sum, known_sum[1], 1.0)
    weights = np.where(np.arange(len(labels)) % 2, 1.9, 0.1).astype(np.float32)
    weighed = standard_errors(curves, LabelSample(labels, answered, weights, 10**3))
    whole = standard_errors(curves, LabelSample(labels, answered, None, 10**3))
    assert all(one.mean() > 1.1 * other.mean() for one, other in zip(weighed, whole, strict=True))
    scaled = standard_errors(curves, LabelSample(labels, answered, 8 * weights, 10**3))
    for one, other in zip(weighed, scaled, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-9)


def test_many_columns_are_solved_a_few_at_a_time(known_sum: Known, monkeypatch: pytest.MonkeyPatch) -> None:
    curves, labels = read(known_sum, 1.0), draw_labels(known_sum, 0)
    measured = LabelSample(labels, log_odds(known_sum, known_sum[1], 1.0), None, 10**4)
    together = standard_errors(curves, measured)
    monkeypatch.setattr(bands, "MOST_POINTS", 1)
    alone = standard_errors(curves, measured)
    assert [len(each) for each in alone] == [len(each) for each in together]
    for one, other in zip(alone, together, strict=True):
        assert np.median(one / other) == pytest.approx(1, abs=0.4)
