"""Checks that the settings of every command share."""

from dataclasses import fields
from typing import Any, Literal, get_args, get_origin

from dkan_core.errors import ConfigError


def check_bounds(config: Any, bounds: tuple[tuple[str, float, float], ...]) -> None:
    """Raise ConfigError where a number is outside of its bounds (name, lowest, highest); None is in any."""
    for name, low, high in bounds:
        value = getattr(config, name)
        if value is not None and not low <= value <= high:
            raise ConfigError(f"{name} must be from {low:g} to {high:g}, got {value}")


def element_type(expected: Any) -> type:
    """Return the type of the values of a field of several."""
    return int if "int" in str(expected) else float if "float" in str(expected) else str


def check_types(config: Any) -> None:
    """Raise ConfigError where a value is plainly of another type than its field."""
    for field in fields(config):
        _check_type(field.name, getattr(config, field.name), field.type)


def _check_type(name: str, value: object, expected: Any) -> None:
    """Raise ConfigError when ``value`` is none of the choices, or plainly of another type than the annotation."""
    text = str(expected)
    if value is None:
        fits = "None" in text
    elif get_origin(expected) is Literal:
        fits = value in get_args(expected)
    elif text.startswith("tuple"):
        allowed = (int, float) if element_type(expected) is float else (element_type(expected),)
        fits = isinstance(value, tuple) and all(type(item) in allowed for item in value)
    elif "bool" in text:
        fits = isinstance(value, bool)
    elif "int" in text or "float" in text:
        allowed = (int, float) if "float" in text else (int,)
        fits = isinstance(value, allowed) and not isinstance(value, bool) and abs(value) != float("inf")
    else:
        fits = isinstance(value, str)
    if not fits:
        wanted = expected.__name__ if expected in (int, str, float, bool) else text
        wanted = "finite" if value in (float("inf"), -float("inf")) else wanted
        wanted = f"one of {', '.join(get_args(expected))}" if get_origin(expected) is Literal else wanted
        hint = f"; write ({value!r},)" if isinstance(value, str) and text.startswith("tuple") else ""
        raise ConfigError(f"{name} must be {wanted}, got {value!r}{hint}")
