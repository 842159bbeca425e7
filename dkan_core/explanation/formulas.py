"""A short formula for a curve, in the unit of its column: a caption that a person can remember, never the curve itself.

Each form is fitted by least squares, weighted by the distribution of the training rows. Parameters inside a form (where
a hinge bends, how long a period is) are searched over a grid, the others follow in closed form (variable projection:
Golub and Pereyra 1973). The form is chosen by the Bayesian information criterion (Schwarz 1978), so that a longer one
has to earn its parameters. What is written is rounded first and scored then: R² is that of the digits that are shown.

Shape suffixes: P points of the curve, C candidates of a form.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from dkan_core.utils.arrays import Float64

# With fewer points, a reader needs no formula, and four parameters fit four points exactly.
LEAST_POINTS = 5
# In log-odds: a curve with a smaller spread has no shape worth a formula.
LEAST_SPREAD = 0.01
# Share of the curve's variance. A reader does not see a smaller misfit, so it must not justify a longer form.
UNSEEN_MISFIT = 0.01
# Numbers of positions of a bend or a middle, of steepnesses, and of periods that are tried.
POSITIONS, WIDTHS, PERIODS = 65, 10, 72
# Steps per axis that positions and heights are rounded to: as exact as a reader can see in the figure.
POSITION_STEPS, HEIGHT_STEPS = 200, 50
# Range of the values, of which a fit sums fourth powers. Beyond it, no written number would mean anything to a reader.
LEAST_RANGE, LARGEST_RANGE = 1e-60, 1e60
# Share of the axis. A shorter period would have fewer than six of forty points; a longer one would not be seen once.
SHORTEST_PERIOD, LONGEST_PERIOD = 0.15, 1.1

Shape = Callable[[Float64], Float64]
"""The part of a formula that its height is multiplied with."""


@dataclass(frozen=True, kw_only=True)
class Formula:
    """A short formula for a curve."""

    form: str
    """line, quadratic, log, hinge, logistic or periodic."""

    text: str
    """The formula, with x for the column's value."""

    r2: float
    """Share of the curve's variance over the training rows that it accounts for."""


@dataclass(frozen=True)
class _Candidate:
    """A form with its inner parameters, as they are written."""

    form: str
    shape: Shape
    text: str
    parameters: int


def find_formula(
    values_P: Float64, effect_P: Float64, weights_P: Float64, error_P: Float64 | None = None
) -> Formula | None:
    """Return the formula that describes a curve best for its length; None where there is no shape to describe.

    Args:
        values_P: The column's values; points without one (NaN) are left out.
        effect_P: The curve.
        weights_P: Share of the training rows at each point.
        error_P: Standard errors of the curve, where they are known: a bend within them earns no parameter.
    """
    kept_P = np.isfinite(values_P) & (weights_P > 0)
    x_P, y_P, w_P = values_P[kept_P], effect_P[kept_P], weights_P[kept_P]
    if len(x_P) < LEAST_POINTS or not LEAST_RANGE < max(np.ptp(x_P), np.abs(x_P).max()) < LARGEST_RANGE:
        return None
    w_P = w_P / w_P.sum()
    spread = float(np.sqrt(w_P @ np.square(y_P - w_P @ y_P)))
    if spread < LEAST_SPREAD:
        return None
    # The effective number of points of equal weight (Kish), as points with hardly any rows count little.
    points = 1 / float(np.square(w_P).sum())
    open_share = 0.0 if error_P is None else float(w_P @ np.square(error_P[kept_P])) / spread**2
    unseen = max(UNSEEN_MISFIT, open_share)
    fitted = [_fit(candidate, x_P, y_P, w_P, spread) for candidate in _candidates(x_P, y_P, w_P)]
    costs = [
        points * math.log(1 - formula.r2 + unseen) + parameters * math.log(max(points, 2.0))
        for formula, parameters in fitted
    ]
    return fitted[int(np.argmin(costs))][0]


def _candidates(x_P: Float64, y_P: Float64, w_P: Float64) -> list[_Candidate]:
    """Return each form with the inner parameters that fit best."""
    low, high = float(x_P.min()), float(x_P.max())
    step = 10.0 ** math.floor(math.log10((high - low) / POSITION_STEPS))
    positions = np.unique(np.round(np.linspace(low, high, POSITIONS) / step) * step)
    inner = positions[1:-1]
    found = [_line(x_P, w_P, step)]
    if low > -1:
        found.append(_log(low))
    found.append(_quadratic(x_P, y_P, w_P, step))
    hinges = [_hinge(float(position), up) for position in inner for up in (True, False)]
    found.append(_best(hinges, x_P, y_P, w_P))
    widths = [_significant(width) for width in np.geomspace((high - low) / 100, (high - low) / 3, WIDTHS)]
    found.append(
        _best([_logistic(float(position), width) for position in inner[::2] for width in widths], x_P, y_P, w_P)
    )
    found.append(_sine(x_P, y_P, w_P, step))
    return found


def _line(x_P: Float64, w_P: Float64, step: float) -> _Candidate:
    middle = _rounded(float(w_P @ x_P), step)
    return _Candidate("line", lambda x: x - middle, _within(middle), 2)


def _log(low: float) -> _Candidate:
    if low > 0:
        return _Candidate("log", np.log, "ln x", 2)
    return _Candidate("log", np.log1p, "ln(1 + x)", 2)


def _quadratic(x_P: Float64, y_P: Float64, w_P: Float64, step: float) -> _Candidate:
    """Return the parabola that fits best, by the position of its top or bottom."""
    middle, span = float(w_P @ x_P), float(np.ptp(x_P))
    root_P, centred_P = np.sqrt(w_P), (x_P - middle) / span
    design_P3 = root_P[:, None] * np.stack([np.ones_like(x_P), centred_P, np.square(centred_P)], axis=1)
    (_, slope, bend), *_ = np.linalg.lstsq(design_P3, root_P * y_P, rcond=None)
    # With its top or bottom farther off, a parabola cannot be told from a line.
    aside = float(np.clip(-slope / (2 * bend) if bend else np.inf, -2.0, 2.0))
    position = _rounded(middle + aside * span, step)
    return _Candidate("quadratic", lambda x: np.square(x - position), f"{_within(position)}²", 3)


def _hinge(position: float, up: bool) -> _Candidate:
    if up:
        return _Candidate("hinge", lambda x: np.maximum(0.0, x - position), f"max(0, {_less(position)})", 3)
    inside = f"{_exact(position)} − x".replace("-", "−") if position else "−x"
    return _Candidate("hinge", lambda x: np.maximum(0.0, position - x), f"max(0, {inside})", 3)


def _logistic(position: float, width: float) -> _Candidate:
    def shape(x: Float64) -> Float64:
        found: Float64 = 1 / (1 + np.exp(((position - x) / width).clip(-500, 500)))
        return found

    return _Candidate("logistic", shape, f"σ({_within(position)} / {_exact(width)})", 4)


def _sine(x_P: Float64, y_P: Float64, w_P: Float64, step: float) -> _Candidate:
    """Return the sine that fits best; where it starts follows from its parts without and with a quarter turn."""
    span = float(np.ptp(x_P))
    best = (np.inf, 1.0, 0.0)
    root_P = np.sqrt(w_P)
    for length in np.geomspace(SHORTEST_PERIOD * span, LONGEST_PERIOD * span, PERIODS):
        period = _rounded(float(length), step)
        turns_P = 2 * np.pi * x_P / period
        design_P3 = root_P[:, None] * np.stack([np.sin(turns_P), np.cos(turns_P), np.ones_like(x_P)], axis=1)
        (sine, cosine, level), *_ = np.linalg.lstsq(design_P3, root_P * y_P, rcond=None)
        rest = float(np.square(root_P * y_P - design_P3 @ (sine, cosine, level)).sum())
        # Within half a period, as the height may be negative.
        start = -math.atan2(cosine, sine) / (2 * np.pi) * period % (period / 2)
        best = min(best, (rest, period, _rounded(start, 10.0 ** math.floor(math.log10(period / 50)))))
    _, period, start = best
    text = f"sin(2π{_within(start)} / {_exact(period)})"
    return _Candidate("periodic", lambda x: np.sin(2 * np.pi * (x - start) / period), text, 4)


def _best(candidates: list[_Candidate], x_P: Float64, y_P: Float64, w_P: Float64) -> _Candidate:
    """Return the candidate with the smallest weighted squares; the first one of several."""
    shapes_CP = np.stack([candidate.shape(x_P) for candidate in candidates])
    centred_CP = shapes_CP - (shapes_CP @ w_P)[:, None]
    shared_C = centred_CP @ (w_P * (y_P - w_P @ y_P))
    own_C = np.square(centred_CP) @ w_P
    gain_C = np.divide(np.square(shared_C), own_C, out=np.zeros_like(own_C), where=own_C > 1e-12 * own_C.max())
    return candidates[int(np.argmax(gain_C))]


def _fit(candidate: _Candidate, x_P: Float64, y_P: Float64, w_P: Float64, spread: float) -> tuple[Formula, int]:
    """Return the formula with the digits that are written, and how many parameters it has."""
    shape_P = candidate.shape(x_P)
    centred_P = shape_P - w_P @ shape_P
    own = float(w_P @ np.square(centred_P))
    height = _significant(float(w_P @ (centred_P * y_P)) / own if own > 0 else 0.0)
    shift = _rounded(float(w_P @ (y_P - height * shape_P)), 10.0 ** math.floor(math.log10(spread / HEIGHT_STEPS)))
    rest = float(w_P @ np.square(y_P - height * shape_P - shift))
    factor = f"{_exact(abs(height))}·"
    text = f"{'−' if height < 0 else ''}{'' if factor == '1·' else factor}{candidate.text}"
    if shift:
        text += f" {'−' if shift < 0 else '+'} {_exact(abs(shift))}"
    r2 = 1 - rest / spread**2
    return Formula(form=candidate.form, text=text, r2=r2), candidate.parameters


def _less(position: float) -> str:
    """Write x less a position.

    >>> _less(3.5), _less(-2.0), _less(0.0)
    ('x − 3.5', 'x + 2', 'x')
    """
    if not position:
        return "x"
    return f"x {'−' if position > 0 else '+'} {_exact(abs(position))}"


def _within(position: float) -> str:
    """Write x less a position, so that it can be multiplied.

    >>> _within(3.5), _within(0.0)
    ('(x − 3.5)', 'x')
    """
    return f"({_less(position)})" if position else "x"


def _exact(value: float) -> str:
    """Write a number with all its digits: those of a position were chosen by what can be seen on the axis.

    >>> _exact(2013.4), _exact(0.1 + 0.2), _exact(1234567.0)
    ('2013.4', '0.3', '1,234,567')
    """
    text = f"{value:.10g}"
    return f"{value:,.0f}" if value >= 10_000 and value == round(value) else text


def _rounded(value: float, step: float) -> float:
    """Return the nearest multiple of a step that is a power of ten.

    >>> _rounded(2013.37, 0.1), _rounded(-0.04, 0.1)
    (2013.4, 0.0)
    """
    return float(f"{round(value / step) * step:.10g}") + 0.0


def _significant(value: float) -> float:
    """Return a number with two digits, or three where the first one is a 1.

    >>> _significant(0.1234), _significant(0.876), _significant(0.0)
    (0.123, 0.88, 0.0)
    """
    return float(f"{value:.3g}" if f"{abs(value):e}".startswith("1") else f"{value:.2g}")
