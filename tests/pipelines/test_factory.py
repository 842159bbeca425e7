"""What can only be set when a pipeline is compiled reaches its file; what makes no sense is refused by name."""

import re
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from kfp import compiler, dsl
from typer.testing import CliRunner

from components.data_processing.prepare_parquet import prepare_parquet
from components.training.train_fastkan import train_fastkan
from pipelines.__main__ import app
from pipelines.compiled import ROOT
from pipelines.factory import build_pipeline
from pipelines.lint import lint
from pipelines.lint.documents import read_documents
from pipelines.pods import STEP, TRAINING_STEP, VOLUME_PATH, Settings, configure_pod, place_training
from pipelines.steps import prepare, train
from tests.pipelines.pods import pods_of

TRAIN = "exec-train-fastkan"
GPUS = {"pool": "gpu"}


def compiled(path: Path, **options: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return a pipeline, and what is said of its pods by executor."""
    compiler.Compiler().compile(build_pipeline("flights", **options), str(path))
    assert lint(path) == []
    spec, platform = read_documents(path)
    return spec, platform["platforms"]["kubernetes"]["deploymentSpec"]["executors"]


def test_settings_reach_the_file(tmp_path: Path) -> None:
    settings = Settings(
        shm_size="16Gi",
        retries=7,
        backoff="5s",
        retry_window="86400s",
        timeout=3600,
        run_as_user=1000,
        labels={"team": "flights"},
        annotations={"karpenter.sh/do-not-disrupt": "true"},
        caching=False,
        volume=True,
    )
    spec, pods = compiled(tmp_path / "flights.yaml", settings=settings)
    tasks = spec["root"]["dag"]["tasks"]
    assert spec["pipelineInfo"]["name"] == "flights"
    assert tasks["train-fastkan"]["retryPolicy"] == {
        "maxRetryCount": 7, "backoffDuration": "5s", "backoffFactor": 2.0, "backoffMaxDuration": "86400s"
    }  # fmt: skip
    assert not any(task.get("cachingOptions", {}).get("enableCache") for task in tasks.values())
    (shared,) = pods[TRAIN]["emptyDirMounts"]
    assert shared["sizeLimit"] == "16Gi"
    assert shared["volumeName"] == "dkan-shm", "a Secret or claim may be called shm, and its volume has that name"
    assert (
        pods[TRAIN]["activeDeadlineSeconds"] == "3600" and "activeDeadlineSeconds" not in pods["exec-prepare-parquet"]
    )
    for pod in pods.values():
        assert pod["podMetadata"]["labels"] == {"team": "flights"}
        assert pod["podMetadata"]["annotations"] == {"karpenter.sh/do-not-disrupt": "true"}
        assert pod["securityContext"]["runAsUser"] == "1000"
        assert pod["pvcMount"][0]["pvcNameParameter"] == {"componentInputParameter": "pvc_name"}


def test_steps_of_another_pipeline_are_configured_with_plain_values(tmp_path: Path) -> None:
    values = {each.name: each.default for each in (*STEP, *TRAINING_STEP)} | {"image": "dkan:9", "node_selector": GPUS}

    @dsl.pipeline
    def own(data_uri: str, num_gpus: str = "2") -> None:
        prepared = configure_pod(prepare_parquet(data_uri=data_uri, label="late"), values, Settings())
        trained = train_fastkan(prepared=prepared.outputs["prepared"], num_gpus=num_gpus)
        place_training(trained, {**values, "num_gpus": num_gpus}, Settings(shm_size="16Gi"))

    compiler.Compiler().compile(own, str(tmp_path / "own.yaml"))
    assert lint(tmp_path / "own.yaml") == []
    pod = pods_of(tmp_path / "own.yaml", data_uri="s3://bucket/flights")["train-fastkan"]["spec"]
    (main,) = pod["containers"]
    assert (main["image"], pod["nodeSelector"]) == ("dkan:9", GPUS)
    assert main["resources"]["limits"] == {"cpu": "4", "memory": "16Gi", "nvidia.com/gpu": "2"}
    assert "DKAN_AWS_ACCESS_KEY_ID" in {each["name"] for each in main["env"]}
    assert "/dev/shm" in {each["mountPath"] for each in main["volumeMounts"]}


def test_form_is_changed_by_name(tmp_path: Path) -> None:
    form = {"data_uri": {"default": "s3://bucket/flights"}, "num_gpus": {"default": "8"}}
    inputs = compiled(tmp_path / "flights.yaml", form=form)[0]["root"]["inputDefinitions"]["parameters"]
    assert inputs["num_gpus"]["defaultValue"] == "8" and inputs["data_uri"]["defaultValue"] == "s3://bucket/flights"
    with pytest.raises(
        ValueError, match="there is no parameter 'num_gpu'; expected one of architecture_search, batch_size"
    ):
        build_pipeline(form={"num_gpu": {"default": "8"}})
    # kfp's own error is of a built-in operation.
    with pytest.raises(ValueError, match="the default of 'num_gpus' must be a str, got 8"):
        build_pipeline(form={"num_gpus": {"default": 8}})


@pytest.mark.parametrize("preparation", [prepare.ONCE, prepare.IN_PARALLEL, prepare.SAMPLE])
@pytest.mark.parametrize("training", [train.ONCE, train.SWEEP, train.ON_NODES])
def test_every_preparation_goes_with_every_training(preparation: Any, training: Any, tmp_path: Path) -> None:
    spec, _ = compiled(tmp_path / "any.yaml", preparation=preparation, training=training)
    tasks = spec["root"]["dag"]["tasks"]
    assert {"evaluate-fastkan", "approve-model"} <= set(tasks)
    (prepared,) = {"prepare-parquet", "any-preparation", "flights-preparation"} & set(tasks)
    (check,) = {"check-training", "check-training-nodes"} & set(tasks)
    assert check in tasks[prepared]["dependentTasks"], "a wrong setting costs no preparation"


def test_pods_of_a_loop_are_limited(tmp_path: Path) -> None:
    spec, _ = compiled(tmp_path / "sweep.yaml", training=train.SWEEP, settings=Settings(parallelism=2))
    dags = [spec["root"]["dag"], *(part["dag"] for part in spec["components"].values() if "dag" in part)]
    loops = [task for dag in dags for task in dag["tasks"].values() if "parameterIterator" in task]
    assert [loop["iteratorPolicy"] for loop in loops] == [{"parallelismLimit": 2}]


def test_nodes_run_as_the_user_of_the_steps_and_mount_the_volume_where_they_do(tmp_path: Path) -> None:
    settings = Settings(volume=True, run_as_user=1000)
    spec, _ = compiled(tmp_path / "nodes.yaml", training=train.ON_NODES, settings=settings)
    for name in ("train-fastkan-nodes", "check-training-nodes"):
        given = spec["root"]["dag"]["tasks"][name]["inputs"]["parameters"]
        assert given["run_as_user"] == {"runtimeValue": {"constant": 1000.0}}
        assert given["mount_path"] == {"runtimeValue": {"constant": VOLUME_PATH}}
    assert not {"run_as_user", "mount_path"} & spec["root"]["inputDefinitions"]["parameters"].keys()


def test_secret_that_is_no_list_is_refused() -> None:
    with pytest.raises(ValueError, match=r"image_pull_secrets must be several names such as \('registry',\)"):
        Settings(image_pull_secrets="registry")  # type: ignore[arg-type] # each letter would be a name


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ({"shm_size": "16GB"}, "shm_size must be a quantity of at least 1Mi such as 8Gi, got '16GB'"),
        ({"retries": -1}, "retries must be at least 0, got -1"),
        ({"labels": {"team": "flights and more"}}, "labels must be a JSON object of labels such as"),
    ],
)
def test_setting_that_a_cluster_would_refuse_is_named(setting: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Settings(**setting)


def test_root_is_refused_unless_it_is_allowed() -> None:
    with pytest.raises(ValueError, match="run_as_user 0: is root"):
        Settings(run_as_user=0)
    assert Settings(run_as_user=0, run_as_non_root=False).run_as_user == 0


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (Settings(timeout=60), "timeout_seconds of the form"),
        (Settings(run_as_user=0, run_as_non_root=False), "run_as_user 0: the nodes of a TrainJob may not"),
    ],
)
def test_what_nodes_cannot_have_is_refused(settings: Settings, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        build_pipeline(training=train.ON_NODES, settings=settings)


def test_code_of_the_guide_compiles_to_pipelines_that_can_be_submitted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    found = re.findall(r"```python\n(.*?)```", (ROOT.parent / "docs/guides/kubeflow.md").read_text(), re.DOTALL)
    for code in found:
        exec(compile(code, "docs/guides/kubeflow.md", "exec"), {})
    assert {path.name for path in tmp_path.iterdir()} == {"flights.yaml", "train_both.yaml"}
    submit = ["submit", "--host", "http://kubeflow", "--experiment", "late", "--dry-run", "--pipeline"]
    (tmp_path / "params.json").write_text('{"data_uri": "s3://bucket/flights", "label": "late"}')
    run = partial(CliRunner().invoke, app)
    assert "pipeline flights, version" in run([*submit, "flights.yaml", "--params", "params.json"]).stdout
    refused = run([*submit, "flights.yaml", "--params", "params.json", "--params", "memory=64GB"])
    assert refused.exit_code == 2 and "'memory' must be a quantity" in refused.stderr
    # Its inputs are none of a form, so that they may be paths that only its own pods know.
    assert run([*submit, "train_both.yaml", "--params", "data_uri=flights"]).exit_code == 0
    refused = run(["run", "--pipeline", "train_both.yaml"])
    assert refused.exit_code == 2 and "is not built by pipelines.factory" in refused.stderr
