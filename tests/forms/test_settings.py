"""Settings from forms of Kubeflow, which know no null and hold several values as text."""

from dataclasses import fields
from typing import Any

import pytest

from dkan_core import NodesConfig, PrepareConfig, TrainConfig, config_from_form
from dkan_core.errors import ConfigError
from dkan_core.forms.settings import FormField, form_fields

KINDS: list[tuple[Any, dict[str, Any]]] = [
    (TrainConfig, {}),
    (PrepareConfig, {"label": "late"}),
    (NodesConfig, {"image": "dkan:test"}),
]


@pytest.mark.parametrize(("kind", "required"), KINDS)
def test_form_that_is_left_as_it_is_leaves_the_settings_as_they_are(kind: Any, required: dict[str, Any]) -> None:
    form = {field.name: field.default for field in form_fields(kind)} | required
    config = config_from_form(kind, form)
    # Resources of a node in the form; JSON objects and lists rather than their text.
    others = {"label", "image", "gpus_per_node", "cpu_per_node", "memory_per_node"}
    others |= {"node_selector", "tolerations", "env", "labels"}
    assert {
        field.name: (getattr(config, field.name), field.default)
        for field in fields(kind)
        if field.name not in others and getattr(config, field.name) != field.default
    } == {}


@pytest.mark.parametrize(
    ("kind", "form", "expected"),
    [
        (TrainConfig, {"hidden": "64, 32", "members": 3}, {"hidden": (64, 32), "members": 3}),
        (TrainConfig, {"hidden": "auto", "epochs": 0, "max_seconds": 0.0}, {}),
        (TrainConfig, {"num_centers": 4.0, "seed": 7.0}, {"num_centers": 4, "seed": 7}),
        (TrainConfig, {"dropout": 0.0, "label_weights": "1,2.5"}, {"dropout": 0.0, "label_weights": (1.0, 2.5)}),
        (TrainConfig, {"initial_model_uri": "s3://bucket/model"}, {"init_from": "s3://bucket/model"}),
        (TrainConfig, {"model": "an artifact", "workers": 4, "image": "dkan"}, {}),
        (PrepareConfig, {"label": "a,b", "group": "", "drop": ""}, {"label": ("a", "b")}),
        (PrepareConfig, {"initial_model_uri": "model", "weight": "w"}, {"like": "model", "weight": "w"}),
    ],
)
def test_values_of_a_form_become_settings(kind: Any, form: dict[str, Any], expected: dict[str, Any]) -> None:
    assert config_from_form(kind, form) == kind(**expected)


def test_further_settings_override_those_of_the_form() -> None:
    changes: dict[str, Any] = {"epochs": 5, "workers": 2, "gamma": 0.5}
    assert config_from_form(TrainConfig, {"epochs": 3}, changes) == TrainConfig(**changes)


@pytest.mark.parametrize(
    ("form", "changes", "message"),
    [
        ({"dropout": 1.5}, {}, "dropout must be from 0 to 0.99, got 1.5"),
        ({"hidden": "64,wide"}, {}, "hidden must be whole numbers, got 'wide'"),
        ({}, {"epoch": 3}, "unknown setting 'epoch'"),
    ],
)
def test_wrong_value_of_a_form_is_named(form: dict[str, Any], changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        config_from_form(TrainConfig, form, changes)


OPEN_NUMBERS = [(kind, field) for kind, _ in KINDS for field in form_fields(kind) if field.none in (0, 0.0)]


@pytest.mark.parametrize(("kind", "field"), OPEN_NUMBERS, ids=[field.name for _, field in OPEN_NUMBERS])
def test_number_that_leaves_a_setting_open_is_no_value_of_it(kind: Any, field: FormField) -> None:
    with pytest.raises(ConfigError, match=f"{field.setting} must be"):
        kind(**{field.setting: field.type(0)})
