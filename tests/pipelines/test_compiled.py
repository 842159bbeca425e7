"""The committed pipeline.yaml, and the arguments it takes."""

import os
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

from pipelines.compiled import PARSERS, PIPELINE_YAML, ArgumentError, parse_arguments

ROOT = Path(__file__).parents[2]
REQUIRED = ["data_uri=flights", "label=late"]


@pytest.fixture(scope="module")
def spec() -> dict[str, Any]:
    return yaml.safe_load(PIPELINE_YAML.read_text())


def pipelines_command(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    inherited = {name: value for name, value in os.environ.items() if name != "DKAN_IMAGE"}
    command = [sys.executable, "-m", "pipelines", *arguments]
    return subprocess.run(
        command, cwd=ROOT, env=inherited | environment, capture_output=True, text=True, timeout=120, check=False
    )


def test_committed_yaml_is_what_compiling_gives() -> None:
    check = pipelines_command("compile", "--check")
    assert check.returncode == 0, check.stderr


def test_check_fails_when_the_yaml_is_out_of_date() -> None:
    check = pipelines_command("compile", "--check", DKAN_IMAGE="registry.example/dkan:9")
    assert check.returncode == 1
    assert "python -m pipelines compile" in check.stderr


def test_every_step_runs_in_the_image_of_this_version(spec: dict[str, Any]) -> None:
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    containers = [executor["container"] for executor in spec["deploymentSpec"]["executors"].values()]
    assert [container["image"] for container in containers] == [f"dkan:{version}"] * 3


def test_every_step_brings_its_whole_command(spec: dict[str, Any]) -> None:
    for executor in spec["deploymentSpec"]["executors"].values():
        command = executor["container"]["command"]
        assert command[:2] == ["sh", "-ec"], "the image has no ENTRYPOINT"
        assert not any("pip install" in part for part in command), "the image already holds kfp"


def test_gpu_count_is_text_and_reaches_the_pod(spec: dict[str, Any]) -> None:
    assert spec["root"]["inputDefinitions"]["parameters"]["num_gpus"]["parameterType"] == "STRING"
    resources = spec["deploymentSpec"]["executors"]["exec-train-fastkan"]["container"]["resources"]
    passed = spec["root"]["dag"]["tasks"]["train-fastkan"]["inputs"]["parameters"]
    fields = {
        "num_gpus": resources["accelerator"]["resourceCount"],
        "gpu_type": resources["accelerator"]["resourceType"],
        "cpu": resources["resourceCpuLimit"],
        "memory": resources["resourceMemoryLimit"],
    }
    for name, text in fields.items():
        assert text == f"{{{{$.inputs.parameters['pipelinechannel--{name}']}}}}"
        assert passed[f"pipelinechannel--{name}"] == {"componentInputParameter": name}
    assert passed["num_gpus"] == {"componentInputParameter": "num_gpus"}, "the trainer checks what it sees against it"


def test_preparation_is_never_cached(spec: dict[str, Any]) -> None:
    assert spec["root"]["dag"]["tasks"]["prepare-parquet"]["cachingOptions"] == {}


def test_every_parameter_type_can_be_given_on_the_command_line(spec: dict[str, Any]) -> None:
    assert {field["parameterType"] for field in spec["root"]["inputDefinitions"]["parameters"].values()} <= set(PARSERS)


def test_arguments_take_the_type_of_their_parameter() -> None:
    arguments = parse_arguments(PIPELINE_YAML, [*REQUIRED, "epochs=3", "dropout=0.5", "num_gpus=2", "group=a=b"])
    assert arguments == {
        "data_uri": "flights", "label": "late", "epochs": 3, "dropout": 0.5, "num_gpus": "2", "group": "a=b"
    }  # fmt: skip


@pytest.mark.parametrize(
    ("assignments", "message"),
    [
        ([*REQUIRED, "epoch=3"], "unknown parameter 'epoch'; known are batch_size, cpu, data_uri"),
        ([*REQUIRED, "epochs=few"], "parameter 'epochs' must be a whole number, got 'few'"),
        ([*REQUIRED, "dropout=low"], "parameter 'dropout' must be a number, got 'low'"),
        ([*REQUIRED, "label=other"], "parameter 'label' is given twice"),
        ([*REQUIRED, "epochs"], "expected NAME=VALUE, got 'epochs'"),
        (["label=late"], "missing parameter data_uri"),
    ],
)
def test_arguments_that_do_not_fit_are_named(assignments: list[str], message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        parse_arguments(PIPELINE_YAML, assignments)


def test_wrong_parameter_ends_the_run_before_it_starts(tmp_path: Path) -> None:
    run = pipelines_command("run", "--param", "data_urii=flights", "--out", str(tmp_path / "out"))
    assert run.returncode == 2
    assert "unknown parameter 'data_urii'" in run.stderr
    assert "data_uri, drop" in run.stderr
    assert not (tmp_path / "out").exists()
