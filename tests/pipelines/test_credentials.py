"""Steps as they are compiled, in a container's environment: the launcher's credentials are not those of dkan."""

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import fsspec
import pytest

from dkan_core.utils.storage.credentials import OWN_PREFIX
from pipelines.compiled import DEFAULT, package_of
from pipelines.lint.documents import read_documents
from tests import warm_python

pytestmark = pytest.mark.s3

LAUNCHERS = {
    "AWS_ACCESS_KEY_ID": "the-launchers",
    "AWS_SECRET_ACCESS_KEY": "the-launchers",
    "AWS_SESSION_TOKEN": "of the role of its pod",
    "AWS_ENDPOINT_URL": "http://127.0.0.1:9",
}


@pytest.fixture
def container(s3: str) -> dict[str, str]:
    """Return an environment with what leads to the bucket under dkan's names, and something else under the usual."""
    ours = {f"{OWN_PREFIX}{name}": value for name, value in os.environ.items() if name.startswith("AWS_")}
    # The compiled command says python3.
    path = f"{Path(warm_python.executable()).parent}{os.pathsep}{os.environ['PATH']}"
    return {**os.environ, **LAUNCHERS, **ours, "PATH": path}


def run_step(name: str, folder: Path, env: dict[str, str], inputs: dict[str, str], **arguments: Any) -> Any:
    """Run the command of a step as Kubeflow's launcher does; return the finished process."""
    executors = read_documents(package_of(DEFAULT))[0]["deploymentSpec"]["executors"]
    container = executors[f"exec-{name.replace('_', '-')}"]["container"]
    component = read_documents(package_of(DEFAULT))[0]["components"][f"comp-{name.replace('_', '-')}"]

    def artifacts(uris: dict[str, str]) -> dict[str, Any]:
        return {
            key: {"artifacts": [{"name": key, "uri": uri, "metadata": {}, "type": {"instanceSchema": ""}}]}
            for key, uri in uris.items()
        }

    outputs = {key: str(folder / key) for key in component["outputDefinitions"]["artifacts"]}
    described = {
        "inputs": {"artifacts": artifacts(inputs), "parameterValues": arguments},
        "outputs": {"artifacts": artifacts(outputs), "outputFile": str(folder / "output.json")},
    }
    words = [*container["command"], *(word.replace("{{$}}", json.dumps(described)) for word in container["args"])]
    return subprocess.run(words, env=env, capture_output=True, text=True, check=False)


def test_steps_read_and_write_with_their_own_credentials(
    s3: str, source: Path, container: dict[str, str], tmp_path: Path
) -> None:
    bucket = fsspec.filesystem("s3")
    bucket.put_file(str(source), f"{s3}/raw/rows.parquet")
    places = {"data_uri": f"{s3}/raw", "prepared_uri": f"{s3}/prepared", "label": "label"}
    plain = {name: value for name, value in container.items() if not name.startswith(OWN_PREFIX)}
    (tmp_path / "plain").mkdir()
    refused = run_step("prepare_parquet", tmp_path / "plain", plain, {}, **places)
    assert refused.returncode != 0 and "s3://bucket" in refused.stderr, "the usual ones lead nowhere"
    prepared = run_step("prepare_parquet", tmp_path, container, {}, **places)
    assert prepared.returncode == 0, prepared.stderr
    # Checkpoints are written by the launcher of the run, data are read by its workers.
    settings = {"epochs": 1, "hidden": "8", "checkpoint_uri": f"{s3}/checkpoints", "num_gpus": "0"}
    trained = run_step("train_fastkan", tmp_path, container, {"prepared": str(tmp_path / "prepared")}, **settings)
    assert trained.returncode == 0, trained.stderr
    bucket.invalidate_cache()
    assert bucket.find(f"{s3}/checkpoints") and (tmp_path / "model" / "metrics.json").exists()
