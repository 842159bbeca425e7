"""Settings as parameters of Kubeflow pipelines.

A form has texts, numbers, JSON objects and lists, but no null and no choices: several values are text with commas, and
0 or an empty text stands for None. All else, such as the description, is taken from the field; where it has to
differ, the field says so in its ``Form``. ``python -m pipelines signatures`` writes the settings into the components.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from types import MappingProxyType
from typing import Any, Literal, get_args, get_origin

from dkan_core.config.kubernetes import POD_RULES, RESOURCE_RULE
from dkan_core.config.loading import ConfigT, build_config
from dkan_core.config.resolved import EXECUTION_SETTINGS
from dkan_core.config.schema import Form, field_docs, field_types, item_type, without_none
from dkan_core.config.train import TrainConfig
from dkan_core.errors import ConfigError

# A form always gives a value. Where None is allowed, the bounds of the numbers exclude 0, or the field's
# ``Form`` names another number outside of them.
NONE_IN_FORMS: dict[type, Any] = {int: 0, float: 0.0, str: ""}


@dataclass(frozen=True, kw_only=True)
class FormField:
    """A setting in a form."""

    setting: str
    """Its name in the config."""

    name: str
    type: type
    default: Any
    """``dataclasses.MISSING`` for a field that must be filled in."""

    text: str
    none: Any
    """Value that leaves the setting open, as there is no null; None if it always has a value."""

    def is_open(self, value: Any) -> bool:
        """Return whether a value leaves the setting open."""
        return self.none is not None and bool(value == self.none)


def form_fields(kind: Any) -> list[FormField]:
    """Return the settings of a config that forms show, including fields that exist only for forms.

    >>> from dkan_core.config import TrainConfig
    >>> {field.name: field.default for field in form_fields(TrainConfig)}["hidden"]
    'auto'
    """
    shown = {each: each.metadata.get("form", Form()) for each in fields(kind)}
    names = {each.name: form.name or each.name for each, form in shown.items() if form}
    types, docs = field_types(kind), field_docs(kind)
    found = []
    for each, form in shown.items():
        if not form:
            continue
        in_form = form_type(types[each.name])
        is_open = each.default is None or each.default == ()
        none = (NONE_IN_FORMS[in_form] if form.none is None else form.none) if is_open else None
        found.append(
            FormField(
                setting=each.name,
                name=names[each.name],
                type=in_form,
                default=_default(each.default, form, in_form, none),
                text=form.text or _text(docs[each.name], types[each.name], none, names),
                none=none,
            )
        )
    return found


def config_from_form(
    kind: type[ConfigT], values: Mapping[str, Any], changes: Mapping[str, Any] = MappingProxyType({})
) -> ConfigT:
    """Build a config from the values of a form.

    Args:
        kind: The config.
        values: Values by the names of the form; other names than those of its fields are ignored.
        changes: Settings by their own names, which override them.

    Returns:
        The config, checked.

    Raises:
        ConfigError: A setting is unknown or out of bounds.

    >>> from dkan_core.config import TrainConfig
    >>> config_from_form(TrainConfig, {"epochs": 0, "hidden": "32,16", "image": "dkan"}, {"seed": 1}).hidden
    (32, 16)
    >>> config_from_form(TrainConfig, {"model_kind": "tree"})
    Traceback (most recent call last):
    dkan_core.errors.ConfigError: model_kind must be one of auto, fastkan, additive, got 'tree'
    """
    _check_settings(changes)
    shown = form_fields(kind)
    given = [field for field in shown if field.name in values and not field.is_open(values[field.name])]
    settings = {field.setting: values[field.name] for field in given}
    try:
        return build_config(kind, {**settings, **changes})
    except ConfigError as error:
        raise ConfigError(_in_form(str(error), shown)) from None


def _in_form(message: str, shown: Sequence[FormField]) -> str:
    """Return a message with the settings' names replaced by those in the form."""
    for field in shown:
        message = re.sub(rf"(^|requires ){field.setting}\b", rf"\g<1>{field.name}", message)
    return message


def training_from_form(values: Mapping[str, Any], changes: Mapping[str, Any]) -> TrainConfig:
    """Build the settings of a training on one node, whose form also has ``num_gpus``, ``gpu_type`` and ``workers``.

    Args:
        values: Values by the names of the form, including those of the pod if it is to be checked; other names than
            those of its fields are ignored.
        changes: Settings by their own names, which override them.

    Returns:
        The settings, checked.

    Raises:
        ConfigError: A setting is unknown or out of bounds.

    >>> training_from_form({"num_gpus": "2"}, {}).device, training_from_form({"num_gpus": "0"}, {"workers": 3}).workers
    ('cuda', 3)
    """
    _check_settings(changes)
    num_gpus = values.get("num_gpus", "0")
    if not (num_gpus.isascii() and num_gpus.isdecimal()):
        raise ConfigError(f"num_gpus must be a whole number, 0 or more, got {num_gpus!r}")
    gpus, gpu_type = int(num_gpus), values.get("gpu_type")
    # The GPU type may be empty without GPUs.
    if gpu_type is not None and (gpus or gpu_type) and not RESOURCE_RULE.holds(gpu_type):
        raise ConfigError(f"gpu_type must be {RESOURCE_RULE.expected}, got {gpu_type!r}")
    for name, rule in POD_RULES.items():
        if name in values and not rule.holds(values[name]):
            raise ConfigError(f"{name} must be {rule.expected}, got {values[name]!r}")
    workers = values.get("workers") or None
    asked = workers if "workers" not in changes or "device" in changes else changes["workers"]
    if gpus and asked not in (None, gpus):
        raise ConfigError(f"workers {asked}: with num_gpus {gpus} there is one per GPU; leave workers at 0")
    placed = {"device": "cuda" if gpus else "auto", "workers": gpus or workers}
    return config_from_form(TrainConfig, values, {**placed, **changes})


def trainings_from_form(values: Mapping[str, Any]) -> list[TrainConfig]:
    """Build the settings of every training on one node that a form asks for.

    Args:
        values: As for ``training_from_form``, with ``settings``, which override the others; or with those of several
            runs in ``sweep``, all different: equal runs would write their checkpoints to the same folder.

    Returns:
        The settings, checked.

    Raises:
        ConfigError: A setting is unknown or out of bounds, or a sweep has no runs or the same one twice.

    >>> [config.epochs for config in trainings_from_form({"seed": 1, "sweep": [{"epochs": 3}, {"epochs": 4.0}]})]
    [3, 4]
    >>> trainings_from_form({"seed": 1, "sweep": [{}, {"seed": 1.0}]})
    Traceback (most recent call last):
    dkan_core.errors.ConfigError: sweep must be a JSON list such as [{"learning_rate": 0.01}], without the same \
settings twice, got [{}, {'seed': 1.0}]
    """
    sweep = values.get("sweep")
    if sweep is None:
        return [_training_of_run(values, values.get("settings", {}))]
    is_list = isinstance(sweep, list) and all(isinstance(changes, dict) for changes in sweep)
    configs = [_training_of_run(values, changes) for changes in sweep] if is_list else []
    courses = [
        {name: value for name, value in vars(config).items() if name not in EXECUTION_SETTINGS} for config in configs
    ]
    if not configs or any(course in courses[:index] for index, course in enumerate(courses)):
        wanted = 'a JSON list such as [{"learning_rate": 0.01}], without the same settings twice'
        uncounted = [name for name in EXECUTION_SETTINGS if is_list and any(name in changes for changes in sweep)]
        aside = f" ({', '.join(uncounted)} aside)" if uncounted else ""
        raise ConfigError(f"sweep must be {wanted}{aside}, got {sweep!r}")
    return configs


def _training_of_run(values: Mapping[str, Any], changes: Mapping[str, Any]) -> TrainConfig:
    config = training_from_form(values, changes)
    # Only the field is checked to be a place that outlives the pod; training on nodes has none.
    if config.checkpoint_uri is not None and "nodes" not in values:
        raise ConfigError(f"settings: checkpoint_uri has a field of its own; move {config.checkpoint_uri!r} there")
    return config


def _check_settings(changes: object) -> None:
    if not isinstance(changes, Mapping):
        raise ConfigError(f'settings must be a JSON object such as {{"learning_rate": 0.01}}, got {changes!r}')


def form_type(expected: Any) -> type:
    """Return the type that a setting has in a form.

    >>> form_type(int | None), form_type(tuple[float, ...]), form_type(str | dict[str, str])
    (<class 'int'>, <class 'str'>, <class 'dict'>)
    """
    plain = without_none(expected)
    origins = [get_origin(option) for option in get_args(plain)]
    if dict in origins or list in origins:
        return dict if dict in origins else list
    as_text = item_type(expected) is not None or get_origin(plain) is Literal
    found: type = str if as_text else plain
    return found


def _default(default: Any, form: Form, in_form: type, none: Any) -> Any:
    """Return the initial value in a form."""
    if form.default is not None:
        return form.default
    if in_form in (dict, list):
        return in_form()
    return default if none is None else none


def _text(doc: str, expected: Any, none: Any, names: Mapping[str, str]) -> str:
    """Return a field's description, extended by how to write several values, the choices, and the meaning of None.

    >>> _text("Width. Default: from the rows.", tuple[int, ...] | None, "auto", {})
    'Width; separate several by commas. auto: from the rows.'
    >>> _text("Column to leave out.", str | None, "", {}), _text("Rows. Default: all.", int | None, 0, {})
    ('Column to leave out. Empty: none.', 'Rows. 0: all.')
    """
    # On one line, because kfp would take another line of the docstring for another argument.
    text, _, default = " ".join(doc.split()).partition(" Default: ")
    if item_type(expected):
        text = text.replace(".", "; separate several by commas.", 1)
    if get_origin(expected) is Literal:
        text += f" One of: {', '.join(get_args(expected))}."
    if none is not None:
        text += f" {none if none else 'Empty' if none == '' else '0'}: {default or 'none.'}"
    # Names of other settings in the text are replaced by those in the form.
    return re.sub(r"`(\w+)`", lambda match: names.get(match[1], match[0]), text)
