"""Runs, evaluations and models in a real MLflow server; a server that does not answer is done without."""

import json
import logging
import os
import re
import shutil
import signal
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import dkan_core
from dkan_core import DataError, TrainResult, evaluate, predict, train
from dkan_core.data.format.manifest import read_manifest
from dkan_core.tracking.choice import follow_run
from dkan_core.tracking.mlflow import client as client_module
from dkan_core.tracking.mlflow.sweep import PARENT_TAG, SWEEP_TAG, VARIABLE, join_sweep
from dkan_core.tracking.tracker import RunEnd, TrackedRun
from tests.tracking.conftest import CONFIG, evaluation_at
from tests.tracking.mlflow_server import serve_mlflow
from tests.training.faults import slow_steps
from tests.training.processes import Background, wait_until

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("variables")]

LONG = replace(CONFIG, epochs=100_000, patience=1_000_000)
END = RunEnd(status="finished")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with serve_mlflow(tmp_path_factory.mktemp("mlflow")) as address:
        yield address


@pytest.fixture(scope="module")
def mlflow(server: str, variables: pytest.MonkeyPatch) -> Iterator[Any]:
    """MLflow's client, and the environment that has a run logged to the server."""
    variables.setenv("MLFLOW_TRACKING_URI", server)
    with client_module.impatient_client():
        import mlflow

        yield mlflow


@pytest.fixture(scope="module")
def logged(mlflow: Any, prepared: Path, tmp_path_factory: pytest.TempPathFactory) -> TrainResult:
    """A run that was logged."""
    return train(prepared, tmp_path_factory.mktemp("logged") / "run", CONFIG)


def run_id_of(result: TrainResult) -> str:
    found: str = json.loads((Path(result.model).parent / "mlflow.json").read_text())["run_id"]
    return found


def run_of(mlflow: Any, result: TrainResult) -> Any:
    return mlflow.MlflowClient().get_run(run_id_of(result))


def test_run_has_settings_data_and_every_evaluation(
    mlflow: Any, logged: TrainResult, prepared: Path, trained: TrainResult
) -> None:
    run = run_of(mlflow, logged)
    assert run.info.status == "FINISHED" and run.info.run_name == "run"
    assert [each.step for each in run.outputs.model_outputs] == [logged.metrics["step"]]
    assert run.data.params.items() >= {"hidden": "8", "strategy": "single", "epochs": "8", "seed": "0"}.items()
    assert run.data.tags["dkan.data_fingerprint"] == read_manifest(prepared).fingerprint
    assert run.data.tags["dkan.version"] == dkan_core.__version__
    assert run.data.tags["mlflow.note.content"] == (Path(logged.model) / "README.md").read_text()
    for name, key in (("valid/average_precision", "average_precision"), ("train/loss", "loss"), ("epoch", "epoch")):
        points = mlflow.MlflowClient().get_metric_history(run.info.run_id, name)
        assert {(point.step, point.value) for point in points} >= {(each["step"], each[key]) for each in logged.history}
    assert run.data.metrics["best/average_precision"] == logged.average_precision
    names = {each.path for each in mlflow.MlflowClient().list_artifacts(run.info.run_id)}
    assert {"metrics.json", "history.jsonl"} <= names
    same = [(Path(result.model) / "model.safetensors").read_bytes() for result in (logged, trained)]
    assert same[0] == same[1], "a run that is logged is the same run"


def test_model_in_mlflow_scores_as_predict_does(
    mlflow: Any, logged: TrainResult, source: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    loaded = mlflow.pyfunc.load_model(f"runs:/{run_id_of(logged)}/model")
    frame = pd.read_parquet(source)
    # In another order, with an index of its own, and with a column that the model does not know.
    shuffled = frame[frame.columns[::-1]].assign(other=1).set_index(pd.Index(range(5, len(frame) + 5)))
    found = loaded.predict(shuffled)
    predict(logged.model, source, tmp_path / "scores.parquet")
    expected = pd.read_parquet(tmp_path / "scores.parquet")
    assert list(found.columns) == list(expected.columns) == ["label_probability"]
    assert np.array_equal(found.to_numpy(), expected.to_numpy()) and found.index.equals(shuffled.index)
    with pytest.raises(Exception, match="mean_radius"):
        loaded.predict(frame.drop(columns="mean_radius"))
    caplog.clear()
    loaded.predict(frame)
    assert not caplog.records
    loaded.predict(frame.assign(site="elsewhere"))
    (text,) = [record.getMessage() for record in caplog.records]
    assert text.startswith("model_input: column 'site': ") and "hold a value that the model does not know" in text
    caplog.clear()
    loaded.predict(frame.assign(site="elsewhere"))
    assert not caplog.records, "a server calls it for each request, and a log has a line in ten minutes"


def test_model_in_mlflow_holds_no_pickle_and_has_a_signature(mlflow: Any, logged: TrainResult, tmp_path: Path) -> None:
    uri = f"runs:/{run_id_of(logged)}/model"
    folder = Path(mlflow.artifacts.download_artifacts(uri, dst_path=str(tmp_path)))
    suffixes = {path.suffix for path in folder.rglob("*") if path.is_file()}
    assert suffixes <= {"", ".txt", ".yaml", ".json", ".safetensors", ".md"}
    info = mlflow.models.get_model_info(uri)
    assert info.flavors["python_function"]["loader_module"] == "dkan_core.tracking.mlflow.model"
    names = [column.name for column in info.signature.inputs.inputs]
    assert {"mean_radius", "site"} <= {*names}
    loaded = mlflow.pyfunc.load_model(uri)
    example = loaded.input_example
    assert list(example.columns) == names and example.notna().all(axis=None)
    assert 0 <= loaded.predict(example).iloc[0, 0] <= 1


def test_columns_of_other_types_fit_the_signature(mlflow: Any, tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    rows = 600
    frame = pd.DataFrame(
        {
            "count": rng.integers(0, 9, rows),
            "small": rng.normal(size=rows).astype(np.float32),
            "flag": rng.random(rows) < 0.5,
            "word": rng.choice(np.array(["a", "b", None], dtype=object), rows),
        }
    )
    frame.loc[::7, "small"] = np.nan
    frame["word"] = frame["word"].astype("category")
    frame["label"] = ((frame["count"] > 4) ^ frame["flag"]).astype(np.int8)
    frame.to_parquet(tmp_path / "rows.parquet")
    dkan_core.prepare(tmp_path / "rows.parquet", tmp_path / "data", dkan_core.PrepareConfig(label=("label",)))
    result = train(tmp_path / "data", tmp_path / "run", replace(CONFIG, epochs=1))
    loaded = mlflow.pyfunc.load_model(f"runs:/{run_id_of(result)}/model")
    for changed in (frame, frame.assign(small=7)):
        changed.to_parquet(tmp_path / "rows.parquet")
        predict(result.model, tmp_path / "rows.parquet", tmp_path / "scores.parquet", overwrite=True)
        found = loaded.predict(changed.drop(columns="label"))
        assert np.array_equal(found.to_numpy(), pd.read_parquet(tmp_path / "scores.parquet").to_numpy())


def test_example_with_vectors_of_bits_is_scored(mlflow: Any, tmp_path: Path) -> None:
    bits = np.random.default_rng(0).integers(0, 256, (600, 2), np.uint8)
    vectors = pa.array([row.tobytes() for row in bits], pa.binary(2))
    pq.write_table(pa.table({"bits": vectors, "label": bits[:, 0] >> 7}), tmp_path / "rows.parquet")
    dkan_core.prepare(tmp_path / "rows.parquet", tmp_path / "data", dkan_core.PrepareConfig(label=("label",)))
    result = train(tmp_path / "data", tmp_path / "run", replace(CONFIG, epochs=1))
    loaded = mlflow.pyfunc.load_model(f"runs:/{run_id_of(result)}/model")
    expected = loaded.predict(pd.DataFrame({"bits": [b"\0\0"]}))
    # JSON, in which MLflow writes bytes in base64.
    assert isinstance(loaded.input_example["bits"][0], str)
    assert loaded.predict(loaded.input_example).equals(expected)
    for wrong, message in (("AA", "expected vectors of bits"), ("AAAA", "holds others than vectors of 2 bytes")):
        with pytest.raises(DataError, match=f"column 'bits'.*{message}"):
            loaded.predict(pd.DataFrame({"bits": ["AAA=", wrong]}))


def test_evaluation_is_logged_with_the_run_that_trained_the_model(
    mlflow: Any, logged: TrainResult, prepared: Path, tmp_path: Path
) -> None:
    found = evaluate(logged.model, prepared, tmp_path / "eval")
    run = run_of(mlflow, logged)
    assert run.data.metrics["test/average_precision"] == found.metrics["average_precision"]
    assert run.info.status == "FINISHED"
    page = mlflow.artifacts.load_text(f"{run.info.artifact_uri}/test/report.html")
    assert page == (tmp_path / "eval" / "report.html").read_text()
    learned = mlflow.artifacts.load_dict(f"{run.info.artifact_uri}/test/learned.json")
    assert len(learned["importance"]) == 11 and list(learned["labels"]) == ["label"]
    # Of valid, beside the curve of training.
    points = mlflow.MlflowClient().get_metric_history(run.info.run_id, "valid/average_precision")
    again = evaluate(logged.model, prepared, tmp_path / "valid", split="valid", explain=False)
    assert mlflow.MlflowClient().get_metric_history(run.info.run_id, "valid/average_precision") == points
    found = run_of(mlflow, logged).data.metrics["evaluation/valid/average_precision"]
    assert found == again.metrics["average_precision"]
    # One whose run is not known has a run of its own.
    copy = shutil.copytree(logged.model, tmp_path / "published" / "model")
    evaluate(copy, prepared, tmp_path / "other", explain=False)
    (alone,) = mlflow.MlflowClient().search_runs(["0"], "attributes.run_name = 'evaluation'")
    assert alone.info.status == "FINISHED" and alone.data.tags["dkan.model"] == str(copy)
    assert "test/roc_auc" in alone.data.metrics


def test_run_of_an_evaluation_whose_upload_fails_has_failed(
    mlflow: Any, logged: TrainResult, prepared: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*arguments: object) -> None:
        raise OSError("no room")

    experiment = mlflow.MlflowClient().create_experiment("failing")
    monkeypatch.setenv("MLFLOW_EXPERIMENT_ID", experiment)
    monkeypatch.setattr(mlflow.MlflowClient, "log_text", refuse)
    copy = shutil.copytree(logged.model, tmp_path / "published" / "model")
    evaluate(copy, prepared, tmp_path / "eval", explain=False)
    (run,) = mlflow.MlflowClient().search_runs([experiment])
    assert run.info.status == "FAILED"


def test_interrupted_run_is_killed_and_goes_on_as_the_same_run(mlflow: Any, prepared: Path, tmp_path: Path) -> None:
    slow = slow_steps(tmp_path, until=tmp_path / "never")
    background = Background(prepared, tmp_path / "run", LONG, tmp_path / "settings.json", **slow)
    try:
        wait_until(lambda: (tmp_path / "run" / "mlflow.json").exists() and background.evaluated() > 1)
        os.kill(background.process.pid, signal.SIGINT)
        code, output = background.wait()
    finally:
        background.end()
    assert code == 130 and not re.search("was not logged|an update failed", output), output
    run_id = json.loads((tmp_path / "run" / "mlflow.json").read_text())["run_id"]
    assert mlflow.MlflowClient().get_run(run_id).info.status == "KILLED"
    epochs = int(background.history()[-1]["epoch"]) + 2
    again = train(prepared, tmp_path / "run", replace(LONG, epochs=epochs, resume="auto"))
    run = run_of(mlflow, again)
    assert run.info.run_id == run_id and run.info.status == "FINISHED"
    assert run.data.params["epochs"] == "100000" and run.data.tags["dkan.resumed.epochs"] == str(epochs)
    points = mlflow.MlflowClient().get_metric_history(run_id, "valid/average_precision")
    assert {point.step for point in points} == {each["step"] for each in again.history}


@pytest.mark.parametrize(
    ("error", "status"), [(SystemExit(143), "KILLED"), (KeyboardInterrupt(), "KILLED"), (ValueError("a bug"), "FAILED")]
)
def test_run_that_does_not_end_in_order_has_that_status(
    error: BaseException, status: str, mlflow: Any, tracked_run: TrackedRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dkan_core.tracking.background.LAST_SECONDS", {})

    def fail() -> None:
        with follow_run(tracked_run):
            raise error

    with pytest.raises(type(error)):
        fail()
    record = json.loads((tracked_run.folder / "mlflow.json").read_text())
    assert mlflow.MlflowClient().get_run(record["run_id"]).info.status == status


def test_pod_that_takes_the_place_of_another_finds_its_run_beside_the_checkpoints(
    mlflow: Any, tracked_run: TrackedRun, tmp_path: Path
) -> None:
    ids = []
    for pod in ("first", "second"):
        (tmp_path / pod).mkdir()
        run = replace(
            tracked_run, folder=tmp_path / pod, checkpoints=str(tmp_path / "kept"), is_resumed=pod == "second"
        )
        with follow_run(run) as tracker:
            tracker.finished(END)
        ids.append(json.loads((tmp_path / pod / "mlflow.json").read_text())["run_id"])
    assert ids[0] == ids[1]


def test_variables_of_mlflow_choose_experiment_and_run(
    mlflow: Any, tracked_run: TrackedRun, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def follow() -> Any:
        with follow_run(tracked_run) as tracker:
            tracker.finished(END)
        return json.loads((tracked_run.folder / "mlflow.json").read_text())

    client = mlflow.MlflowClient()
    monkeypatch.setenv("MLFLOW_EXPERIMENT_NAME", "flights")
    experiment = follow()["experiment_id"]
    assert client.get_experiment(experiment).name == "flights"
    mine = client.create_run(experiment).info.run_id
    monkeypatch.setenv("MLFLOW_RUN_ID", mine)
    assert follow()["run_id"] == mine and "dkan.version" in client.get_run(mine).data.tags
    client.delete_run(mine)
    monkeypatch.setenv("MLFLOW_RUN_ID", mine)  # MLflow removes it at the end of a run
    assert follow()["run_id"] != mine and "an update failed" not in caplog.text


def test_run_that_is_active_in_a_notebook_is_the_parent(mlflow: Any, tracked_run: TrackedRun) -> None:
    with mlflow.start_run() as outer, follow_run(tracked_run) as tracker:
        tracker.finished(END)
    record = json.loads((tracked_run.folder / "mlflow.json").read_text())
    tags = mlflow.MlflowClient().get_run(record["run_id"]).data.tags
    assert tags[PARENT_TAG] == outer.info.run_id and mlflow.active_run() is None


def test_members_of_a_sweep_that_begin_at_once_have_one_parent(mlflow: Any) -> None:
    client = mlflow.MlflowClient()
    experiment = client.create_experiment("sweep")
    members = [client.create_run(experiment).info.run_id for _ in range(4)]
    together = threading.Barrier(3)

    class Late:
        """Creates a parent only when three members have found none."""

        def __getattr__(self, name: str) -> Any:
            return getattr(client, name)

        def create_run(self, *arguments: Any, **options: Any) -> Any:
            together.wait()
            return client.create_run(*arguments, **options)

    threads = [
        threading.Thread(target=join_sweep, args=(Late(), member, experiment, "night")) for member in members[:3]
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    join_sweep(client, members[3], experiment, "night")
    for member in members:  # as each does at its end
        join_sweep(client, member, experiment, "night")
    (parent,) = client.search_runs([experiment], f"tags.`{SWEEP_TAG}` = 'night'")
    assert {client.get_run(member).data.tags[PARENT_TAG] for member in members} == {parent.info.run_id}


def test_runs_of_a_sweep_are_nested(
    mlflow: Any, tracked_run: TrackedRun, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv(VARIABLE, "pipeline's run/1")
    parents = set()
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        with follow_run(replace(tracked_run, folder=tmp_path / name)) as tracker:
            tracker.finished(END)
        record = json.loads((tmp_path / name / "mlflow.json").read_text())
        parents.add(mlflow.MlflowClient().get_run(record["run_id"]).data.tags[PARENT_TAG])
    (parent,) = parents
    assert mlflow.MlflowClient().get_run(parent).info.status == "FINISHED"


def test_server_that_talks_nonsense_is_one_warning(
    mlflow: Any, tracked_run: TrackedRun, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", mlflow.get_tracking_uri() + "/health")  # says OK to everything
    with follow_run(tracked_run) as tracker:
        tracker.evaluation(evaluation_at(1))
        tracker.finished(END)
    assert len([record for record in caplog.records if record.levelno >= logging.WARNING]) == 1
