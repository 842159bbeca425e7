"""The component says what train_fastkan says, and hands all on to where the nodes are asked for."""

import inspect
from dataclasses import fields
from pathlib import Path
from typing import Any

import docstring_parser
import pytest
from kfp import dsl

from components.training.train_fastkan import train_fastkan
from components.training.train_fastkan_nodes import train_fastkan_nodes
from dkan_core import ConfigError, NodesConfig
from dkan_core.config import field_docs

OF_ONE_NODE = {"num_gpus", "workers", "checkpoint_uri", "checkpoint_key"}
RESOURCES = {"gpus_per_node", "cpu_per_node", "memory_per_node"}
OWN_DEFAULTS = RESOURCES | {"node_selector", "tolerations", "env", "labels"}


def described(component: Any) -> dict[str, str]:
    docs = docstring_parser.parse(inspect.getdoc(component.python_func))
    return {param.arg_name: " ".join((param.description or "").split()) for param in docs.params}


def test_settings_of_the_training_are_those_of_one_node() -> None:
    one, several = (inspect.signature(each.python_func).parameters for each in (train_fastkan, train_fastkan_nodes))
    artifacts = {"prepared", "model", "metrics"}
    for name in one.keys() - OF_ONE_NODE - artifacts:
        assert several[name].default == one[name].default, name
        assert described(train_fastkan_nodes)[name] == described(train_fastkan)[name], name


def test_settings_of_the_cluster_are_those_of_the_library() -> None:
    parameters, docs = inspect.signature(train_fastkan_nodes.python_func).parameters, field_docs(NodesConfig)
    for field in fields(NodesConfig):
        assert described(train_fastkan_nodes)[field.name] == " ".join(docs[field.name].split()), field.name
        if field.name not in OWN_DEFAULTS | {"image"}:
            assert parameters[field.name].default == field.default, field.name


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {},
            "prepared must be on storage that 2 nodes share: a URI such as s3://bucket/folder or a path on pvc_name",
        ),
        ({"nodes": 0}, "nodes must be"),
        ({"image": ""}, "image: name the image"),
        ({"tolerations": ["gpu"]}, "tolerations must be a JSON list"),
        ({"dropout": 2.0}, "dropout"),
    ],
)
def test_mistake_is_named_before_anything_is_asked_for(change: dict[str, Any], message: str, tmp_path: Path) -> None:
    prepared, model = dsl.Dataset(uri=str(tmp_path / "prepared")), dsl.Model(uri=str(tmp_path / "model"))
    settings = {"run_uri": "s3://bucket/run", "image": "dkan", **change}
    with pytest.raises(ConfigError, match=message):
        train_fastkan_nodes.python_func(prepared, model, dsl.Metrics(uri=str(tmp_path / "metrics")), **settings)
