"""Symmetric, positive definite matrices with two diagonals on either side of the main one.

Everything takes time linear in the rows. For a few hundred rows, Python loops take less time than the import of scipy.

Shape suffixes: C rows of a matrix; the bands ``(3, C)`` are the diagonal and the two below it, filled up with zeros.
"""

import numpy as np

from dkan_core.utils.arrays import Float64


class BandFactor:
    """A matrix as L D L', L with ones on its diagonal.

    >>> factor = BandFactor(np.array([[4.0, 5.0, 6.0], [1.0, 2.0, 0.0], [0.5, 0.0, 0.0]]))
    >>> dense = np.array([[4.0, 1.0, 0.5], [1.0, 5.0, 2.0], [0.5, 2.0, 6.0]])
    >>> bool(np.allclose(dense @ factor.solve(np.arange(3.0)), np.arange(3.0)))
    True
    >>> bool(np.allclose(factor.inverse_bands()[1, :2], np.diag(np.linalg.inv(dense), -1)))
    True
    """

    def __init__(self, bands_3C: Float64) -> None:
        self._pivots: list[float] = []
        self._below: list[float] = []
        self._second: list[float] = []
        # What eliminating earlier rows subtracts: from this row's diagonal, the number below it, and the next diagonal.
        carried, carried_below, carried_second = 0.0, 0.0, 0.0
        for diagonal, below, second in zip(*bands_3C.tolist(), strict=True):
            pivot = diagonal - carried
            one, two = (below - carried_below) / pivot, second / pivot
            self._pivots.append(pivot)
            self._below.append(one)
            self._second.append(two)
            carried = carried_second + one * one * pivot
            carried_below = one * second
            carried_second = two * second

    def solve(self, right_C: Float64) -> Float64:
        """Return the solution of the linear equations with this right-hand side."""
        found, one, two = [], 0.0, 0.0
        below, second, second_before = 0.0, 0.0, 0.0
        for right, next_below, next_second in zip(right_C.tolist(), self._below, self._second, strict=True):
            one, two = right - below * one - second_before * two, one
            found.append(one)
            below, second, second_before = next_below, next_second, second
        values, one, two = [], 0.0, 0.0
        rows = zip(found, self._pivots, self._below, self._second, strict=True)
        for value, pivot, below, second in reversed([*rows]):
            one, two = value / pivot - below * one - second * two, one
            values.append(one)
        return np.array(values[::-1])

    def inverse_bands(self) -> Float64:
        """Return the bands of the inverse.

        From the last row up, each follows from the two below (Takahashi, Fagan and Chin 1973).
        """
        found = []
        next_one = next_below = after_one = 0.0
        for pivot, below, second in reversed([*zip(self._pivots, self._below, self._second, strict=True)]):
            second_one = -(below * next_below + second * after_one)
            below_one = -(below * next_one + second * next_below)
            one = 1 / pivot - below * below_one - second * second_one
            found.append((one, below_one, second_one))
            next_one, next_below, after_one = one, below_one, next_one
        return np.array(found[::-1]).T
