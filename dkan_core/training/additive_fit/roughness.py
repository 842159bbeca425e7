"""Squared differences of neighbouring numbers of a term, as quadratic forms.

Shape suffixes: C codes or cells of a term, I and J bins of the sides of a pair.
"""

import functools
from collections.abc import Sequence

import numpy as np

from dkan_core.utils.arrays import Float64


def lower_bands(matrix_CC: Float64, width: int) -> Float64:
    """Return the diagonal of a symmetric matrix and so many below it, ``(width + 1, C)``, as scipy takes them.

    >>> lower_bands(np.array([[2.0, 1.0, 0.0], [1.0, 2.0, 1.0], [0.0, 1.0, 2.0]]), 1).tolist()
    [[2.0, 2.0, 2.0], [1.0, 1.0, 0.0]]
    """
    return np.stack([np.append(np.diag(matrix_CC, -band), np.zeros(band)) for band in range(width + 1)])


@functools.cache
def second_difference_bands(size: int) -> Float64:
    """Return the lower bands ``(3, size)`` of the matrix of the squared second differences of a curve's numbers."""
    differences = np.diff(np.eye(size), n=2, axis=0)
    return lower_bands(differences.T @ differences, 2)


def pair_roughness(
    shape: tuple[int, ...], ordered: Sequence[bool], differences: tuple[float, float] = (1.0, 0.0)
) -> Float64:
    """Return the matrix of the squared differences between a pair's neighbouring cells ``(C, C)``.

    Args:
        shape: Bins of both sides.
        ordered: Whether a side's bins have neighbours; those of a category are shrunk towards zero.
        differences: Weights of first and second differences.
    """
    first_II, second_JJ = (side_roughness(*each, differences) for each in zip(shape, ordered, strict=True))
    roughness_CC: Float64 = np.kron(first_II, np.eye(shape[1])) + np.kron(np.eye(shape[0]), second_JJ)
    return roughness_CC


def pair_roughness_bands(shape: tuple[int, ...], ordered: Sequence[bool]) -> Float64:
    """Return the diagonal of ``pair_roughness`` and the bands below it, up to the neighbour along the first side.

    >>> bands = pair_roughness_bands((4, 3), (True, True))
    >>> bool((bands == lower_bands(pair_roughness((4, 3), (True, True)), 3)).all())
    True
    """
    first_II, second_JJ = (side_roughness(*each) for each in zip(shape, ordered, strict=True))
    width = shape[1] if ordered[0] else 1
    bands = np.zeros((width + 1, *shape))
    bands[0] = np.add.outer(np.diag(first_II), np.diag(second_JJ))
    bands[1, :, :-1] += np.diag(second_JJ, -1)
    bands[width, :-1] += np.diag(first_II, -1)[:, None]
    return bands.reshape(width + 1, -1)


def side_roughness(size: int, ordered: bool, differences: tuple[float, float] = (1.0, 0.0)) -> Float64:
    """Return the matrix of the squared differences of neighbours; the first bin is that of missing values.

    >>> side_roughness(4, True).astype(int).tolist()
    [[1, 0, 0, 0], [0, 1, -1, 0], [0, -1, 2, -1], [0, 0, -1, 1]]
    """
    if not ordered:
        return np.eye(size)
    roughness = np.zeros((size, size))
    roughness[0, 0] = 1
    for order, count in enumerate(differences, start=1):
        if count and size - 1 > order:
            steps = np.diff(np.eye(size - 1), n=order, axis=0)
            roughness[1:, 1:] += count * (steps.T @ steps)
    return roughness
