"""Each component takes artifacts as a cluster hands them over: with an empty schema, and so without a type's name."""

import inspect
import json
from pathlib import Path
from typing import Any

import pytest
from kfp import dsl
from kfp.dsl.executor import Executor

from components.data_processing.prepare_parquet import prepare_parquet
from pipelines.assets import asset_folders, load_asset

COMPONENTS = [folder for folder in asset_folders() if folder.startswith("components/")]


def handed_over(folder: Path, names: list[str], count: int = 1) -> dict[str, Any]:
    """Return artifacts as the driver of Kubeflow describes them."""
    return {
        name: {
            "artifacts": [
                {"name": name, "uri": str(folder / name), "metadata": {}, "type": {"instanceSchema": ""}}
                for _ in range(count)
            ]
        }
        for name in names
    }


@pytest.mark.parametrize("folder", COMPONENTS)
def test_artifacts_without_the_name_of_their_type(folder: str, tmp_path: Path) -> None:
    component = load_asset(folder)
    inputs, outputs = component.component_spec.inputs or {}, component.component_spec.outputs or {}
    artifacts = {name: spec for name, spec in {**inputs, **outputs}.items() if "@" in str(spec.type)}
    executor = Executor(
        {
            "inputs": {"artifacts": handed_over(tmp_path / "in", [name for name in inputs if name in artifacts], 2)},
            "outputs": {
                "artifacts": handed_over(tmp_path / "out", [name for name in outputs if name in artifacts]),
                "outputFile": str(tmp_path / "executor_output.json"),
            },
        },
        component,
    )
    made = {**executor.input_artifacts, **executor.output_artifacts}
    assert made.keys() == artifacts.keys()
    for name, spec in artifacts.items():
        kind = getattr(dsl, str(spec.type).partition("@")[0].removeprefix("system."))
        for artifact in made[name] if spec.is_artifact_list else [made[name]]:
            assert type(artifact) is kind, name
    assert inspect.signature(component.python_func).parameters.keys() >= artifacts.keys()


def test_optional_artifact_reaches_the_component(source: Path, tmp_path: Path) -> None:
    described = handed_over(source.parent, [source.name])[source.name]
    executor_input = {
        "inputs": {"artifacts": {"source": described}, "parameterValues": {"label": "label"}},
        "outputs": {
            "artifacts": handed_over(tmp_path / "out", ["prepared"]),
            "outputFile": str(tmp_path / "executor_output.json"),
        },
    }
    Executor(executor_input, prepare_parquet).execute()
    assert (tmp_path / "out/prepared/manifest.json").exists()
    left = json.loads((tmp_path / "executor_output.json").read_text())
    assert left["artifacts"]["prepared"]["artifacts"][0]["metadata"]["train_rows"] > 0
