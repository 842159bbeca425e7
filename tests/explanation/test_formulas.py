"""Formulas of known curves are found, in the digits that are written, and no longer one than the curve needs."""

import re
from collections.abc import Callable

import numpy as np
import pytest

from dkan_core.explanation.formulas import find_formula
from dkan_core.utils.arrays import Float64

AGES = np.linspace(17, 90, 40)
HOURS = np.arange(24.0)
MONEY = np.geomspace(100, 1e6, 40)
YEARS = np.arange(2000.0, 2025.0)


def evaluated(text: str, x: Float64) -> Float64:
    """Read a formula as a person would."""
    code = text.replace("−", "-").replace("·", "*").replace("²", "**2").replace("ln x", "ln(x)")
    code = re.sub(r"(\d),(\d{3})", r"\1\2", code).replace("2π", "2*pi*")
    names = {"ln": np.log, "max": np.maximum, "sin": np.sin, "pi": np.pi, "σ": lambda t: 1 / (1 + np.exp(-t)), "x": x}
    found: Float64 = eval(code, {"__builtins__": {}}, names)
    return found


@pytest.mark.parametrize(
    ("form", "x", "curve", "part"),
    [
        ("line", AGES, lambda x: 0.031 * x, "0.031·(x − "),
        ("line", YEARS, lambda x: -0.2 * x, "−0.2·(x − 2012)"),
        ("quadratic", AGES, lambda x: -0.002 * (x - 50) ** 2, "·(x − 50)²"),
        ("log", MONEY, lambda x: 0.8 * np.log(x), "0.8·ln x"),
        ("log", MONEY - 100, lambda x: 0.8 * np.log1p(x), "0.8·ln(1 + x)"),
        ("hinge", YEARS, lambda x: 0.7 * np.maximum(0, x - 2015), "0.7·max(0, x − 2015)"),
        ("hinge", AGES, lambda x: 0.05 * np.maximum(0, 30 - x), "·max(0, 29.5 − x)"),
        ("logistic", AGES, lambda x: 2 / (1 + np.exp((45 - x) / 4)), "·σ((x − 4"),
        ("periodic", HOURS, lambda x: 0.5 * np.sin(2 * np.pi * (x - 6) / 24), "0.5·sin(2π(x − 6) / 23.9)"),
    ],
)
def test_known_curves_get_their_form_in_few_digits(
    form: str, x: Float64, curve: Callable[[Float64], Float64], part: str
) -> None:
    effect = curve(x) - curve(x).mean()
    found = find_formula(x, effect, np.ones(len(x)))
    assert found is not None and found.form == form and part in found.text
    assert found.r2 > 0.98
    # R² is that of the text, not of parameters with more digits.
    shown = evaluated(found.text, x)
    assert found.r2 == pytest.approx(1 - np.square(effect - shown).sum() / np.square(effect).sum(), abs=1e-9)
    assert max(map(len, re.findall(r"[\d.]+", found.text.replace(",", "")))) <= 7


def test_weights_say_which_part_of_a_curve_counts() -> None:
    effect = np.where(AGES < 50, 0.1 * AGES, 5 + 3 * np.sin(AGES))
    found = find_formula(AGES, effect, np.where(AGES < 50, 1.0, 1e-9))
    assert found is not None and found.form == "line" and found.text.startswith("0.1·")


def test_a_bend_within_the_error_of_the_curve_earns_no_parameter() -> None:
    effect = 0.05 * AGES + 0.3 * np.tanh((AGES - 50) / 5)
    exact, blurred = (find_formula(AGES, effect, np.ones(40), np.full(40, error)) for error in (0.0, 0.5))
    assert exact is not None and blurred is not None
    assert exact.form != "line" and blurred.form == "line"


def test_what_has_no_shape_has_no_formula() -> None:
    assert find_formula(AGES, np.full(40, 0.001), np.ones(40)) is None
    assert find_formula(np.array([0.0, 1.0, np.nan]), np.array([-1.0, 1.0, 5.0]), np.ones(3)) is None
    few = np.append(np.arange(5.0), np.nan)
    assert find_formula(few, np.append(np.arange(5.0), 99.0), np.ones(6)) is not None
