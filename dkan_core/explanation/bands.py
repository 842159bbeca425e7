"""How far the curves may be from those of a model that had seen unlimited rows.

The members of an ensemble are trained on the same rows, so their spread shows only what another seed would change. It
covers the true curve at a third of its values instead of nine of ten. So the variance of a curve is a sum of three:

- the members' variance over their number: what another seed would change;
- the uncertainty that the training rows leave about a curve of this roughness: the Bayesian variance of a smoother,
  which covers close to its level on average over a curve (Wahba 1983; Nychka 1988; for the terms of a sum, Marra and
  Wood 2012, doi:10.1111/j.1467-9469.2011.00760.x);
- the model's error on the rows it is read on, which it was not trained on, such as from too little or too long a
  training: the expected square of a smooth error of each column, fitted to the residuals. Its size is estimated
  along with it, by the evidence (MacKay 1992, doi:10.1162/neco.1992.4.3.415), shared in part between columns.

Both smoothers are random walks over the column's normal score, with categories, frequent values and missing ones apart;
they are solved with the Fisher information of the rows, for several columns at a time, so that one column does not
account for the effect of a correlated one. ``python -m benchmarks.bands`` measures the coverage.

Shape suffixes: N rows, P points of a column, K points of all columns and the intercept.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from dkan_core.data.encoding.preprocessor import normal_scores
from dkan_core.data.labels import NOT_MEASURED
from dkan_core.explanation.curves import ReadCurve
from dkan_core.explanation.grid import Grid
from dkan_core.explanation.response import grouped
from dkan_core.model.calibration import sigmoid
from dkan_core.utils.arrays import Array, Float64

# Most points of columns that are solved together: a system of so many unknowns takes some hundredths of a second.
MOST_POINTS = 512
# Rounds of maximizing the evidence: it moves little after these, and twice as many did not change the coverage.
ROUNDS = 10
# Weight, in points, of the prior that a column's error is as large as the others'. With 1, bands are a sixth wider.
SHARED_POINTS = 3.0
# Variance of an error over one unit of the normal score: where the evidence starts, and the least it may come to.
FIRST_VARIANCE, LEAST_VARIANCE = 0.05, 1e-5
# Lower bound, for flat curves: their roughness is never known to be zero.
LEAST_ROUGHNESS = 1e-4
# Smallest distance of points: closer ones would make the system singular.
LEAST_STEP = 0.02
# Precision of a prior on a curve's level, which holds it where there are no rows.
LEVEL_PRECISION = 1e-3


@dataclass(frozen=True)
class LabelSample:
    """A label of the rows that curves are read on."""

    labels_N: Array
    """0, 1, or 255 for not measured."""

    log_odds_N: Float64
    """The model's log-odds."""

    weight_N: npt.NDArray[np.float32] | None
    train_rows: int
    """Rows of the training split, whether the label is measured in them or not."""


def standard_errors(curves: Sequence[ReadCurve], measured: LabelSample) -> list[Float64]:
    """Return the standard error of each curve at its points; none where no row of either class was measured.

    Args:
        curves: The curves, each centred on its mean over the column's distribution; neighbours are solved together.
        measured: The rows.

    Shape:
        - Output: ``(P,)`` each
    """
    counted_N = measured.labels_N != NOT_MEASURED
    if measured.weight_N is not None:
        counted_N &= measured.weight_N > 0
    kept_N = np.flatnonzero(counted_N)
    if not 0 < np.count_nonzero(measured.labels_N[kept_N] == 1) < len(kept_N):
        return []
    groups = grouped(curves, lambda curve: len(curve.mean_P), MOST_POINTS)
    return [error_P for group in groups for error_P in _group_errors(group, measured, kept_N)]


@dataclass(frozen=True)
class _Smoother:
    """Prior of some consecutive points: their precision (inverse covariance), up to a factor."""

    part: slice
    """Their indices among all points."""

    precision_PP: Float64
    """Their inverse covariance, but for one factor."""

    roughness: float
    """The inverse of that factor, estimated from the learned curve."""


def _group_errors(group: Sequence[ReadCurve], measured: LabelSample, kept_N: npt.NDArray[np.int64]) -> list[Float64]:
    information_KK, gradient_K = _information(group, measured, kept_N)
    starts = np.cumsum([0, *(len(curve.mean_P) for curve in group)]).tolist()
    smoothers = [each for curve, start in zip(group, starts, strict=False) for each in _smoothers(curve, start)]
    # The label is measured in as large a share of the training rows as of these.
    growth = measured.train_rows / len(measured.labels_N)
    roughness = [smoother.roughness for smoother in smoothers]
    sampling_KK = np.linalg.inv(_posterior(growth * information_KK, smoothers, roughness))
    error_KK, error_K = _fit_error(information_KK, gradient_K, smoothers)
    found = []
    for curve, start, stop in zip(group, starts, starts[1:], strict=False):
        part = slice(start, stop)
        # A curve is centred, so its level, which rows cannot tell from the intercept, is no part of its error.
        centre_PP = np.eye(stop - start) - curve.grid.weights_P
        shift_P = centre_PP @ error_K[part]
        of_rows_P = np.einsum("pq,qr,pr->p", centre_PP, sampling_KK[part, part] + error_KK[part, part], centre_PP)
        seed_variance_P = np.square(curve.member_spread_P) / curve.members
        found.append(np.sqrt(seed_variance_P + of_rows_P + np.square(shift_P)))
    return found


def _information(
    group: Sequence[ReadCurve], measured: LabelSample, kept_N: npt.NDArray[np.int64]
) -> tuple[Float64, Float64]:
    """Return the Fisher information of the rows about each point, and the gradient of their log-likelihood."""
    probability_N = sigmoid(measured.log_odds_N[kept_N])
    weight_N = np.ones(len(kept_N)) if measured.weight_N is None else measured.weight_N[kept_N].astype(np.float64)
    # Scaled to the effective number of rows of equal weight (Kish).
    weight_N = weight_N * (weight_N.sum() / np.square(weight_N).sum())
    residual_N = weight_N * ((measured.labels_N[kept_N] == 1) - probability_N)
    information_N = weight_N * probability_N * (1 - probability_N)
    starts = np.cumsum([0, *(len(curve.mean_P) for curve in group)])
    size = int(starts[-1]) + 2
    # The intercept has an index of its own; rows at hidden levels share one that is left out of the result.
    hidden, intercept = size - 1, size - 2
    indices = [np.full(len(kept_N), intercept)]
    for curve, start in zip(group, starts, strict=False):
        point_N = curve.grid.point_N[kept_N]
        indices.append(np.where(point_N < 0, hidden, point_N + start))
    information_KK: Float64 = np.zeros((size, size))
    gradient_K: Float64 = np.zeros(size)
    for one, first_N in enumerate(indices):
        gradient_K += np.bincount(first_N, residual_N, minlength=size)
        for second_N in indices[: one + 1]:
            joint = np.bincount(first_N * size + second_N, information_N, minlength=size * size).reshape(size, size)
            information_KK += joint if second_N is first_N else joint + joint.T
    return information_KK[:hidden, :hidden], gradient_K[:hidden]


def _smoothers(curve: ReadCurve, start: int) -> list[_Smoother]:
    """Return the smoothers of a curve: one for its line, and one for the points apart from it."""
    grid = curve.grid
    size = len(grid.values_P)
    # Categories have no order, frequent values have weights of their own, and missing values no neighbour.
    line = 0 if grid.column.numeric is None else sum(role in ("curve", "level") for role in grid.roles_P)
    found = []
    for span, precision_PP in ((slice(0, line), _walk(grid, line)), (slice(line, size), np.eye(size - line))):
        if span.start < span.stop:
            precision_PP = precision_PP + LEVEL_PRECISION * np.eye(len(precision_PP))
            mean_P = curve.mean_P[span]
            roughness = float(mean_P @ precision_PP @ mean_P) / max(1, len(mean_P) - (span.start < line))
            part = slice(start + span.start, start + span.stop)
            found.append(_Smoother(part, precision_PP, max(LEAST_ROUGHNESS, roughness)))
    return found


def _walk(grid: Grid, line: int) -> Float64:
    """Return the precision of a random walk over the normal scores of a line's points, of variance 1 over one unit."""
    precision_PP = np.zeros((line, line))
    if grid.column.numeric is not None:
        # The points of a line rise.
        tightness = 1 / np.maximum(np.diff(normal_scores(grid.values_P[:line], grid.column.numeric)), LEAST_STEP)
        for index, tight in enumerate(tightness):
            precision_PP[[index, index + 1], [index, index + 1]] += tight
            precision_PP[[index, index + 1], [index + 1, index]] -= tight
    return precision_PP


def _posterior(information_KK: Float64, smoothers: Sequence[_Smoother], variances: Sequence[float]) -> Float64:
    """Return the precision of all points, given the rows; only the rows determine the intercept."""
    posterior_KK = information_KK + 1e-9 * np.eye(len(information_KK))
    for smoother, variance in zip(smoothers, variances, strict=True):
        posterior_KK[smoother.part, smoother.part] += smoother.precision_PP / variance
    return posterior_KK


def _fit_error(information_KK: Float64, gradient_K: Float64, smoothers: Sequence[_Smoother]) -> tuple[Float64, Float64]:
    """Return covariance and mean of the model's error at each point, given the residuals."""
    variances = [FIRST_VARIANCE] * len(smoothers)
    for _ in range(ROUNDS):
        covariance_KK: Float64 = np.linalg.inv(_posterior(information_KK, smoothers, variances)).astype(np.float64)
        mean_K = covariance_KK @ gradient_K
        squares, told = [], []
        for smoother, variance in zip(smoothers, variances, strict=True):
            part, precision_PP = smoother.part, smoother.precision_PP
            squares.append(float(mean_K[part] @ precision_PP @ mean_K[part]))
            # The effective number of points that the rows determine.
            open_points = float((covariance_KK[part, part] * precision_PP).sum()) / variance
            told.append(max(0.0, len(precision_PP) - open_points))
        shared = SHARED_POINTS * max(LEAST_VARIANCE, sum(squares) / max(sum(told), 1e-6))
        variances = [(square + shared) / (points + SHARED_POINTS) for square, points in zip(squares, told, strict=True)]
    return covariance_KK, mean_K
