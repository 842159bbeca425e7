"""Settings as files, forms and the command line hold them, and the help text of each."""

import ast
import inspect
import json
import textwrap
import tomllib
from collections.abc import Mapping
from dataclasses import fields
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

from dkan_core.config.checks import element_type
from dkan_core.config.prepare import PrepareConfig
from dkan_core.config.train import TrainConfig
from dkan_core.errors import ConfigError

ConfigT = TypeVar("ConfigT", PrepareConfig, TrainConfig)


def build_config(kind: type[ConfigT], settings: Mapping[str, Any]) -> ConfigT:
    """Build a config from plain settings, as a file or a form holds them; an unknown key raises ConfigError.

    Several values are a list, or text separated by commas.

    >>> build_config(TrainConfig, {"hidden": [32, 16]}).hidden
    (32, 16)
    >>> build_config(TrainConfig, {"hidden": [32.0], "epochs": 3.0}).epochs
    3
    >>> build_config(PrepareConfig, {"label": "bought, returned"}).label
    ('bought', 'returned')
    """
    known = {field.name: field for field in fields(kind)}
    unknown = sorted(set(settings) - set(known))
    if unknown:
        raise ConfigError(f"unknown setting {unknown[0]!r}; expected one of {', '.join(known)}")
    return kind(**{key: _listed(key, value, known[key].type) for key, value in settings.items()})


def _listed(name: str, value: Any, expected: Any) -> Any:
    """Return a list, or text separated by commas or line ends, as the tuple that a field of several values takes.

    Forms know one kind of number: 3.0 is taken where a whole number is expected.
    """
    if "int" in str(expected):
        value = [_whole(item) for item in value] if isinstance(value, list) else _whole(value)
    if not str(expected).startswith("tuple"):
        return value
    if isinstance(value, str):
        value = [part.strip() for part in value.replace("\n", ",").split(",") if part.strip()]
        number = element_type(expected)
        try:
            value = [number(part) for part in value]
        except ValueError:
            what = "whole numbers" if number is int else "numbers"
            raise ConfigError(f"{name} must be {what} separated by commas, got {value}") from None
    return tuple(value) if isinstance(value, list) else value


def _whole(value: Any) -> Any:
    return int(value) if isinstance(value, float) and value.is_integer() else value


def read_settings(path: str | Path) -> dict[str, Any]:
    """Read the settings of a TOML or JSON file."""
    path = Path(path)
    try:
        text = path.read_text(encoding="utf-8")
        settings = json.loads(text) if path.suffix == ".json" else tomllib.loads(text)
    except FileNotFoundError:
        raise ConfigError(f"config file {path}: no such file") from None
    except RecursionError:
        raise ConfigError(f"config file {path}: is nested too deeply to be read") from None
    except (OSError, ValueError) as error:
        raise ConfigError(f"config file {path}: {error}") from None
    if not isinstance(settings, dict):
        raise ConfigError(f"config file {path}: expected a table of settings")
    return settings


@cache
def field_docs(kind: type) -> dict[str, str]:
    """Return the string written under each field of a config class.

    >>> field_docs(PrepareConfig)["drop"]
    'Column to leave out.'
    """
    tree = ast.parse(textwrap.dedent(inspect.getsource(kind))).body[0]
    assert isinstance(tree, ast.ClassDef)
    docs = {}
    for statement, following in zip(tree.body, tree.body[1:], strict=False):
        if isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name):
            assert isinstance(following, ast.Expr) and isinstance(following.value, ast.Constant)
            docs[statement.target.id] = str(following.value.value)
    return docs
