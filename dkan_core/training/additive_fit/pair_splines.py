"""The numbers of a pair: where its bins have an order, values at knots, and straight lines between them.

Cells are constant and so small that the surface over them is continuous, while a fit has only as many numbers as there
are knots (linear B-splines, and the tensor product of two: Eilers and Marx 2003, doi:10.1016/S0169-7439(03)00029-7).

Shape suffixes: C cells of a pair, K blocks that no neighbourhood joins, F and G bins of the sides of a block, S knots
of a block.
"""

import functools

import numpy as np

from dkan_core.model.additive_shape import SCORE_CODES
from dkan_core.training.setup.additive_architecture import NUMERIC_BINS
from dkan_core.utils.arrays import Float64

Cuts = tuple[int, ...]

# Most knots of a side with fine bins, without that of missing values; other sides have a knot in each bin. The second
# number is for pairs with sharp effects, the third for those that are still too sharp.
KNOTS, MORE_KNOTS, MOST_KNOTS = 12, 24, 128
# A side needs more knots if it has more than this share of the squared second differences along both.
ROUGH_SHARE = 0.25


class PairSpline:
    """The knots of a pair. A category's bins have no neighbours: each is a block of its own, and of two, each cell is.

    Args:
        shape: Bins of both sides; the first one is that of missing values.
        cuts: For each side whose codes are those of scores, the first code of each bin except the first one; None for a
            category.
        max_knots: Knots of each such side, if it has fine bins.

    >>> spline = PairSpline((33, 3), (tuple(range(1, 257, 8)), None))
    >>> spline.knots
    (13,)
    >>> spline.at_knots(np.arange(99.0)).shape, spline.to_cells(np.ones((3, 13))).shape
    ((3, 13), (99,))
    """

    def __init__(
        self, shape: tuple[int, ...], cuts: tuple[Cuts | None, ...], max_knots: tuple[int, ...] = (KNOTS, KNOTS)
    ) -> None:
        self.shape, self._cuts, self._ordered = shape, cuts, tuple(each is not None for each in cuts)
        self.max_knots = max_knots
        ordered = [each for each in cuts if each is not None]
        hats = [hat_functions(*each) for each in zip(ordered, max_knots, strict=False)]
        self.knots = tuple(hats_FS.shape[1] for hats_FS in hats)
        self._first_FS, self._second_GS = (*hats, np.ones((1, 1)), np.ones((1, 1)))[:2]
        self._at = self._first_FS.argmax(axis=0), self._second_GS.argmax(axis=0)

    def with_more_knots(self, values_C: Float64) -> "PairSpline | None":
        """Return one with at least ``MORE_KNOTS`` on the sides along which the numbers of the cells are rough.

        Returns:
            None where these sides have no bins for more.
        """
        numbers_KST = self.at_knots(values_C).reshape(-1, *self.knots)
        # The first knot is that of missing values, which has no neighbours.
        bends = [
            np.diff(numbers_KST, n=2, axis=axis + 1).take(range(1, size - 2), axis + 1)
            for axis, size in enumerate(self.knots)
        ]
        rough = [np.square(each).sum() for each in bends]
        max_knots = tuple(
            max(MORE_KNOTS, knots) if each > ROUGH_SHARE * sum(rough) else knots
            for each, knots in zip(rough, self.max_knots, strict=False)
        )
        finer = PairSpline(self.shape, self._cuts, max_knots)
        return None if finer.knots == self.knots else finer

    @property
    def is_of_fine_numbers(self) -> bool:
        """Whether both sides are of numbers, and have more bins than those in which pairs are searched for."""
        return all(each is not None and len(each) > NUMERIC_BINS for each in self._cuts)

    def project(self, sums_C: Float64) -> Float64:
        """Return the gradient by the knots, ``(K, S)``, given that by the cells."""
        sums_KFG = self._by_block(sums_C)
        return _flat(self._first_FS.T @ sums_KFG @ self._second_GS)

    def at_knots(self, values_C: Float64) -> Float64:
        """Return the numbers of the cells in which knots lie, ``(K, S)``."""
        first, second = self._at
        return _flat(self._by_block(values_C)[:, first][:, :, second])

    def to_cells(self, knots_KS: Float64) -> Float64:
        """Return the number of each cell, ``(C,)``."""
        values_KFG = self._first_FS @ knots_KS.reshape(len(knots_KS), self._first_FS.shape[1], -1) @ self._second_GS.T
        if all(self._ordered) or not any(self._ordered):
            return values_KFG.ravel()
        values_KF = values_KFG[:, :, 0]
        return (values_KF.T if self._ordered[0] else values_KF).ravel()

    def curvature(self, curvature_C: Float64) -> Float64:
        """Return the curvature by the knots ``(K, S, S)``, given that by the cells, which is diagonal."""
        first, second = self._first_FS.shape[1], self._second_GS.shape[1]
        products_KXY = _products(self._first_FS).T @ self._by_block(curvature_C) @ _products(self._second_GS)
        matrix_KSTST = products_KXY.reshape(-1, first, first, second, second).transpose(0, 1, 3, 2, 4)
        return matrix_KSTST.reshape(-1, first * second, first * second)

    def curvature_bands(self, curvature_C: Float64) -> Float64:
        """Return the curvature by the knots of one row of a grid, and of that row and the next, ``(2, I, J, J)``.

        Rows further apart are not coupled, and the last one has no next.
        """
        hats_FI, (rows, columns) = self._first_FS, self.knots
        near_2FI = np.stack([hats_FI**2, np.pad(hats_FI[:, :-1] * hats_FI[:, 1:], ((0, 0), (0, 1)))])
        bands_2IJJ: Float64 = near_2FI.transpose(0, 2, 1) @ curvature_C.reshape(self.shape) @ _products(self._second_GS)
        return bands_2IJJ.reshape(2, rows, columns, columns)

    def _by_block(self, values_C: Float64) -> Float64:
        """Return the numbers of each block, ``(K, F, G)``."""
        if all(self._ordered):
            return values_C.reshape(1, *self.shape)
        if not any(self._ordered):
            return values_C.reshape(-1, 1, 1)
        values = values_C.reshape(self.shape)
        return (values.T if self._ordered[0] else values)[:, :, None]


def _flat(values_KST: Float64) -> Float64:
    return values_KST.reshape(len(values_KST), -1)


def _products(hats_FS: Float64) -> Float64:
    """Return the products of all hat functions ``(F, S * S)``."""
    return (hats_FS[:, :, None] * hats_FS[:, None, :]).reshape(len(hats_FS), -1)


@functools.cache
def hat_functions(cuts: Cuts, max_knots: int = KNOTS) -> Float64:
    """Return each knot's weight in each bin, ``(bins, knots)``: 1 in its own bin, falling to 0 at its neighbours'.

    Knots are spaced half by rank and half by score: most rows are in the middle, but effects change where scores do.
    Between knots, lines are straight over scores.

    Args:
        cuts: The first code of each bin but that of missing values.
        max_knots: Knots of more than ``NUMERIC_BINS`` bins, at most.

    >>> hat_functions((1, 64, 128)).tolist()
    [[1.0, 0.0, 0.0, 0.0], [0.0, 1.0, 0.0, 0.0], [0.0, 0.0, 1.0, 0.0], [0.0, 0.0, 0.0, 1.0]]
    >>> hat_functions(tuple(range(1, 256, 11)))[1:4, 1:3].round(2).tolist()
    [[1.0, 0.0], [0.5, 0.5], [0.0, 1.0]]
    """
    bins = len(cuts)
    if bins <= NUMERIC_BINS:
        return np.eye(bins + 1)
    edges = np.array([*cuts, SCORE_CODES])
    center = (edges[:-1] + edges[1:]) / 2
    position = np.arange(bins) / (bins - 1) + (center - center[0]) / (center[-1] - center[0])
    at = np.unique(np.abs(position[:, None] - np.linspace(0, 2, max_knots)).argmin(axis=0))
    hats = np.zeros((bins + 1, len(at) + 1))
    hats[0, 0] = 1
    hats[1:, 1:] = np.stack([np.interp(center, center[at], unit) for unit in np.eye(len(at))], axis=1)
    return hats
