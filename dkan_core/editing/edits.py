"""The possible edits of a term, from a TOML file or a Python caller."""

import json
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, Self

import numpy as np
from pydantic import BeforeValidator, Field, model_validator

from dkan_core.errors import ConfigError
from dkan_core.utils.messages import shown
from dkan_core.utils.schemas import Schema, read_json

Action = Literal["monotone", "clip", "flatten", "set", "remove", "scale", "center"]

# Fields of ``Edit`` that each action takes; of the fields in one line, one must be given.
NEEDS: dict[str, tuple[tuple[str, ...], ...]] = {
    "monotone": (("direction",),),
    "clip": (("low", "high"),),
    "flatten": (("start", "stop", "values"),),
    "set": (("to",), ("start", "stop", "values")),
    "remove": (),
    "scale": (("factor",),),
    "center": (),
}


def _integer_as_text(value: object) -> object:
    return str(value) if type(value) is int else value


class Edit(Schema):
    """A change of one term."""

    term: Annotated[str, Field(min_length=1)]
    """A column, or a pair as ``dkan explain`` calls it: "month x hour"."""

    action: Action
    """"monotone": the nearest curve that never falls or rises, weighted by the training rows; "clip": limited to the
    range from ``low`` to ``high``; "flatten": one number, the weighted mean, from ``start`` to ``stop`` or over
    ``values``; "set": the number ``to`` there; "remove": 0 everywhere; "scale": times ``factor``; "center": shifted to
    a mean of 0, and with it the mean score."""

    label: str | None = None
    """The one label to change. Default: all."""

    direction: Literal["+", "-"] | None = None
    low: float | None = None
    """In log-odds."""

    high: float | None = None
    start: float | str | None = None
    """In the column's unit, a date or time of ISO 8601, or a weekday (Mon to Sun); open where it is left out."""

    stop: float | str | None = None
    values: tuple[Annotated[str, BeforeValidator(_integer_as_text)], ...] | None = None
    """Categories, integers among them as such or as text, or weekdays; "missing" stands for rows without a value."""

    to: float | None = None
    """In log-odds."""

    factor: float | None = None
    note: str = ""
    """Why, for the model card."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        allowed = {name for names in NEEDS[self.action] for name in names}
        for names in NEEDS[self.action]:
            if all(getattr(self, name) is None for name in names):
                raise ValueError(f"{self.action} needs {' or '.join(names)}")
        told = ("direction", "low", "high", "start", "stop", "values", "to", "factor")
        odd = [name for name in told if getattr(self, name) is not None and name not in allowed]
        if odd:
            raise ValueError(f"{self.action} takes no {odd[0]}")
        if self.low is not None and self.high is not None and self.low > self.high:
            raise ValueError(f"{self.low:g} is above {self.high:g}")
        if self.values is not None and not self.values:
            raise ValueError("values: there is none; expected at least one category")
        if self.values is not None and (self.start is not None or self.stop is not None):
            raise ValueError(f"{self.action} takes values or a range, not both")
        return self

    def to_dict(self) -> dict[str, Any]:
        """Return the edit as it was given, in the form that a model's metrics store."""
        return self.model_dump(mode="json", exclude_defaults=True)


def read_edits(edits: str | Path | Sequence[Edit | Mapping[str, Any]]) -> tuple[Edit, ...]:
    """Return edits in their order.

    Args:
        edits: A TOML file of ``[[edit]]`` tables, or the edits themselves.

    Raises:
        ConfigError: The file cannot be read, or an edit is not what the schema says.
    """
    if not isinstance(edits, str | Path):
        if isinstance(edits, Mapping) or not isinstance(edits, Iterable):
            raise ConfigError(f"edits: expected a list of edits, got one {type(edits).__name__}")
        return _checked([each.to_dict() if isinstance(each, Edit) else each for each in edits], "edits")
    try:
        text = Path(edits).read_text(encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"{edits}: cannot be read ({error.strerror or error})") from error
    except UnicodeDecodeError:
        raise ConfigError(f"{edits}: is not text; expected a TOML file of edits") from None
    try:
        parsed = tomllib.loads(text)
    except RecursionError:
        raise ConfigError(f"{edits}: is nested too deeply to be read") from None
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{edits}: is not valid TOML ({error})") from None
    tables = parsed.get("edit")
    if set(parsed) != {"edit"} or not isinstance(tables, list) or not all(isinstance(each, dict) for each in tables):
        found = f"it has {', '.join(parsed)}" if parsed else "it is empty"
        found = "it has one [edit]; write [[edit]]" if isinstance(tables, dict) else found
        raise ConfigError(f"{edits}: expected [[edit]] tables, each with a term and an action; {found}")
    return _checked(tables, str(edits))


def _checked(plain: Sequence[Any], where: str) -> tuple[Edit, ...]:
    """Return edits; messages count them from 1."""
    if not plain:
        raise ConfigError(f"{where}: there is no edit")
    known, found = [*Edit.model_fields], []
    for number, each in enumerate(plain, start=1):
        if not isinstance(each, Mapping):
            raise ConfigError(f"{where}: edit {number}: expected a term, an action and so on, got {shown(each)}")
        odd = [name for name in each if name not in known]
        if odd:
            raise ConfigError(f"{where}: edit {number}: unknown {odd[0]!r}; expected some of {', '.join(known)}")
        found.append(
            read_json(Edit, json.dumps(dict(each), default=_plain), f"{where}: edit {number}", error=ConfigError)
        )
    return tuple(found)


def _plain(value: object) -> Any:
    """Return a number or an array of NumPy as JSON has it, and anything else as text: times as in ISO 8601."""
    if isinstance(value, np.datetime64):
        return str(value)
    return value.tolist() if isinstance(value, np.generic | np.ndarray) else str(value)
