"""What a pipeline's form takes, as ``--param`` gives it, and what is refused before anything runs."""

import re
from pathlib import Path

import pytest

from pipelines.arguments import ArgumentError, read_parameters
from pipelines.compiled import DEFAULT, ROOT, inputs_of, package_of
from pipelines.form_checks import find_faults

REQUIRED = ["data_uri=flights", "label=late"]


def test_arguments_take_the_type_of_their_parameter() -> None:
    given = [*REQUIRED, "epochs=3", "dropout=0.5", "num_gpus=2", "group=a=b", 'settings={"seed": 1}', "tolerations=[]"]
    assert read_parameters(inputs_of(package_of(DEFAULT)), given) == {
        "data_uri": "flights", "label": "late", "epochs": 3, "dropout": 0.5, "num_gpus": "2", "group": "a=b",
        "settings": {"seed": 1}, "tolerations": [],
    }  # fmt: skip


@pytest.mark.parametrize(
    ("assignments", "message"),
    [
        ([*REQUIRED, "epoch=3"], r"unknown parameter 'epoch' \(did you mean 'epochs'\?\)$"),
        ([*REQUIRED, "model_kind=tree"], "model_kind must be one of auto, fastkan, additive, got 'tree'"),
        ([*REQUIRED, "batch-size=8"], r"unknown parameter 'batch-size' \(did you mean 'batch_size'\?\)"),
        ([*REQUIRED, "init-from=m"], r"unknown parameter 'init-from' \(did you mean 'initial_model_uri'\?\)$"),
        ([*REQUIRED, "mode=async"], r"unknown parameter 'mode'; .* goes into settings=\{\"mode\": ...\}$"),
        ([*REQUIRED, "columns=x"], "unknown parameter 'columns'; expected one of architecture_search, "),
        ([*REQUIRED, "columns=x", "rows=y"], r"'columns'; expected one of .*\nunknown parameter 'rows'$"),
        ([*REQUIRED, "epochs=few"], "parameter 'epochs' must be a whole number, got 'few'"),
        ([*REQUIRED, "dropout=low"], "parameter 'dropout' must be a number, got 'low'"),
        ([*REQUIRED, "epochs"], "expected NAME=VALUE or a .toml, .json, .yaml, .yml file, got 'epochs'"),
        ([*REQUIRED, "settings=[1]"], r"parameter 'settings' must be a JSON object, got \[1\]"),
        ([*REQUIRED, "tolerations=none"], "parameter 'tolerations' must be a JSON list, got 'none'"),
        ([*REQUIRED, 'settings={"seed": 1, "seed": 2}'], r"must be a JSON object, .* \(seed is given twice\)"),
        (["label=late"], "missing parameter data_uri; the pipeline requires data_uri, label$"),
        (
            [*REQUIRED, "secret_name="],
            "parameter 'secret_name' must be a name of at most 63 lowercase letters, .* got ''",
        ),
        (
            [*REQUIRED, "secret_name=dkan.storage"],
            "parameter 'secret_name' must be a name of at most 63 lowercase letters",
        ),
        ([*REQUIRED, f"secret_name={64 * 'a'}"], "parameter 'secret_name' must be a name of at most 63 lowercase"),
        ([*REQUIRED, "config_map_name=My_Map"], "parameter 'config_map_name' must be a name of lowercase letters"),
        ([*REQUIRED, "image=dkan: 0.2.0"], "parameter 'image' must be an image such as"),
        ([*REQUIRED, "image=https://registry.example/dkan"], "parameter 'image' must be an image such as"),
        ([*REQUIRED, "memory=64GB"], "parameter 'memory' must be a quantity of at least 64Mi such as 16Gi, got '64GB'"),
        ([*REQUIRED, "memory=64"], "parameter 'memory' must be a quantity of at least 64Mi"),
        ([*REQUIRED, "memory=100m"], "parameter 'memory' must be a quantity of at least 64Mi"),
        ([*REQUIRED, "cpu=0"], "parameter 'cpu' must be a number of cores above 0"),
        ([*REQUIRED, "step_cpu=4Gi"], "parameter 'step_cpu' must be a number of cores above 0"),
        ([*REQUIRED, "gpu_type= "], "gpu_type must be a resource name such as nvidia.com/gpu, got ' '"),
        ([*REQUIRED, "gpu_type=gpu"], "gpu_type must be a resource name such as nvidia.com/gpu, got 'gpu'"),
        ([*REQUIRED, 'node_selector={"a b": "x"}'], "parameter 'node_selector' must be a JSON object of labels"),
        ([*REQUIRED, 'tolerations=[{"key": "a b", "operator": "Exists"}]'], "a JSON list of tolerations such as"),
        ([*REQUIRED, "num_gpus=all"], "num_gpus must be a whole number, 0 or more, got 'all'"),
        ([*REQUIRED, "num_gpus=\N{ARABIC-INDIC DIGIT THREE}"], "num_gpus must be a whole number, 0 or more, got"),
        ([*REQUIRED, 'settings={"checkpoint_uri": "x"}'], "checkpoint_uri has a field of its own; move 'x' there"),
        ([*REQUIRED, "num_gpus="], "num_gpus must be a whole number, 0 or more, got ''"),
        ([*REQUIRED, 'node_selector={"gpu": true}'], "parameter 'node_selector' must be a JSON object of labels"),
        ([*REQUIRED, 'step_tolerations=["gpu"]'], "parameter 'step_tolerations' must be a JSON list of"),
        ([*REQUIRED, 'tolerations=[{"key": "gpu", "operator": "exists"}]'], "a JSON list of tolerations such as"),
        ([*REQUIRED, 'tolerations=[{"keys": "gpu"}]'], "a JSON list of tolerations such as"),
        ([*REQUIRED, 'tolerations=[{"key": "gpu", "tolerationSeconds": 60}]'], "a JSON list of tolerations such as"),
        ([*REQUIRED, 'tolerations=[{"value": "gpu"}]'], "a JSON list of tolerations such as"),
        ([*REQUIRED, 'tolerations=[{"operator": "Exists", "value": "a"}]'], "a JSON list of tolerations such as"),
        ([*REQUIRED, "split=80/30/10"], "split must add up to 100"),
        (["label=late", "data_uri=,"], "parameter 'data_uri' must be a path or URI, not empty, got ','"),
        ([*REQUIRED, "epochs=-3"], "epochs must be from 1 to"),
        ([*REQUIRED, "strategy=single", "num_gpus=4"], "workers 4: strategy single has one"),
        ([*REQUIRED, "num_gpus=8", "workers=4"], "workers 4: with num_gpus 8 there is one per GPU; leave workers at 0"),
        ([*REQUIRED, 'settings={"epoch": 3}'], r"unknown setting 'epoch' \(did you mean 'epochs'\?\)"),
    ],
)
def test_arguments_that_do_not_fit_are_named(assignments: list[str], message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        read_parameters(inputs_of(package_of(DEFAULT)), assignments)


def test_file_of_the_guide_holds_parameters_and_lists_as_text(tmp_path: Path) -> None:
    guide = (ROOT.parent / "docs/guides/ci.md").read_text()
    (content,) = re.findall(r"^```toml\n(.*?)^```", guide, re.MULTILINE | re.DOTALL)
    path = tmp_path / "params.toml"
    path.write_text(content)
    assert read_parameters(inputs_of(package_of(DEFAULT)), [str(path)])["hidden"] == "64,64"
    path.write_text(content.replace('"64,64"', "[64, 64]"))
    with pytest.raises(ArgumentError, match=r'must be text, got \[64, 64\]; separate several by commas: "64,64"'):
        read_parameters(inputs_of(package_of(DEFAULT)), [str(path)])


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("twice.json", '{"settings": {"seed": 1, "seed": 2}}', "seed is given twice"),
        ("twice.yaml", "settings: {seed: 1, seed: 2}", "seed is given twice"),
        ("twice.yml", "seed: 1\nlabel: late\nseed: 2", "seed is given twice"),
        ("true.yaml", "on: 1", "expected parameters by name"),
    ],
)
def test_file_whose_keys_name_no_parameters_is_refused(tmp_path: Path, name: str, text: str, message: str) -> None:
    (tmp_path / name).write_text(text)
    with pytest.raises(ArgumentError, match=f"{name}: {message}"):
        read_parameters(inputs_of(package_of(DEFAULT)), [str(tmp_path / name)])


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("image", "dkan"),
        ("image", "registry.example:5000/team/dkan:0.2.0_rc.1"),
        ("image", f"registry.example/dkan@sha256:{64 * 'a'}"),
        ("config_map_name", "dkan.storage-1"),
        ("secret_name", "dkan-storage-1"),
        ("gpu_type", "nvidia.com/mig-1g.10gb"),
        ("tolerations", '[{"operator": "Exists"}, {"key": "sku", "value": "gpu", "effect": "NoSchedule"}]'),
        ("tolerations", '[{"key": "gpu", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 60.0}]'),
    ],
)
def test_arguments_that_kubernetes_accepts_pass(name: str, value: str) -> None:
    assert name in read_parameters(inputs_of(package_of(DEFAULT)), [*REQUIRED, f"{name}={value}"])


@pytest.mark.parametrize(
    ("pipeline", "assignments", "message"),
    [
        ("sweep", [*REQUIRED, "sweep=[3]"], r"sweep must be a JSON list such as .* got \[3\]"),
        ("sweep", [*REQUIRED, 'sweep=[{"epochs": 3}, {"epochs": 3.0}]'], "without the same settings twice"),
        ("sweep", [*REQUIRED, 'sweep=[{"hidden": [64]}, {"hidden": "64", "seed": 0}]'], "without the same settings"),
        ("sweep", [*REQUIRED, 'sweep=[{"checkpoint_uri": "x"}]'], "checkpoint_uri has a field of its own"),
        ("sweep", [*REQUIRED, 'sweep=[{"seed": 1}, {"epochs": -3}]'], "epochs must be from 1 to"),
        ("multi-node", [*REQUIRED, "run_uri=s3://b/r", "prepared_uri=s3://b/p", "memory_per_node=64GB"], "64GB"),
        (
            "multi-node",
            [*REQUIRED, "run_uri=s3://b/r", "prepared_uri=s3://b/p", 'labels={"a b": "c"}'],
            "labels must be",
        ),
        (
            "multi-node",
            [*REQUIRED, "run_uri=s3://b/r", "prepared_uri=s3://b/p", "refit=true"],
            "refit: not supported on several nodes",
        ),
        (
            "single-node-pvc",
            [*REQUIRED, "secret_name=dkan"],
            "parameter 'pvc_name' must differ from 'secret_name', got 'dkan'",
        ),
        ("single-node-pvc", [*REQUIRED, "pvc_name=dkan.data"], "parameter 'pvc_name' must be a name of at most 63"),
        (
            "multi-node",
            [*REQUIRED, "run_uri=s3://b/r", "prepared_uri="],
            "'run_uri' needs 'prepared_uri', which is empty",
        ),
        ("multi-node", [*REQUIRED, "run_uri= ", "prepared_uri=s3://b/p"], "'run_uri' must be a path or URI, not empty"),
        ("parallel-prepare", [*REQUIRED, "prepared_uri= "], "'num_parts' needs 'prepared_uri', which is empty"),
        ("smoke", ["split=80/30/10"], "split must add up to 100"),
    ],
)
def test_arguments_that_a_step_would_refuse_are_named(pipeline: str, assignments: list[str], message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        read_parameters(inputs_of(package_of(pipeline)), assignments)


@pytest.mark.parametrize(
    "form",
    [
        {"data_uri": "flights.parquet", "publish_uri": "", "prepared_uri": ""},
        {"data_uri": "*.parquet"},
        {"data_uri": "s3://my.bucket"},
        {"data_uri": "s3://b/flights.parquet", "publish_uri": "s3://b/late-1.0"},
        {"checkpoint_uri": "s3://b/checkpoints.v2", "publish_uri": "s3://b/models.v2"},
        {"prepared_uri": "/mnt/dkan/runs/v1.0", "publish_uri": "/mnt/dkan/runs/v1.1"},
        {"model_uri": "s3://b/models/v1.0", "output_uri": "s3://b/models"},
        {"data_uri": "s3://b/a, s3://b/b/*.parquet", "publish_uri": "s3://b/b/late"},
        {"data_uri": "s3://b/new/{date}", "output_uri": "s3://b/scores/{date}"},
    ],
    ids=str,
)
def test_uris_that_differ_are_fine(form: dict[str, str]) -> None:
    assert find_faults(form) == []


@pytest.mark.parametrize(
    "form",
    [
        {"prepared_uri": "s3://b/run-1.0/", "publish_uri": "s3://b/run-1.0"},
        {"data_uri": "s3://b/flights.v1", "publish_uri": "s3://b/flights.v1/"},
        {"data_uri": "s3://b/f/**/*.parquet", "publish_uri": "s3://b//f"},
        {"data_uri": "s3://b/a, s3://b/c", "prepared_uri": "s3://b/x/../c"},
        {"model_uri": "s3://b/m", "output_uri": "s3://b/m"},
    ],
    ids=str,
)
def test_uris_that_two_steps_share_are_named(form: dict[str, str]) -> None:
    (fault,) = find_faults(form)
    assert "must differ from" in fault


@pytest.mark.parametrize(
    ("form", "message"),
    [
        ({"previous_model_uri": "s3://b/late/{date}"}, "'previous_model_uri' cannot have a date; {date} may be in"),
        ({"publish_uri": "s3://b/late/{date}/", "registry_url": "http://r"}, "'registered_name' is empty, and would"),
    ],
)
def test_dates_that_no_step_fills_in_are_named(form: dict[str, str], message: str) -> None:
    (fault,) = find_faults(form)
    assert message in fault
