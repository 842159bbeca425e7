"""The rules every component and pipeline folder keeps: files, metadata, README and form in step with the code."""

import importlib
import inspect
import re
import typing
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Any

import docstring_parser
import pytest
import yaml
from kfp import dsl
from kfp.dsl.base_component import BaseComponent
from kfp.dsl.types import type_annotations
from kfp.pipeline_spec.pipeline_spec_pb2 import ParameterType

ROOT = Path(__file__).parents[2]
COMPONENTS = sorted(str(path.parent.relative_to(ROOT)) for path in ROOT.glob("components/*/*/component.py"))
PIPELINES = sorted(str(path.parent.relative_to(ROOT)) for path in ROOT.glob("pipelines/*/*/pipeline.py"))
ASSETS = COMPONENTS + PIPELINES
REQUIRED = {"data_uri", "label", "run_uri", "image"}
FORM_TYPES = {"STRING", "NUMBER_INTEGER", "NUMBER_DOUBLE"}


def load(folder: str) -> BaseComponent:
    """Import the component or pipeline of a folder."""
    return getattr(importlib.import_module(folder.replace("/", ".")), Path(folder).name)


def function_of(asset: BaseComponent) -> Callable[..., Any]:
    return asset.pipeline_func if hasattr(asset, "pipeline_func") else asset.python_func


def described(asset: BaseComponent) -> dict[str, str]:
    docs = docstring_parser.parse(inspect.getdoc(function_of(asset)))
    return {param.arg_name: " ".join(param.description.split()) for param in docs.params}


def is_output(annotation: object) -> bool:
    return type_annotations.is_artifact_wrapped_in_Output(annotation)


def type_name(annotation: object) -> str:
    is_artifact = type_annotations.is_artifact_wrapped_in_Input(annotation) or is_output(annotation)
    return f"dsl.{typing.get_args(annotation)[0].__name__}" if is_artifact else annotation.__name__


def default_name(parameter: inspect.Parameter) -> str:
    if parameter.default is inspect.Parameter.empty:
        return "required"
    return f"`{parameter.default}`" if parameter.default != "" else "empty"


def inputs_table(asset: BaseComponent) -> str:
    """Render the README's table of inputs, from the signature and its docstring."""
    lines = ["| Name | Type | Default | Description |", "|---|---|---|---|"]
    for name, parameter in inspect.signature(function_of(asset)).parameters.items():
        if not is_output(parameter.annotation):
            kind = type_name(parameter.annotation)
            lines.append(f"| `{name}` | `{kind}` | {default_name(parameter)} | {described(asset)[name]} |")
    return "\n".join(lines)


def outputs_table(asset: BaseComponent) -> str:
    """Render the README's table of outputs: the Output artifacts, then what is returned."""
    lines = ["| Name | Type | Description |", "|---|---|---|"]
    signature = inspect.signature(function_of(asset))
    for name, parameter in signature.parameters.items():
        if is_output(parameter.annotation):
            lines.append(f"| `{name}` | `{type_name(parameter.annotation)}` | {described(asset)[name]} |")
    for name, kind in getattr(signature.return_annotation, "__annotations__", {}).items():
        label = f"dsl.{kind.__name__}" if issubclass(kind, dsl.Artifact) else kind.__name__
        lines.append(f"| `{name}` | `{label}` | {asset.component_spec.outputs[name].description} |")
    return "\n".join(lines)


@pytest.mark.parametrize("folder", ASSETS)
def test_folder_is_complete(folder: str) -> None:
    for name in ("__init__.py", "metadata.yaml", "README.md", "OWNERS", "tests"):
        assert (ROOT / folder / name).exists(), f"{folder} lacks {name}"


@pytest.mark.parametrize("folder", ASSETS)
def test_metadata_follows_the_schema(folder: str) -> None:
    metadata = yaml.safe_load((ROOT / folder / "metadata.yaml").read_text())
    assert set(metadata) == {"name", "stability", "dependencies", "tags", "lastVerified"}
    assert metadata["name"] == Path(folder).name
    assert metadata["stability"] in {"experimental", "alpha", "beta", "stable"}
    assert metadata["dependencies"] == {"kubeflow": [{"name": "Pipelines", "version": ">=2.17.0"}]}
    assert metadata["tags"] and all(re.fullmatch(r"[a-z0-9_]+", tag) for tag in metadata["tags"])
    assert isinstance(metadata["lastVerified"], datetime) and metadata["lastVerified"].tzinfo is not None


@pytest.mark.parametrize("folder", ASSETS)
def test_owners_are_named(folder: str) -> None:
    owners = yaml.safe_load((ROOT / folder / "OWNERS").read_text())
    assert set(owners) == {"approvers", "reviewers"}
    assert owners["approvers"] and owners["reviewers"]


@pytest.mark.parametrize("folder", ASSETS)
def test_every_form_field_has_a_type_and_a_description(folder: str) -> None:
    for name, field in load(folder).pipeline_spec.root.input_definitions.parameters.items():
        assert ParameterType.ParameterTypeEnum.Name(field.parameter_type) in FORM_TYPES, f"{name} has no plain type"
        assert field.description, f"{name} has no description"
        assert field.is_optional or name in REQUIRED, f"{name} has no default"


@pytest.mark.parametrize("folder", ASSETS)
def test_readme_tables_match_the_signature(folder: str) -> None:
    asset, readme = load(folder), (ROOT / folder / "README.md").read_text()
    for title, table in (("Inputs", inputs_table(asset)), ("Outputs", outputs_table(asset))):
        assert f"## {title}\n\n{table}\n" in readme, f"{folder}/README.md, {title}: expected\n{table}"


@pytest.mark.parametrize("folder", ASSETS)
def test_readme_code_runs(folder: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / folder / "README.md").read_text(), re.DOTALL)
    assert blocks, f"{folder}/README.md shows no example"
    for block in blocks:
        exec(compile(block, f"{folder}/README.md", "exec"), {})
    assert list(tmp_path.glob("*.yaml"))


def test_shared_parameters_read_the_same_everywhere() -> None:
    pipeline = described(load(PIPELINES[0]))
    signature = inspect.signature(function_of(load(PIPELINES[0]))).parameters
    for folder in COMPONENTS:
        component, parameters = described(load(folder)), inspect.signature(function_of(load(folder))).parameters
        # The pipeline's split is the component's; evaluate_fastkan's names one of its parts. One seed serves all steps.
        for name in set(parameters) & set(signature) - {"seed"} - ({"split"} if "evaluate" in folder else set()):
            assert component[name] == pipeline[name], f"{folder}: {name}"
            assert parameters[name].default == signature[name].default, f"{folder}: {name}"
