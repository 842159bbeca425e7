"""The lifecycle of a model on one machine, with all servers involved.

    python -m examples.lifecycle [OUT]

Prepares a sample of the flights, trains while logging to MLflow and to the status endpoint of a TrainJob, evaluates,
passes the gate, publishes, registers, serves the registered model, and compares its answers with those of ``dkan
predict``. MLflow and ``dkan serve`` are the real servers; the status endpoint uses the schema of Kubeflow Trainer 2.2;
the registry is a simulation (see ``registry_server.py``).
"""

import argparse
import importlib.util
import json
import logging
import os
import shutil
import signal
import sys
import time
import urllib.parse
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from dkan_core import (
    DkanError,
    GateError,
    PrepareConfig,
    TrainConfig,
    evaluate,
    predict,
    prepare,
    publish,
    register,
    train,
)
from examples.flights import ExampleError, flights_table, package_data
from examples.lifecycle.processes import Server, ServerError, free_port, running
from examples.lifecycle.status_server import StatusEndpoint, status_endpoint

OUT = Path("build/lifecycle")
NAME = "late"

# Every 16th flight is used: enough to learn something in seconds.
STEP = 16
# Rows of the test split to send to the server.
ROWS = 300
SETTINGS = TrainConfig(hidden=(32,), members=1, epochs=4, batch_size=256, workers=1, device="cpu", seed=1)

# That of random scores is the share of late flights, 0.16.
MIN_AVERAGE_PRECISION = 0.25
# The same numbers as JSON text: identical except for rounding in the text.
TOLERANCE = 1e-6

ASK_SECONDS = 60.0

logger = logging.getLogger("lifecycle")


class LifecycleError(Exception):
    """A step did not have the expected result; the message says which."""


def main() -> int:
    """Run the command line; returns the exit code."""
    parser = argparse.ArgumentParser(description="Show the lifecycle of a model on this machine, with all its servers.")
    parser.add_argument("out", type=Path, nargs="?", default=OUT, help=f"folder to write to, replaced; default: {OUT}")
    out: Path = parser.parse_args().out.absolute()
    handler = logging.StreamHandler(sys.stdout)
    handler.setFormatter(logging.Formatter("%(message)s"))
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    # As with Ctrl-C: the servers end with their context managers.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    try:
        show(out)
    except (DkanError, ExampleError, LifecycleError, ServerError, OSError) as error:
        logger.error("error: %s", error)
        return 1
    except KeyboardInterrupt:
        logger.error("interrupted; every server has ended")
        return 130
    return 0


def show(out: Path) -> None:
    """Run all steps, and print what each server has.

    Args:
        out: Folder for all output.
    """
    started = time.monotonic()
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir(parents=True)
    # Before the servers start: pandas turns a signal during reading into its own error.
    test = _write_flights(out)
    with ExitStack() as servers:
        # The servers start while the data are prepared.
        mlflow = servers.enter_context(_mlflow(out))
        registry = servers.enter_context(_registry(out))
        status = servers.enter_context(status_endpoint(out))
        _say("prepare", "%s rows in %s", f"{_prepare(out):,}", out / "prepared")
        mlflow_address = mlflow.wait_for_line(r"(http://127\.0\.0\.1:\d+)")
        with _environment({"MLFLOW_TRACKING_URI": mlflow_address, **status.variables}):
            trained = train(out / "prepared", out / "run", SETTINGS)
        _say("train", "validation average precision %.4f in %s", trained.average_precision, trained.model)
        _say("  MLflow", "%s", _logged(mlflow_address, out))
        _say("  TrainJob", "%s", _posted(status))
        metrics = _publish(out)
        registry_address = registry.wait_for_line(r"(http://127\.0\.0\.1:\d+)")
        _say("register", "%s", register(out / "models" / NAME, registry_address, metrics=metrics))
        uri = _registered(registry_address)
        with _serving(uri, out) as server:
            port = server.wait_for_line(r"Uvicorn running on http://[\w.]+:(\d+)")
            _compare(f"http://127.0.0.1:{port}", uri, test, out)
    _say("done", "in %.0f s; every server has ended", time.monotonic() - started)


def _say(what: str, text: str, *values: object) -> None:
    logger.info("%-11s %s", what, text % values)


def _write_flights(out: Path) -> Path:
    """Write a sample of the flights, and some of its test rows without label to a file, which is returned."""
    table = flights_table(package_data())
    sample = table.take(np.arange(0, len(table), STEP))
    (out / "flights").mkdir()
    pq.write_table(sample, out / "flights" / "sample.parquet")
    held_out = sample.filter(pc.equal(sample["split"], "test"))
    pq.write_table(held_out.slice(0, ROWS).drop_columns(["label", "split", "date"]), out / "rows.parquet")
    return out / "rows.parquet"


def _prepare(out: Path) -> int:
    settings = PrepareConfig(label=("label",), split_column="split", group="date", seed=1)
    prepared = prepare(out / "flights", out / "prepared", settings)
    return sum(split.rows for split in prepared.splits.values())


def _publish(out: Path) -> dict[str, float]:
    """Evaluate on the test split, check the gate, and publish with the test metrics, which are returned."""
    evaluation = evaluate(out / "run", out / "prepared", out / "eval", explain=False, overwrite=True)
    metrics = evaluation.scalars()
    found = metrics["average_precision"]
    _say("evaluate", "test average precision %.4f; report in %s", found, out / "eval" / "report.html")
    if found < MIN_AVERAGE_PRECISION:
        raise GateError(f"average precision {found:.4f}: is below {MIN_AVERAGE_PRECISION}; the model is not published")
    publish(out / "run", out / "models" / NAME, metrics)
    _say("publish", "%s, past the gate of %s", out / "models" / NAME, MIN_AVERAGE_PRECISION)
    return metrics


@contextmanager
def _environment(variables: Mapping[str, str]) -> Iterator[None]:
    """Set environment variables for a block, as in the pod of a TrainJob."""
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def _mlflow(out: Path) -> AbstractContextManager[Server]:
    if importlib.util.find_spec("flask") is None:
        raise ExampleError("the server of MLflow is not installed; install it with: pip install mlflow")
    command = [sys.executable, "-m", "mlflow", "server", "--host", "127.0.0.1", "--port", str(free_port())]
    command += ["--workers", "1", "--backend-store-uri", f"sqlite:///{out}/mlflow.db"]
    command += ["--artifacts-destination", str(out / "artifacts")]
    quiet = {"MLFLOW_DISABLE_TELEMETRY": "true", "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false"}
    return running("mlflow", command, out, quiet)


def _registry(out: Path) -> AbstractContextManager[Server]:
    script = Path(__file__).with_name("registry_server.py")
    return running("registry", [sys.executable, str(script), "--database", str(out / "registry.sqlite")], out)


def _serving(uri: str, out: Path) -> AbstractContextManager[Server]:
    command = [sys.executable, "-m", "dkan_core", "serve", uri, "--name", NAME, "--host", "127.0.0.1", "--port", "0"]
    return running("serve", command, out, {"NO_COLOR": "1"})


def _logged(address: str, out: Path) -> str:
    """Describe what MLflow has about the run."""
    run_id = json.loads((out / "run" / "mlflow.json").read_text())["run_id"]
    run = _ask(f"{address}/api/2.0/mlflow/runs/get?run_id={run_id}")["run"]
    if run["info"]["status"] != "FINISHED":
        raise LifecycleError(f"MLflow: run {run_id} is {run['info']['status']}, expected FINISHED")
    parameters, metrics = len(run["data"]["params"]), len(run["data"]["metrics"])
    models = [output["model_id"] for output in run.get("outputs", {}).get("model_outputs", [])]
    if not models:
        raise LifecycleError(f"MLflow: run {run_id} has no model")
    return f"run {run_id} {run['info']['status']}: {parameters} parameters, {metrics} metrics, model {models[0]}"


def _posted(status: StatusEndpoint) -> str:
    """Describe what was posted to the status of the TrainJob."""
    if not status.posts or status.posts[-1]["progressPercentage"] != 100:
        raise LifecycleError(f"TrainJob: the last of {len(status.posts)} posts does not say that training is complete")
    last = {metric["name"]: metric["value"] for metric in status.posts[-1]["metrics"]}
    return f"{len(status.posts)} posts, the last: 100 %, best average precision {last['best_average_precision']}"


def _registered(address: str) -> str:
    """Print what the registry has, and return the URI of the model in it."""
    api = f"{address}/api/model_registry/v1"
    model = _ask(f"{api}/registered_model?{urllib.parse.urlencode({'name': NAME})}")
    (version,) = _ask(f"{api}/registered_models/{model['id']}/versions")["items"]
    (artifact,) = _ask(f"{api}/model_versions/{version['id']}/artifacts")["items"]
    test = version["customProperties"]["test_average_precision"]["double_value"]
    kind = f"{artifact['modelFormatName']} {artifact['modelFormatVersion']}"
    _say("  registry", "%s %s: test average precision %.4f, format %s", NAME, version["name"], test, kind)
    return str(artifact["uri"])


def _compare(address: str, uri: str, test: Path, out: Path) -> None:
    """Compare the answers of the server with the scores of ``predict``."""
    _say("serve", "%s at %s/v1/models/%s:predict", uri, address, NAME)
    predict(uri, test, out / "scores.parquet", overwrite=True)
    expected = pq.read_table(out / "scores.parquet")
    rows = pq.read_table(test)
    answer = _ask(f"{address}/v1/models/{NAME}:predict", {"instances": rows.to_pylist()})
    served = pa.Table.from_pylist(answer["predictions"])
    if served.column_names != expected.column_names or len(served) != len(expected):
        raise LifecycleError(f"served {served.column_names}, {len(served)} rows; predict has {expected.column_names}")
    differences = [np.abs(served[name].to_numpy() - expected[name].to_numpy()).max() for name in served.column_names]
    largest = float(max(differences))
    _say("predict", "%d rows, largest difference between served and dkan predict %.1e", len(rows), largest)
    if not largest <= TOLERANCE:
        raise LifecycleError(f"served and predicted probabilities differ by {largest}, expected at most {TOLERANCE}")


def _ask(url: str, content: Any = None) -> Any:
    """Return the JSON response of a server to GET, or to POST if there is content."""
    body = None if content is None else json.dumps(content).encode()
    request = urllib.request.Request(url, body, {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=ASK_SECONDS) as answer:
        return json.load(answer)


if __name__ == "__main__":
    sys.exit(main())
