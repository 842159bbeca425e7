"""The committed pipeline.yaml files, and the arguments they take."""

import json
import os
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
from kfp import dsl
from typer.main import get_command
from typer.testing import CliRunner

from dkan_core.forms.uris import READ, WRITTEN
from dkan_core.utils.storage.credentials import CONFIG_KEYS, SECRET_KEYS, VARIABLES, own_name
from pipelines.__main__ import app, describe_publication
from pipelines.arguments import TYPES
from pipelines.compiled import DEFAULT, PIPELINES, ROOT, load_pipeline, package_of
from pipelines.lint.documents import read_documents
from pipelines.pods import VOLUME_PATH

REQUIRED = ["data_uri=flights", "label=late"]
VERSION = tomllib.loads((ROOT.parent / "pyproject.toml").read_text())["project"]["version"]
NOT_RETRIED = tuple(
    f"exec-{name}"
    for name in (
        *("resolve-uris", "check-training", "approve-model", "complete-scores", "plan-scoring"),
        *("fingerprint-parquet", "prepare-parquet", "plan-preparation", "fit-preparation"),
        *("train-fastkan-nodes", "deploy-model"),
    )
)
"""Their failure says something of the form, the data, the model or the scores, and would come again; or they wait for
the cluster no longer than the form says."""

SCORING = ("plan-scoring", "predict-parquet", "summarize-scores", "complete-scores")


@pytest.fixture(params=PIPELINES, scope="module")
def spec(request: pytest.FixtureRequest) -> dict[str, Any]:
    """Return what each compiled file says of the pipeline."""
    documents: list[dict[str, Any]] = read_documents(package_of(request.param))
    return documents[0]


@pytest.fixture(params=PIPELINES, scope="module")
def kubernetes(request: pytest.FixtureRequest) -> dict[str, Any]:
    """Return what each compiled file says of pods, by executor."""
    documents = read_documents(package_of(request.param))
    executors: dict[str, Any] = documents[1]["platforms"]["kubernetes"]["deploymentSpec"]["executors"]
    return executors


def all_tasks(spec: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Return every task that runs a container, by its executor."""
    dags = [spec["root"]["dag"], *(part["dag"] for part in spec["components"].values() if "dag" in part)]
    tasks = [task for dag in dags for task in dag["tasks"].values()]
    labels = {name: part["executorLabel"] for name, part in spec["components"].items() if "executorLabel" in part}
    return {labels[name]: task for task in tasks if (name := task["componentRef"]["name"]) in labels}


def test_committed_files_are_what_compiling_gives() -> None:
    check = CliRunner().invoke(app, ["compile", "--check"])
    assert check.exit_code == 0, check.output


def test_every_compiled_file_is_a_pipeline_that_is_known() -> None:
    assert {package_of(name) for name in PIPELINES} == set(ROOT.glob("*/*/pipeline.yaml"))


def test_check_fails_when_a_file_is_out_of_date() -> None:
    check = subprocess.run(
        [sys.executable, "-m", "pipelines", "compile", "--check"],
        cwd=ROOT.parent,
        env=os.environ | {"DKAN_IMAGE": "registry.example/dkan:9"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert check.returncode == 1
    assert "python -m pipelines compile" in check.stderr


@pytest.mark.parametrize("image", ["", ":1.0", "registry.example/Team/dkan:1.0"])
def test_text_that_is_no_image_is_refused(monkeypatch: pytest.MonkeyPatch, image: str) -> None:
    monkeypatch.setattr("pipelines.__main__.IMAGE", image)
    result = CliRunner().invoke(app, ["compile", "--check"])
    assert result.exit_code == 2 and "DKAN_IMAGE must be an image such as" in result.stderr
    assert f"got {image!r}" in result.stderr


def test_folder_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    result = CliRunner().invoke(app, ["compile", "--out", str(tmp_path / "file")])
    assert result.exit_code == 2 and f"{tmp_path / 'file'}: cannot be written" in result.stderr


def test_every_step_runs_in_the_image_of_the_form(spec: dict[str, Any]) -> None:
    assert spec["root"]["inputDefinitions"]["parameters"]["image"]["defaultValue"] == f"dkan:{VERSION}"
    images = {executor["container"]["image"] for executor in spec["deploymentSpec"]["executors"].values()}
    assert images == {"{{$.inputs.parameters['pipelinechannel--image']}}"}


def test_every_step_brings_its_whole_command(spec: dict[str, Any]) -> None:
    for executor in spec["deploymentSpec"]["executors"].values():
        command = executor["container"]["command"]
        assert command[:2] == ["sh", "-ec"], "the image has no ENTRYPOINT"
        assert not any("pip install" in part for part in command), "the image already holds kfp"


def test_gpu_count_is_text_and_reaches_pod_and_trainer() -> None:
    spec = read_documents(package_of(DEFAULT))[0]
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


def test_only_what_depends_on_its_inputs_alone_is_cached(spec: dict[str, Any]) -> None:
    cached = {name for name, task in all_tasks(spec).items() if task["cachingOptions"].get("enableCache")}
    never = {
        "check-training",
        "check-training-nodes",
        "resolve-uris",
        "fingerprint-parquet",
        "evaluate-fastkan",
        "approve-model",
        "publish-model",
        *SCORING,
    }
    assert not {name for name in cached if name.removeprefix("exec-") in never}
    trains = any(name.startswith("exec-train") for name in all_tasks(spec))
    is_smoke = spec["pipelineInfo"]["name"] == "fastkan-smoke"
    assert bool(cached & {"exec-train-fastkan", "exec-train-fastkan-nodes"}) == (trains and not is_smoke)
    assert not (cached and is_smoke), "a second run is to test the cluster, too"


def test_resources_are_among_the_inputs_and_with_them_in_the_key_of_the_cache() -> None:
    """The driver's key has all inputs of a task; the form's resources reach the pod as such."""
    tasks = read_documents(package_of(DEFAULT))[0]["root"]["dag"]["tasks"]
    inputs = tasks["train-fastkan"]["inputs"]["parameters"]
    taken = {given.get("componentInputParameter") for given in inputs.values()}
    assert {"cpu", "memory", "num_gpus", "gpu_type", "image"} <= taken
    assert not {"node_selector", "tolerations", "secret_name", "config_map_name"} & taken


def test_key_of_the_cache_cannot_be_made_of_parameters() -> None:
    """What kfp offers instead is a constant of the compiled file: the same for all data and settings."""

    @dsl.container_component
    def train(data: str):  # type: ignore[no-untyped-def]
        return dsl.ContainerSpec(image="dkan", command=["train", data])

    with pytest.raises(TypeError):

        @dsl.pipeline
        def keyed(data: str) -> None:
            train(data=data).set_caching_options(True, cache_key=data)


def test_steps_are_tried_again_after_a_pause_unless_they_would_find_the_same(spec: dict[str, Any]) -> None:
    for name, task in all_tasks(spec).items():
        expected = None if name.startswith(NOT_RETRIED) else ("30s", 2.0, 3)
        policy = task.get("retryPolicy", {})
        found = tuple(policy.get(key) for key in ("backoffDuration", "backoffFactor", "maxRetryCount"))
        assert (found if policy else None) == expected, name


def test_first_step_is_given_every_place_to_check(spec: dict[str, Any]) -> None:
    form = spec["root"]["inputDefinitions"]["parameters"]
    given = spec["root"]["dag"]["tasks"]["resolve-uris"]["inputs"]["parameters"]
    for name in form.keys() & {*READ, *WRITTEN}:
        assert given[name] == {"componentInputParameter": name}
    volume = VOLUME_PATH if "pvc_name" in form else ""
    assert given["volume_path"] == {"runtimeValue": {"constant": volume}}


def test_on_this_machine_a_failure_ends_the_run_at_once() -> None:
    loaded = load_pipeline(package_of(DEFAULT)).pipeline_spec
    tasks = [task for part in (loaded.root, *loaded.components.values()) for task in part.dag.tasks.values()]
    assert tasks and not any(task.HasField("retry_policy") for task in tasks)


def test_steps_that_read_neither_rows_nor_weights_are_small(spec: dict[str, Any]) -> None:
    small = {
        name
        for name, executor in spec["deploymentSpec"]["executors"].items()
        if executor["container"]["resources"].get("resourceMemoryLimit") == "2Gi"
    }
    assert "exec-resolve-uris" in small
    heavy = ("exec-prepare", "exec-predict", "exec-evaluate", "exec-summarize", "exec-publish", "exec-fit")
    assert not {name for name in small if name.startswith(heavy)}
    if "exec-train-fastkan-nodes" in spec["deploymentSpec"]["executors"]:
        assert "exec-train-fastkan-nodes" in small, "the launcher waits for days"


def test_date_is_in_no_key_of_the_cache(spec: dict[str, Any]) -> None:
    """A place without a date is the same every night, and other fields do not come from the step."""
    for task in all_tasks(spec).values():
        sources = task.get("inputs", {}).get("parameters", {})
        dated = {name for name, source in sources.items() if "resolve-uris" in json.dumps(source)}
        if task["cachingOptions"].get("enableCache"):
            assert dated <= {"data_uri"}


def test_every_pod_gets_credentials_that_may_be_absent(kubernetes: dict[str, Any]) -> None:
    for name, pod in kubernetes.items():
        for kind in ("secretAsEnv", "secretAsVolume", "configMapAsEnv"):
            assert [source["optional"] for source in pod[kind]] == [True], f"{name}: {kind}"
        variables = {each["envVar"] for kind in ("secretAsEnv", "configMapAsEnv") for each in pod[kind][0]["keyToEnv"]}
        assert variables == {own_name(key) for key in (*SECRET_KEYS, *CONFIG_KEYS)}
        assert {f"DKAN_{name}" for name in VARIABLES} <= variables
        assert pod["securityContext"] == {"runAsNonRoot": True}


def test_runs_of_a_sweep_know_that_they_belong_together(
    kubernetes: dict[str, Any], request: pytest.FixtureRequest
) -> None:
    known = {name: pod["fieldPathAsEnv"] for name, pod in kubernetes.items() if "fieldPathAsEnv" in pod}
    in_sweep = {"name": "DKAN_SWEEP", "fieldPath": "metadata.labels['workflows.argoproj.io/workflow']"}
    is_sweep = "sweep" in request.node.callspec.id
    assert known == ({"exec-train-fastkan": [in_sweep]} if is_sweep else {})


def test_one_pod_with_gpus_has_shared_memory(kubernetes: dict[str, Any]) -> None:
    if "exec-train-fastkan" in kubernetes:
        (mount,) = kubernetes["exec-train-fastkan"]["emptyDirMounts"]
        assert (mount["mountPath"], mount["medium"]) == ("/dev/shm", "Memory")


def test_every_parameter_type_can_be_given_on_the_command_line(spec: dict[str, Any]) -> None:
    assert {field["parameterType"] for field in spec["root"]["inputDefinitions"]["parameters"].values()} <= set(TYPES)


def test_docker_that_cannot_be_reached_ends_the_run_before_it_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/docker.sock")
    run = CliRunner().invoke(app, ["run", "--pipeline", "smoke", "--image", "dkan", "--out", str(tmp_path / "out")])
    assert run.exit_code == 2 and "error: Docker cannot be reached, and --image" in run.stderr


def test_wrong_parameter_ends_the_run_before_it_starts(tmp_path: Path) -> None:
    run = CliRunner().invoke(app, ["run", "--param", "data_urii=flights", "--out", str(tmp_path / "out")])
    assert run.exit_code == 2
    assert "unknown parameter 'data_urii'" in run.stderr
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("approved", "arguments", "text"),
    [
        (True, {"publish_uri": "s3://bucket/late"}, "published: s3://bucket/late"),
        (True, {"publish_uri": ""}, "not published: publish_uri is empty"),
        (False, {"min_average_precision": 0.3}, "not published: test AP 0.2914 is below 0.3"),
        (
            False,
            {"publish_uri": "models/late"},
            "not published: the earlier model has a higher test AP, or could not",
        ),
    ],
)
def test_run_ends_with_where_its_model_was_published(approved: bool, arguments: dict[str, Any], text: str) -> None:
    found = describe_publication({"average_precision": 0.2914, "approved": approved}, arguments)
    assert found.startswith(text)


def commands_of_pipelines() -> list[list[str]]:
    return [[], *([name] for name in get_command(app).commands)]  # type: ignore[attr-defined]


@pytest.mark.parametrize("words", commands_of_pipelines(), ids=" ".join)
def test_every_command_has_help_by_its_short_name(words: list[str]) -> None:
    result = CliRunner().invoke(app, [*words, "-h"])
    assert result.exit_code == 0 and "Usage" in result.output, result.output
    assert "<bool>" not in result.output, "a flag takes no value"
