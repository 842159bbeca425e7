"""Reading JSON that may be damaged or tampered with: parsed, bounded and checked against a schema before it is used.

Every file format has its schema in the module that owns the format; this one converts pydantic's errors to
errors that name the file and the key.
"""

import json
from typing import Any, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError

from dkan_core.errors import DataError, UserError
from dkan_core.utils.messages import shown


class Schema(BaseModel):
    """Base of a file's schema: unknown keys, NaN and infinity, and values of another type are refused."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, allow_inf_nan=False)


SchemaT = TypeVar("SchemaT", bound=BaseModel)


def parse_json(text: str | bytes, where: str) -> Any:
    """Return what JSON text holds.

    Args:
        text: What was read; bytes must be UTF-8.
        where: File that messages name.

    Raises:
        DataError: The text is not JSON.

    >>> parse_json('{"rows": 1}', "manifest.json")
    {'rows': 1}
    >>> parse_json("[" * 100_000, "manifest.json")
    Traceback (most recent call last):
    dkan_core.errors.DataError: manifest.json: is nested too deeply to be read
    """
    try:
        return json.loads(text if isinstance(text, str) else text.decode())
    except RecursionError:
        raise DataError(f"{where}: is nested too deeply to be read") from None
    except ValueError as problem:
        raise DataError(f"{where}: is not valid JSON ({problem})") from None


def read_json(schema: type[SchemaT], text: str | bytes, where: str, *, error: type[UserError] = DataError) -> SchemaT:
    """Return JSON text as a schema's model.

    Args:
        schema: What is expected.
        text: What was read; bytes must be UTF-8.
        where: File that messages name.
        error: Raised with the first key that is wrong, what was expected there, and what was found.

    >>> class Size(Schema):
    ...     rows: tuple[int, ...]
    >>> read_json(Size, '{"rows": [1, 2]}', "manifest.json").rows
    (1, 2)
    >>> read_json(Size, '{"rows": [1, "many"]}', "manifest.json")
    Traceback (most recent call last):
    dkan_core.errors.DataError: manifest.json: rows.1: Input should be a valid integer, got 'many'
    """
    try:
        return schema.model_validate_json(text)
    except ValidationError as problem:
        raise error(f"{where}: {_first_problem(problem)}") from None


def _first_problem(problem: ValidationError) -> str:
    """Return the first wrong key, what was expected there, and what was found."""
    first = problem.errors(include_url=False)[0]
    key = ".".join(map(str, first["loc"]))
    if first["type"] == "value_error":  # From our own validator, whose message says what was found.
        return ": ".join(filter(None, (key, str(first["ctx"]["error"]))))
    found = "" if first["type"] in ("missing", "json_invalid") else f", got {shown(first['input'])}"
    return ": ".join(filter(None, (key, first["msg"]))) + found
