"""Forms and the estimator repeat settings, since KFP and scikit-learn want literal signatures: each is the schema's."""

import inspect
from dataclasses import fields
from typing import Any, Literal, get_args, get_origin, get_type_hints

import docstring_parser
import pytest
from kfp.dsl.base_component import BaseComponent

from components.data_processing.plan_preparation.component import plan_preparation
from components.data_processing.prepare_parquet.component import prepare_parquet
from components.training.check_training.component import check_training
from components.training.check_training_nodes.component import check_training_nodes
from components.training.train_fastkan.component import train_fastkan
from components.training.train_fastkan_nodes.component import train_fastkan_nodes
from dkan_core import FastKANClassifier, PrepareConfig, TrainConfig
from dkan_core.config import field_docs, field_types, item_type, without_none
from dkan_core.forms.settings import form_fields

OPEN: dict[type, tuple[object, ...]] = {int: (0,), float: (0.0,), str: ("", "auto"), bool: ()}
"""What stands in a form for a setting that is None or empty: KFP has no null."""

ARTIFACTS = {"model"}
"""A parameter of this name is an artifact of the step, and not the setting."""

FORMS: list[tuple[BaseComponent, type[PrepareConfig | TrainConfig]]] = [
    (train_fastkan, TrainConfig),
    (train_fastkan_nodes, TrainConfig),
    (check_training, TrainConfig),
    (check_training_nodes, TrainConfig),
    (prepare_parquet, PrepareConfig),
    (plan_preparation, PrepareConfig),
]

CASES = [
    (form, kind, field)
    for form, kind in FORMS
    for field in fields(kind)
    if field.name in inspect.signature(form.python_func).parameters and field.name not in ARTIFACTS
]


NAMES = [f"{form.name}-{field.name}" for form, _, field in CASES]
IN_ESTIMATOR = [name for name in field_types(TrainConfig) if name in inspect.signature(FastKANClassifier).parameters]


def form_type(expected: Any) -> type:
    """Return the type that a setting has in a form: several values and choices are text."""
    plain: type = without_none(expected)
    return str if item_type(expected) or get_origin(plain) is Literal else plain


@pytest.mark.parametrize(("form", "kind", "field"), CASES, ids=NAMES)
def test_form_has_the_type_and_the_default_of_the_schema(form: Any, kind: type, field: Any) -> None:
    parameter = inspect.signature(form.python_func).parameters[field.name]
    expected = form_type(field_types(kind)[field.name])
    assert parameter.annotation is expected
    if parameter.default is not inspect.Parameter.empty:
        named = {each.setting: each.none for each in form_fields(kind)}.get(field.name)
        opens = OPEN[expected] if named is None else (named,)
        allowed = opens if field.default in (None, ()) else (field.default,)
        assert parameter.default in allowed


@pytest.mark.parametrize(("form", "kind"), FORMS, ids=[form.name for form, _ in FORMS])
def test_no_setting_has_the_name_of_an_artifact(form: Any, kind: type) -> None:
    """It would be given the artifact."""
    artifacts = {name for name, each in (form.component_spec.outputs or {}).items() if each.type.startswith("system.")}
    assert not artifacts & {field.name for field in form_fields(kind)}


@pytest.mark.parametrize("name", IN_ESTIMATOR)
def test_estimator_has_the_type_of_the_schema_and_leaves_its_default(name: str) -> None:
    accepted = set(get_args(get_type_hints(FastKANClassifier.__init__)[name]))
    assert {without_none(field_types(TrainConfig)[name]), type(None)} <= accepted
    assert inspect.signature(FastKANClassifier).parameters[name].default is None


OWN_TEXTS = {"device"}
"""What means something else in the estimator, where there is one worker."""


@pytest.mark.parametrize("name", [name for name in IN_ESTIMATOR if name not in OWN_TEXTS])
def test_estimator_describes_a_setting_as_the_schema_does(name: str) -> None:
    (default,) = (field.default for field in fields(TrainConfig) if field.name == name)
    text, _, described = " ".join(field_docs(TrainConfig)[name].split()).partition(" Default: ")
    ending = f"Default: {described or f'{default}.'}"
    # What a text adds behind a semicolon may be about commands: resuming, several workers.
    expected = {f"{text} {ending}", f"{text.partition(';')[0]}. {ending}"}
    docs = docstring_parser.parse(inspect.getdoc(FastKANClassifier) or "")
    (found,) = (parameter.description for parameter in docs.params if parameter.arg_name == name)
    assert " ".join((found or "").split()) in expected


def test_forms_and_estimator_show_settings() -> None:
    assert {form.name for form, _, _ in CASES} == {form.name for form, _ in FORMS}
    assert len(CASES) > 40 and len(IN_ESTIMATOR) >= 16
