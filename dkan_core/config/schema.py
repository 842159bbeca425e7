"""Schema of settings: pydantic checks the fields, and an error names the setting and the value found."""

import difflib
import functools
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from types import NoneType
from typing import Any, Literal, TypeVar, get_args, get_origin, get_type_hints

from annotated_types import Ge, Le
from pydantic import ConfigDict, ValidationError
from pydantic_core import ErrorDetails

from dkan_core.errors import ConfigError

KindT = TypeVar("KindT")
T = TypeVar("T")

# What a setting is about: the panels of ``--help``, in their order there.
Group = Literal["Data", "Model", "Training", "Distribution", "Server", "Batching", "Output"]

# The string under a field is its description. Every number has bounds, which refuse infinity and NaN.
STRICT = ConfigDict(extra="forbid", strict=True, allow_inf_nan=True, use_attribute_docstrings=True)

TYPE_WORDS = {int: "a whole number (int)", float: "a number (float)", bool: "true or false", str: "text"}
ITEM_WORDS = {int: "whole numbers", float: "numbers", str: "texts"}

OUT_OF_RANGE = ("greater_than", "greater_than_equal", "less_than", "less_than_equal", "finite_number")


@dataclass(frozen=True)
class Expected:
    """Metadata of a field: says in words what its bounds or its pattern ask for.

    Args:
        text: What the field must be.
        items: What its values are.
    """

    text: str
    items: str = "values"


@dataclass(frozen=True, kw_only=True)
class Form:
    """How a form of Kubeflow shows a setting, where that does not follow from the field: see ``forms.settings``."""

    name: str = ""
    """Name in the form. Default: that of the field."""

    text: str = ""
    """Its description there. Default: that of the field."""

    default: Any = None
    """Its default there. Default: that of the field."""

    none: Any = None
    """What leaves it open there, as None does in the field. Default: 0 or an empty text."""


# One field for ``like`` and ``init_from``: new data fit the weights of a model only in its encoding.
INITIAL_MODEL = Form(
    name="initial_model_uri",
    text="Earlier model to continue from: its encoding, labels and weights. Empty: start from scratch.",
)


def setting(default: T, group: Group | None = None, *, form: Form | bool = False, advanced: bool = False) -> T:
    """Return a field of a config.

    Args:
        default: Its default.
        group: The panel of ``--help`` that shows it.
        form: Whether forms of Kubeflow show it, or how they do.
        advanced: Whether only ``--help-all`` shows it: few runs need it.
    """
    shown = Form() if form is True else form
    return field(default=default, metadata={"group": group, "form": shown, "advanced": advanced})


def reports_config_errors(kind: type[KindT]) -> type[KindT]:
    """Make a pydantic dataclass raise ConfigError, and keep the values that it is given.

    A whole number in a field of floats stays one: 0 and 0.0 are different text, and so different digests, in the
    checkpoints and manifests that hold the settings.
    """
    # Around __init__, since pydantic has no hook that sees the values as they were given and the error as well.
    check: Callable[..., None] = kind.__init__

    @functools.wraps(check)
    def init(self: KindT, *positional: Any, **values: Any) -> None:
        if positional:
            raise TypeError(f"{kind.__name__} takes keyword arguments only, got {positional[0]!r}")
        try:
            check(self, **values)
        except ValidationError as error:
            raise _config_error(kind, values, error.errors(include_url=False)) from None
        # Pydantic turns 1 into 1.0 where a float is expected; runs and data are known by the text of their settings.
        for name, value in values.items():
            if isinstance(getattr(self, name), str):
                continue  # also where a number may stand for it
            if not _is_as_given(value, getattr(self, name)):
                wanted = _expected(field_types(kind)[name], _metadata(kind, name), "float_type", value)
                raise ConfigError(f"{name} must be {wanted}, got {value!r}")
            object.__setattr__(self, name, value)

    kind.__init__ = init  # type: ignore[assignment]
    return kind


def field_docs(kind: Any) -> dict[str, str]:
    """Return the string written under each field of a class of settings, or of the one that it extends."""
    kinds = [each for each in reversed(kind.__mro__) if "__pydantic_fields__" in vars(each)]
    described = [item for each in kinds for item in each.__pydantic_fields__.items()]
    return {name: each.description for name, each in described if each.description}


def field_types(kind: Any) -> dict[str, Any]:
    """Return the type of each field, without its bounds."""
    return _type_hints(kind)


_type_hints = functools.cache(get_type_hints)


def without_none(expected: Any) -> Any:
    """Return a type without "or None".

    >>> without_none(int | None), without_none(str)
    (<class 'int'>, <class 'str'>)
    """
    options = [option for option in get_args(expected) if option is not NoneType]
    return options[0] if NoneType in get_args(expected) else expected


def item_type(expected: Any) -> Any:
    """Return the type of the values of a field of several, or None for one of a single value.

    >>> item_type(tuple[int, ...] | None), item_type(int)
    (<class 'int'>, None)
    """
    plain = without_none(expected)
    return get_args(plain)[0] if get_origin(plain) is tuple else None


def unknown_setting(kind: type, names: list[str]) -> ConfigError:
    """Return the error for settings that a class does not have."""
    known, name = list(field_types(kind)), min(names)
    # There are some sixty: after a guess, their list would only hide it.
    hint = nearest(name, known) or f"; expected one of {', '.join(known)}"
    return ConfigError(f"unknown setting {name!r}{hint}")


def nearest(name: str, known: Iterable[str]) -> str:
    """Return a guess at what was meant, for a message; empty where no name is near.

    >>> nearest("data-url", ["data_uri", "label"]), nearest("Batch_scorng", ["batch-scoring"])
    (" (did you mean 'data_uri'?)", " (did you mean 'batch-scoring'?)")
    """
    plain = {each.replace("-", "_"): each for each in known}
    close = difflib.get_close_matches(name.lower().replace("-", "_"), plain, n=1, cutoff=0.7)
    return f" (did you mean {plain[close[0]]!r}?)" if close else ""


def named_once(items: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return the values of a JSON object by name; ValueError where a name is there twice, as in TOML."""
    found: dict[str, Any] = {}
    for name, value in items:
        if name in found:
            raise ValueError(f"{name} is given twice")
        found[name] = value
    return found


def _config_error(kind: type, values: Mapping[str, Any], errors: list[ErrorDetails]) -> ConfigError:
    """Return what is wrong first: a name that is not known, else in the order of the fields."""
    unknown = [str(error["loc"][0]) for error in errors if error["type"] == "unexpected_keyword_argument"]
    if unknown:
        return unknown_setting(kind, unknown)
    first = errors[0]
    if not first["loc"]:  # raised by __post_init__, which checks fields against each other
        cause = first["ctx"]["error"]
        assert isinstance(cause, ConfigError), cause
        return cause
    name = str(first["loc"][0])
    value = values.get(name)
    if first["type"] == "missing":
        return ConfigError(f"{name} is not given: {field_docs(kind)[name]}")
    metadata = _metadata(kind, name)
    words = next((each for each in metadata if isinstance(each, Expected)), None)
    if first["type"] == "too_long":
        most, items = first["ctx"]["max_length"], words.items if words else "values"
        return ConfigError(f"{name} must have at most {most} {items}, got {len(values[name])}")
    wanted = _expected(field_types(kind)[name], metadata, first["type"], value)
    return ConfigError(f"{name} must be {wanted}, got {_found(value, first)}")


def _metadata(kind: Any, name: str) -> list[Any]:
    found: list[Any] = kind.__pydantic_fields__[name].metadata
    return found


def _is_as_given(given: Any, checked: Any) -> bool:
    """Return whether pydantic took a value for what it is; a whole number may stand for a float.

    Where a float is expected it takes whatever has ``__float__``, such as decimals and NumPy's float32 and bool, which
    no JSON file of a run could hold.
    """
    if isinstance(given, tuple):
        return all(map(_is_as_given, given, checked))
    return isinstance(given, (type(checked), int))


def _expected(expected: Any, metadata: list[Any], error: str, value: Any) -> str:
    """Return what a field asks for: its own words, its bounds, or its type."""
    too_large = error == "float_type" and type(value) is int
    out_of_range = error in OUT_OF_RANGE or too_large
    words = [each.text for each in metadata if isinstance(each, Expected)]
    if words and (out_of_range or error == "string_pattern_mismatch" or item_type(expected) is None):
        return words[0]
    if out_of_range:
        low = next(each.ge for each in metadata if isinstance(each, Ge))
        high = next(each.le for each in metadata if isinstance(each, Le))
        infinite = isinstance(value, float) and math.isinf(value)
        return "finite" if infinite else f"from {_short(low)} to {_short(high)}"
    if get_origin(expected) is Literal:
        return f"one of {', '.join(get_args(expected))}"
    plain = without_none(expected)
    if item := ITEM_WORDS.get(item_type(expected)):
        return f"a tuple of {item} (a list in a file)"
    return TYPE_WORDS.get(plain, plain.__name__ if isinstance(plain, type) else str(plain))


def _short(number: Any) -> str:
    """Return a bound as it is read best: a whole number with commas, others in as few digits as tell them apart."""
    if isinstance(number, int):
        return f"{number:,}"
    return f"{number:g}" if float(f"{number:g}") == number else str(number)


def _found(value: Any, error: ErrorDetails) -> str:
    if error["type"] != "tuple_type":
        return repr(value)
    if isinstance(value, list):
        return f"{value!r}; write {tuple(value)!r}"
    lone = isinstance(value, str | int | float)
    return f"{value!r}; write ({value!r},), or [{value!r}] in a file" if lone else repr(value)
