"""Tables by penalized likelihood: the maximum is found, noise vanishes, and what is monotone stays so."""

import numpy as np
import pytest

from dkan_core.model.additive_shape import AdditiveShape, FeatureCuts, Layout, layout_of
from dkan_core.model.calibration import sigmoid
from dkan_core.training.additive_fit.pair_matrices import EMPTY_RIDGE, PAIR_DIFFERENCES
from dkan_core.training.additive_fit.penalized_fit import PenalizedFit, penalized_terms
from dkan_core.training.additive_fit.penalties import (
    MOST_WEIGHT,
    SHARP_PAIR_WEIGHT,
    SHARPEST_PAIR_WEIGHT,
    CodesPenalty,
    CurvePenalty,
    PairPenalty,
    curve_slope,
)
from dkan_core.training.additive_fit.roughness import pair_roughness, side_roughness
from dkan_core.utils.arrays import Float64, UInt16

ROWS = 20_000
# Of a curve; the first code, a missing value, has no second differences.
ROUGHNESS_CC = np.pad(side_roughness(256, True, (0.0, 1.0))[1:, 1:], ((1, 0), (1, 0)))
FINE_CUTS, CUTS = tuple(range(1, 256, 8)), tuple(range(1, 256, 32))
# Two curves, codes of two categories, and the pairs of both curves, the first one in fine bins, of the second one with
# a category, and of both categories.
SHAPE = AdditiveShape(
    form="tables",
    pairs=((0, 1), (1, 2), (2, 3)),
    binned=(
        FeatureCuts(feature=0, cuts=FINE_CUTS),
        FeatureCuts(feature=1, cuts=CUTS),
        FeatureCuts(feature=2, cuts=(1, 2, 3)),
        FeatureCuts(feature=3, cuts=(1, 2, 3, 4)),
    ),
)


@pytest.fixture(scope="module")
def layout() -> Layout:
    return layout_of(2, (), (4, 5), (0, 1), SHAPE)


@pytest.fixture(scope="module")
def codes_TN(layout: Layout) -> list[UInt16]:
    """Return the code of each term in each row; 5% of the second column are missing."""
    rng = np.random.default_rng(0)
    first_N, second_N = rng.integers(1, 256, (2, ROWS))
    second_N[rng.random(ROWS) < 0.05] = 0
    category_N, other_N = rng.integers(1, 4, ROWS), rng.integers(1, 5, ROWS)
    first_bin_N = np.searchsorted(FINE_CUTS, first_N, side="right")
    second_bin_N = np.searchsorted(CUTS, second_N, side="right")
    numbers, mixed, categories = layout.pairs
    both_N = first_bin_N * numbers.shape[1] + second_bin_N
    mixed_N = second_bin_N * mixed.shape[1] + category_N
    pair_N = category_N * categories.shape[1] + other_N
    codes_TN = (first_N, second_N, category_N, other_N, both_N, mixed_N, pair_N)
    return [codes_N.astype(np.uint16) for codes_N in codes_TN]


def fitted(
    layout: Layout, codes_TN: list[UInt16], log_odds_N: Float64, monotone: dict[int, int], rounds: int, *, adapt: bool
) -> PenalizedFit:
    target_N = (np.random.default_rng(1).random(ROWS) < sigmoid(log_odds_N)).astype(np.float64)
    fit = PenalizedFit(penalized_terms(layout, SHAPE, monotone, codes_TN), target_N, np.ones(ROWS))
    fit.fit(rounds, adapt=adapt)
    return fit


def test_log_odds_are_those_of_the_tables(layout: Layout, codes_TN: list[UInt16]) -> None:
    fit = fitted(layout, codes_TN, np.sin(codes_TN[0] / 40), {}, 3, adapt=True)
    sums_N = sum(fit.table_V[each.term.rows][each.codes_N] for each in fit.terms)
    np.testing.assert_allclose(fit.rows.log_odds_N, fit.intercept + sums_N, rtol=0, atol=1e-9)


def test_the_penalized_likelihood_is_at_its_maximum(layout: Layout, codes_TN: list[UInt16]) -> None:
    fit = fitted(layout, codes_TN, np.sin(codes_TN[0] / 40) + 0.5 * codes_TN[2], {}, 200, adapt=False)
    residual_N = fit.rows.target_N - sigmoid(fit.rows.log_odds_N)
    assert abs(residual_N.sum()) < 1e-3
    numbers, mixed, categories = fit.terms[4:]
    roughness = {
        numbers.term: pair_roughness((13, 9), (True, True), PAIR_DIFFERENCES),
        mixed.term: side_roughness(9, True, PAIR_DIFFERENCES) + np.eye(9),
        categories.term: 2 * np.eye(1),
    }
    for each in fit.terms:
        penalty, table_C = each.penalty, fit.table_V[each.term.rows]
        gradient_C = np.bincount(each.codes_N, residual_N, each.term.size).astype(np.float64)
        if isinstance(penalty, CurvePenalty):
            held_C = penalty.weight * (ROUGHNESS_CC @ table_C) + penalty.ridge_C * table_C
            np.testing.assert_allclose(gradient_C, held_C, rtol=0, atol=0.05)
        elif isinstance(penalty, CodesPenalty):
            np.testing.assert_allclose(gradient_C, penalty.weight * table_C, rtol=0, atol=0.05)
        else:
            assert isinstance(penalty, PairPenalty)
            spline, rough_SS = penalty.spline, roughness[each.term]
            gradient_KS, numbers_KS = spline.project(gradient_C), spline.at_knots(table_C)
            held_KS = penalty.weight * (numbers_KS @ rough_SS) + EMPTY_RIDGE * numbers_KS
            np.testing.assert_allclose(gradient_KS, held_KS, rtol=0, atol=0.05)


@pytest.mark.parametrize("weights", [(100.0, 1e-4), (2.0, 30.0), (1e5, 1e6)])
def test_curves_take_the_steps_and_weights_of_dense_matrices(weights: tuple[float, float]) -> None:
    rng = np.random.default_rng(0)
    curvature_C, gradient_C, table_C = rng.gamma(0.5, 20, 256), rng.normal(size=256), rng.normal(size=256)
    penalty = CurvePenalty()
    penalty.weight, penalty.slope_weight = weights
    penalty.factorize(curvature_C)
    held_CC = weights[0] * ROUGHNESS_CC + weights[1] * np.outer(curve_slope(), curve_slope())
    held_CC += np.diag(penalty.ridge_C)
    inverse_CC = np.linalg.inv(np.diag(curvature_C) + held_CC)
    step_C = inverse_CC @ (gradient_C - held_CC @ table_C)
    np.testing.assert_allclose(penalty.step(table_C, gradient_C), step_C, rtol=1e-6, atol=1e-8)
    # Where the rest of the weight is explained: Fellner and Schall's update of either weight.
    unexplained = (256 - 3) / weights[0] - (inverse_CC * ROUGHNESS_CC).sum()
    slope_unexplained = 1 / weights[1] - curve_slope() @ inverse_CC @ curve_slope()
    factor = unexplained / (table_C @ ROUGHNESS_CC @ table_C)
    slope_factor = slope_unexplained / (curve_slope() @ table_C) ** 2
    penalty.adapt(table_C)
    penalty.adapt_slope(table_C)
    assert penalty.weight == pytest.approx(np.clip(weights[0] * np.clip(factor, 0.1, 10), 1, 1e6), rel=1e-6)
    assert penalty.slope_weight == pytest.approx(
        np.clip(weights[1] * np.clip(slope_factor, 0.1, 10), 1e-4, 1e6), rel=1e-6
    )


def test_what_is_there_is_found_and_noise_vanishes(layout: Layout, codes_TN: list[UInt16]) -> None:
    wave_N, missing_N = np.sin(codes_TN[0] / 40), codes_TN[1] == 0
    # The pair of both columns is there, that of the second one and the category is not.
    product_N = (codes_TN[0] - 128.0) / 70 * np.sign(codes_TN[1] - 128.0) * ~missing_N
    truth_N = wave_N + missing_N + product_N + 0.5 * (codes_TN[2] == 2)
    fit = fitted(layout, codes_TN, truth_N, {}, 16, adapt=True)
    assert np.sqrt(np.mean((fit.rows.log_odds_N - truth_N) ** 2)) < 0.2
    effects = [fit.table_V[each.term.rows][each.codes_N].std() for each in fit.terms]
    assert effects[4] > 0.7 and effects[5] < 0.05
    assert fit.terms[5].penalty.weight > 100 * fit.terms[4].penalty.weight
    line = fit.terms[1].penalty
    assert line.weight > MOST_WEIGHT / 100, "a curve that is a line, but for its missing value"


def test_a_rare_value_of_one_class_draws_no_line_over_codes_without_rows() -> None:
    shape = AdditiveShape(form="tables")
    codes_N = np.full(ROWS, 128, np.uint16)
    codes_N[:20] = 129
    target_N = (np.random.default_rng(0).random(ROWS) < 0.05) & (codes_N == 128)
    terms = penalized_terms(layout_of(1, (), (), (), shape), shape, {}, [codes_N])
    fit = PenalizedFit(terms, target_N, np.ones(ROWS))
    fit.fit()
    table_C = fit.table_V[terms[0].term.rows]
    assert table_C[129] < table_C[128], "it says what little it can"
    assert np.abs(table_C).max() < 20


def test_few_positives_that_one_column_tells_apart_have_finite_log_odds() -> None:
    shape = AdditiveShape(form="tables")
    target_N = (np.arange(ROWS) < 20).astype(np.float64)
    codes_N = np.where(target_N == 1, 255, 1).astype(np.uint16)
    fit = PenalizedFit(penalized_terms(layout_of(1, (), (), (), shape), shape, {}, [codes_N]), target_N, np.ones(ROWS))
    fit.fit()
    positives_N, negatives_N = fit.rows.log_odds_N[:20], fit.rows.log_odds_N[20:]
    assert 0 < positives_N.min() < 20 and -20 < negatives_N.max() < -5


def test_slopes_of_columns_that_say_nothing_vanish() -> None:
    columns, rows = 60, 600
    rng = np.random.default_rng(0)
    codes_TN = rng.integers(1, 256, (columns, rows)).astype(np.uint16)
    target_N = rng.random(rows) < sigmoid((codes_TN[0] - 128.0) / 40)
    shape = AdditiveShape(form="tables")
    terms = penalized_terms(layout_of(columns, (), (), (), shape), shape, {}, [*codes_TN])
    fit = PenalizedFit(terms, target_N, np.ones(rows))
    fit.fit()
    slopes_T = [abs(curve_slope() @ fit.table_V[each.term.rows]) for each in terms]
    assert slopes_T[0] > 20 * np.median(slopes_T[1:])
    weights_T = [each.penalty.slope_weight for each in terms if isinstance(each.penalty, CurvePenalty)]
    assert weights_T[0] < 0.01 and np.median(weights_T) > 0.1


def test_only_a_sharp_pair_gets_more_knots() -> None:
    cuts = tuple(range(1, 256, 4))
    shape = AdditiveShape(
        form="tables",
        pairs=((0, 1), (1, 2)),
        binned=tuple(FeatureCuts(feature=feature, cuts=cuts) for feature in range(3)),
    )
    codes_TN = np.random.default_rng(0).integers(1, 256, (3, ROWS)).astype(np.uint16)
    bins_TN = np.searchsorted(cuts, codes_TN, side="right")
    pairs_TN = [(bins_TN[i] * 65 + bins_TN[i + 1]).astype(np.uint16) for i in range(2)]
    layout = layout_of(3, (), (), (), shape)
    spot_N = np.hypot(codes_TN[0] - 90.0, codes_TN[1] - 160.0) < 14
    plane_N = (codes_TN[1] - 128.0) * (codes_TN[2] - 128.0) / 5_000
    target_N = np.random.default_rng(1).random(ROWS) < sigmoid(6.0 * spot_N + plane_N - 2)
    fit = PenalizedFit(penalized_terms(layout, shape, {}, [*codes_TN, *pairs_TN]), target_N, np.ones(ROWS))
    fit.fit()
    sharp, plane = (each.penalty.spline for each in fit.terms[3:] if isinstance(each.penalty, PairPenalty))
    assert min(sharp.knots) > 20 and max(plane.knots) < 15
    sums_N = sum(fit.table_V[each.term.rows][each.codes_N] for each in fit.terms)
    np.testing.assert_allclose(fit.rows.log_odds_N, fit.intercept + sums_N, rtol=0, atol=1e-9)


def test_a_pair_on_fine_sides_that_is_sharper_than_its_knots_asks_for_the_most() -> None:
    fine, coarse = tuple(range(1, 256, 4)), tuple(range(1, 256, 24))
    shape = AdditiveShape(
        form="tables",
        pairs=((0, 1), (0, 2), (1, 3)),
        binned=tuple(
            FeatureCuts(feature=feature, cuts=cuts) for feature, cuts in enumerate((fine, fine, coarse, fine))
        ),
    )
    codes_TN = np.random.default_rng(0).integers(1, 256, (4, ROWS)).astype(np.uint16)
    bins_TN = [
        np.searchsorted(each.cuts, codes_N, "right") for each, codes_N in zip(shape.binned, codes_TN, strict=True)
    ]
    pairs_TN = [
        (bins_TN[first] * (len(shape.binned[second].cuts) + 1) + bins_TN[second]).astype(np.uint16)
        for first, second in shape.pairs
    ]
    layout = layout_of(4, (), (), (), shape)
    narrow_N, wide_N = (np.prod(np.sign(np.sin(codes_TN[:2] / width)), axis=0) for width in (11, 22))

    def fitted_pairs(log_odds_N: Float64, sharpest: tuple[tuple[int, int], ...] = ()) -> list[PairPenalty]:
        target_N = np.random.default_rng(1).random(ROWS) < sigmoid(log_odds_N)
        terms = penalized_terms(layout, shape, {}, [*codes_TN, *pairs_TN], sharpest)
        PenalizedFit(terms, target_N, np.ones(ROWS)).fit()
        return [each.penalty for each in terms if isinstance(each.penalty, PairPenalty)]

    strip_N = np.sign(np.sin(codes_TN[0] / 11)) * np.where(bins_TN[2] % 2, 4.0, -4.0)
    assert [each.is_sharpest for each in fitted_pairs(4 * narrow_N)] == [True, False, False]
    assert not any(each.is_sharpest for each in fitted_pairs(4 * narrow_N, ((0, 1),))), "it has the most knots"
    assert not any(each.is_sharpest for each in fitted_pairs(strip_N)), "one of its sides has few bins"
    enough, *_ = fitted_pairs(wide_N)
    assert min(enough.spline.knots) > 20, "it has more knots"
    assert SHARPEST_PAIR_WEIGHT < enough.weight < SHARP_PAIR_WEIGHT and not enough.is_sharpest, "and needs no more"


@pytest.mark.parametrize("sign", [1, -1])
def test_a_monotone_term_stays_monotone(layout: Layout, codes_TN: list[UInt16], sign: int) -> None:
    fit = fitted(layout, codes_TN, np.sin(codes_TN[0] / 40), {0: sign}, 4, adapt=True)
    table_C = fit.table_V[fit.terms[0].term.rows]
    assert (sign * np.diff(table_C[1:])).min() >= 0
    assert np.ptp(table_C[1:]) > 0.3


def test_rows_without_weight_teach_nothing(layout: Layout, codes_TN: list[UInt16]) -> None:
    fits = []
    for filled in (0.0, 1.0):
        target_N = (np.random.default_rng(1).random(ROWS) < 0.3).astype(np.float64)
        target_N[:5_000] = filled
        weight_N = np.ones(ROWS)
        weight_N[:5_000] = 0
        fits.append(PenalizedFit(penalized_terms(layout, SHAPE, {}, codes_TN), target_N, weight_N))
        fits[-1].fit(4, adapt=True)
    np.testing.assert_array_equal(fits[0].table_V, fits[1].table_V)
