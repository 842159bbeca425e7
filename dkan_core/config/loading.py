"""Settings read from files, forms and the command line."""

import json
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

from dkan_core.config.prepare import PrepareConfig
from dkan_core.config.schema import field_types, item_type, named_once, unknown_setting, without_none
from dkan_core.config.serving import ServeConfig
from dkan_core.config.train import TrainConfig
from dkan_core.config.trainjob import NodesConfig
from dkan_core.errors import ConfigError

ConfigT = TypeVar("ConfigT", bound=PrepareConfig | TrainConfig | NodesConfig | ServeConfig)


def build_config(kind: type[ConfigT], settings: Mapping[str, Any]) -> ConfigT:
    """Build a config from plain settings, as a file or a form holds them; an unknown key raises ConfigError.

    Several values are a list, or text separated by commas.

    >>> build_config(TrainConfig, {"hidden": [32, 16]}).hidden
    (32, 16)
    >>> build_config(TrainConfig, {"hidden": [32.0], "epochs": 3.0}).epochs
    3
    >>> build_config(PrepareConfig, {"label": "bought, returned"}).label
    ('bought', 'returned')

    Returns:
        The config, checked.
    """
    types = field_types(kind)
    if unknown := [name for name in settings if name not in types]:
        raise unknown_setting(kind, unknown)
    return kind(**{name: _typed(name, value, types[name]) for name, value in settings.items()})


def check_config(kind: type[ConfigT], config: object) -> None:
    """Raise ConfigError unless a config is of its class, which a dict or a text of settings is not."""
    if not isinstance(config, kind):
        name = kind.__name__
        hint = f"; build_config({name}, ...) builds one from it" if isinstance(config, Mapping) else ""
        raise ConfigError(f"expected the settings as a {name}, got {type(config).__name__}{hint}")


def _typed(name: str, value: Any, expected: Any) -> Any:
    """Return a value as its field takes it: several, listed or as text with commas or line ends, as a tuple.

    Forms know one kind of number: 3.0 is taken where a whole number is expected.
    """
    item = item_type(expected)
    if item is None:
        return _whole(value) if without_none(expected) is int else value
    if isinstance(value, str):
        return tuple(_item(name, part, item) for part in separated(value))
    if isinstance(value, list):
        # A JSON file or a form of Kubeflow may write 64 as 64.0.
        return tuple(_whole(each) if item is int else each for each in value)
    return value


def separated(text: str) -> list[str]:
    r"""Return what commas or line ends separate in a text.

    >>> separated("late, returned\nlost,")
    ['late', 'returned', 'lost']
    """
    return [part.strip() for part in text.replace("\n", ",").split(",") if part.strip()]


def _item(name: str, part: str, kind: Any) -> Any:
    try:
        return kind(part)
    except ValueError:
        raise ConfigError(f"{name} must be {'whole numbers' if kind is int else 'numbers'}, got {part!r}") from None


def _whole(value: Any) -> Any:
    return int(value) if isinstance(value, float) and value.is_integer() else value


def read_settings(source: str | Path) -> dict[str, Any]:
    """Read the settings of a TOML or JSON file, or of a JSON object itself.

    >>> read_settings('{"epochs": 3}')
    {'epochs': 3}
    """
    if str(source).startswith("{"):
        return _parsed(str(source), "settings in JSON", is_json=True)
    path = Path(source)
    name = f"config file {path}"
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise ConfigError(f"{name}: no such file") from None
    except IsADirectoryError:
        # What an empty name means, too.
        raise ConfigError(f"{name}: is a folder; expected a TOML or JSON file") from None
    except (OSError, ValueError) as error:
        raise ConfigError(f"{name}: {error}") from None
    return _parsed(text, name, is_json=path.suffix == ".json")


def _parsed(text: str, name: str, *, is_json: bool) -> dict[str, Any]:
    try:
        settings = json.loads(text, object_pairs_hook=named_once) if is_json else tomllib.loads(text)
    except RecursionError:
        raise ConfigError(f"{name}: is nested too deeply to be read") from None
    except ValueError as error:
        raise ConfigError(f"{name}: cannot be read as {'JSON' if is_json else 'TOML'}: {error}") from None
    if not isinstance(settings, dict):
        raise ConfigError(f"{name}: expected a table of settings")
    return settings
