"""Where the code of a numeric column changes, found once: a value's code is then a search among 254 numbers at most.

The code never falls where the value rises, so that edges alone decide it. They are found with ``normal_scores`` and
``quantize`` themselves, and give the same codes to the bit.
"""

from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt

from dkan_core.data.encoding.preprocessor import SCORE_LIMIT, STEPS, NumericFeature, normal_scores, quantize
from dkan_core.utils.arrays import Float64, Int64, UInt8

# First distance, in floats, of the bracket around a guessed edge, and the next one: near 0, floats are dense.
GUESS_IS_OFF_BY = (2, 1 << 20)


@dataclass(frozen=True)
class CodeEdges:
    """How a column's values are coded, each by one search."""

    edges: npt.NDArray[Any]
    """Rising, of the type of the values (E,), at most 254."""

    codes: UInt8
    """Of the values below the first edge, and of those from each edge on (E + 1,)."""


def code_edges(feature: NumericFeature, kind: np.dtype[Any]) -> CodeEdges | None:
    """Return where the codes of values change, or None where arithmetic among the knots overflows.

    Args:
        feature: The column.
        kind: Type of the values, float32 or float64.

    """
    knots, scores = feature.curve
    with np.errstate(over="ignore"):
        widths = np.diff(knots)
        slopes = np.diff(scores) / widths
    if not (np.isfinite(widths).all() and np.isfinite(slopes).all()):
        return None
    of_knots = quantize(scores.astype(np.float32), "uint8")
    lowest, highest = int(of_knots[0]), int(of_knots[-1])
    steps = np.arange(lowest + 1, highest + 1)
    # Each code begins between knot i - 1 (excluded) and knot i (included).
    after = np.searchsorted(of_knots, steps)
    guess = knots[after - 1] + (_score_edges()[steps - 2] - scores[after - 1]) / slopes[after - 1]

    def is_reached(ordinals: Int64) -> npt.NDArray[np.bool_]:
        values = _from_ordinals(ordinals, kind).astype(np.float64)
        return quantize(normal_scores(values, feature), "uint8") >= steps

    below, reached = _floats_beside(knots[after - 1], knots[after], kind)
    ordinals = _first_reached(is_reached, below, reached, _ordinals(guess, kind))
    edges, counts = np.unique(_from_ordinals(ordinals, kind), return_counts=True)
    codes = np.concatenate([[lowest], lowest + np.cumsum(counts)]).astype(np.uint8)
    finite = int(np.isfinite(edges).sum())  # a knot may lie beyond what a float32 can be
    return CodeEdges(edges[:finite], codes[: finite + 1])


@cache
def _score_edges() -> Float64:
    """Return the lowest score of each code from 2 on."""
    kind, steps = np.dtype(np.float64), np.arange(2, STEPS + 2)
    # The scores halfway between steps, before rounding to float32.
    levels = (steps - 1.5) * (2 * SCORE_LIMIT / STEPS) - SCORE_LIMIT

    def is_reached(ordinals: Int64) -> npt.NDArray[np.bool_]:
        return quantize(_from_ordinals(ordinals, kind).astype(np.float32), "uint8") >= steps

    width = SCORE_LIMIT / STEPS
    below, reached = _ordinals(levels - width, kind), _ordinals(levels + width, kind)
    return _from_ordinals(_first_reached(is_reached, below, reached, _ordinals(levels, kind)), kind)


def _first_reached(is_reached: Any, below: Int64, reached: Int64, guess: Int64) -> Int64:
    """Return the first ordinal of each search at which something is reached, by bisection around a guess."""
    for off_by in GUESS_IS_OFF_BY:
        # Stop once all brackets are narrow, which is usually so after the first round.
        if (reached - 2 * GUESS_IS_OFF_BY[0] <= below).all():
            break
        for ordinals in (guess - off_by, guess + off_by):
            inside = (below < ordinals) & (ordinals < reached)
            found = is_reached(np.where(inside, ordinals, reached))
            reached = np.where(inside & found, ordinals, reached)
            below = np.where(inside & ~found, ordinals, below)
    # Compared by adding 1 and not by subtraction, which may overflow int64.
    while (apart := below + 1 < reached).any():
        middle = np.where(apart, (below >> 1) + (reached >> 1) + (below & reached & 1), reached)
        found = is_reached(middle)
        reached, below = np.where(found, middle, reached), np.where(found, below, middle)
    return reached


def _floats_beside(low: Float64, high: Float64, kind: np.dtype[Any]) -> tuple[Int64, Int64]:
    """Return the ordinals of the last floats up to ``low`` and of the first ones from ``high`` on."""
    with np.errstate(over="ignore"):
        below, above = low.astype(kind), high.astype(kind)
        below = np.where(below > low, np.nextafter(below, kind.type(-np.inf)), below)
        above = np.where(above < high, np.nextafter(above, kind.type(np.inf)), above)
    return _ordinals(below, kind), _ordinals(above, kind)


# All floats of a type in their order, numbered: the bits of positive ones, and those of negative ones turned around.
def _ordinals(values: npt.NDArray[Any], kind: np.dtype[Any]) -> Int64:
    with np.errstate(over="ignore"):
        bits = values.astype(kind).view(f"i{kind.itemsize}").astype(np.int64)
    return np.where(bits < 0, np.int64(np.iinfo(f"i{kind.itemsize}").min) - bits - 1, bits)


def _from_ordinals(ordinals: Int64, kind: np.dtype[Any]) -> npt.NDArray[Any]:
    bits = np.where(ordinals < 0, np.int64(np.iinfo(f"i{kind.itemsize}").min) - ordinals - 1, ordinals)
    return bits.astype(f"i{kind.itemsize}").view(kind)
