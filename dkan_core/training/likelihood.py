"""The log-likelihood of rows whose log-odds are a sum of terms, and its derivatives by the codes of one term.

Fits of one term after the other spend nearly all of their time here, so a pass of the native extension does the work
where it is built.

Shape suffixes: N rows, C codes of a term.
"""

import ctypes
import math

import numpy as np
import numpy.typing as npt

from dkan_core.data.labels import NOT_MEASURED
from dkan_core.model.calibration import sigmoid
from dkan_core.native.library import LikelihoodArguments, native_library
from dkan_core.utils.arrays import Float64, UInt16

MAX_CODES = 1 << 16
# Largest change of a row's log-odds by one Newton step. Where one column separates all of few positives, a full step is
# far too long, as the likelihood is no parabola; it ends where the likelihood is flat, and the next step is unbounded.
MAX_STEP = 8.0
# Least curvature by the intercept, which is close to 0 where the model is certain of all rows.
LEAST_CURVATURE = 1e-6


def damped(step_C: Float64) -> Float64:
    """Return a Newton step that changes no log-odds by more than ``MAX_STEP``, in the same direction.

    >>> damped(np.array([1.0, -2.0])).tolist(), damped(np.array([4.0, -16.0])).tolist()
    ([1.0, -2.0], [2.0, -8.0])
    """
    largest = np.abs(step_C).max()
    return step_C if largest <= MAX_STEP else step_C * (MAX_STEP / largest)


def target_of(labels_N: npt.NDArray[np.uint8], weight_N: Float64) -> tuple[npt.NDArray[np.bool_], Float64]:
    """Return which rows are positive, and each row's weight, 0 where the label is not measured.

    Penalties count rows. Unequal weights carry as much information as fewer rows of equal weight (Kish 1965, Survey
    Sampling), so the weights are scaled to sum to that number of rows.
    """
    weight_N = weight_N * (labels_N != NOT_MEASURED)
    weight_N *= weight_N.sum() / max(np.square(weight_N).sum(), np.finfo(np.float64).tiny)
    return labels_N == 1, weight_N


class LogisticLikelihood:
    """Rows and their log-odds.

    Args:
        target_N: 0 or 1.
        weight_N: Weight of each row.
        log_odds: Initial value for all rows. None: the log-odds of the mean target.

    >>> rows = LogisticLikelihood(np.array([0, 1, 1]), np.ones(3), log_odds=0.0)
    >>> codes_N = np.array([0, 1, 1], np.uint16)
    >>> rows.add(codes_N, np.array([0.0, 2.0]))
    >>> [sums_C.round(3).tolist() for sums_C in rows.sums(codes_N, 2)]
    [[-0.5, 0.238], [0.25, 0.21]]
    """

    def __init__(self, target_N: npt.ArrayLike, weight_N: npt.ArrayLike, log_odds: float | None = None) -> None:
        self.target_N = np.ascontiguousarray(target_N, np.float32)
        self.weight_N = np.ascontiguousarray(weight_N, np.float32)
        self.log_odds_N = np.full(len(self.target_N), self.prior() if log_odds is None else log_odds)

    def prior(self) -> float:
        """Return the log-odds of the mean target, with half a row added to each class."""
        weight = self.weight_N.sum(dtype=np.float64)
        share = (float((self.weight_N * self.target_N).sum(dtype=np.float64)) + 0.5) / (weight + 1)
        return math.log(share / (1 - share))

    def sums(self, codes_N: UInt16, size: int) -> tuple[Float64, Float64]:
        """Return the gradient and the curvature by the log-odds that each code adds to its rows, ``(C,)`` each.

        The curvature is the negative second derivative, which is at least 0.
        """
        sums_C2 = np.zeros((size, 2))
        if not self._call(codes_N, sums_C2=sums_C2):
            sums_C2 = np.stack([np.bincount(codes_N, part_N, size) for part_N in self.by_row()], axis=1)
        return sums_C2[:, 0], sums_C2[:, 1]

    def by_row(self) -> tuple[Float64, Float64]:
        """Return the gradient and the curvature by each row's log-odds, ``(N,)`` each."""
        probability_N = sigmoid(self.log_odds_N)
        parts = self.target_N - probability_N, probability_N * (1 - probability_N)
        return self.weight_N * parts[0], self.weight_N * parts[1]

    def total(self) -> tuple[float, float]:
        """Return the gradient and the curvature by a number that is added to the log-odds of all rows."""
        gradient_1, curvature_1 = self.sums(np.zeros(len(self.target_N), np.uint16), 1)
        return float(gradient_1[0]), float(curvature_1[0])

    def center(self) -> float:
        """Add one number, found by a Newton step, to the log-odds of all rows; return it."""
        gradient, curvature = self.total()
        step = float(damped(np.array([gradient / max(curvature, LEAST_CURVATURE)]))[0])
        self.log_odds_N += step
        return step

    def add(self, codes_N: UInt16, table_C: Float64) -> None:
        """Add the table's entry for its code to each row's log-odds."""
        if not self._call(codes_N, table_C=np.ascontiguousarray(table_C)):
            self.log_odds_N += table_C[codes_N]

    def _call(self, codes_N: UInt16, *, table_C: Float64 | None = None, sums_C2: Float64 | None = None) -> bool:
        """Let the native extension add a table or compute sums; return whether it is available."""
        library, array = native_library(), table_C if sums_C2 is None else sums_C2
        if library is None:
            return False
        assert array is not None and codes_N.dtype == np.uint16 and codes_N.flags.c_contiguous
        arguments = LikelihoodArguments(
            codes=codes_N.ctypes.data,
            log_odds=self.log_odds_N.ctypes.data,
            target=self.target_N.ctypes.data,
            weight=self.weight_N.ctypes.data,
            table=0 if table_C is None else table_C.ctypes.data,
            sums=0 if sums_C2 is None else sums_C2.ctypes.data,
            rows=len(codes_N),
            size=len(array),
        )
        wrong = library.dkan_likelihood(ctypes.byref(arguments), table_C is not None)
        if wrong >= 0:
            raise IndexError(f"row {wrong} has code {codes_N[wrong]} of {len(array)}")
        return True
