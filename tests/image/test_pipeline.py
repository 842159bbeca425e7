"""The whole compiled pipeline in containers, one per step, with a real S3 server for its data."""

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fsspec
import pytest

from pipelines.compiled import DEFAULT, load_pipeline, package_of
from tests.image.build import BUILD_SECONDS, Image
from tests.image.conftest import open_to_all
from tests.image.engine import docker_output

pytestmark = [
    pytest.mark.image,
    pytest.mark.s3,
    pytest.mark.timeout(BUILD_SECONDS + 300),
    # True of every local run: a container gets what the machine has.
    pytest.mark.filterwarnings("ignore:.* have no effect in the current local runner:UserWarning"),
]
WRITTEN = ("prepared_uri", "checkpoint_uri", "publish_uri")
QUICK = {"split_column": "split", "epochs": 2, "members": 1, "hidden": "16"}


@pytest.fixture
def data_uri(s3: str, flights: Path) -> str:
    fsspec.filesystem("s3").put_file(str(flights / "flights.parquet"), f"{s3}/flights/flights.parquet")
    return f"{s3}/flights"


@pytest.fixture
def kept_containers(image: Image, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Iterator[str]:
    """Yield a label whose containers stay until the test has ended.

    kfp lets the engine remove a container at its end, and takes one that is gone too soon to be asked for a success.
    """
    from docker.models.containers import ContainerCollection

    label, start = f"dkan-test={request.node.name}", ContainerCollection.run

    def run(containers: ContainerCollection, **options: Any) -> Any:
        return start(containers, **{**options, "auto_remove": False})

    monkeypatch.setattr(ContainerCollection, "run", run)
    yield label
    for container in docker_output("ps", "--all", "--quiet", "--filter", f"label={label}").split():
        docker_output("rm", "--force", container)


@pytest.fixture
def runner(tmp_path: Path, s3: str, kept_containers: str) -> Iterator[None]:
    """Run pipelines in containers as a cluster does: the image's user, a read-only root, keys from the environment."""
    from kfp import local

    keys = {name: value for name, value in os.environ.items() if name.startswith("AWS_")}
    limits: dict[str, Any] = {"read_only": True, "tmpfs": {"/tmp": ""}, "cap_drop": ["ALL"], "mem_limit": "4g"}
    limits["labels"] = dict([kept_containers.split("=")])
    with open_to_all():
        root = tmp_path / "outputs"
        root.mkdir()
        local.init(
            local.DockerRunner(network_mode="host", environment=keys, **limits),
            pipeline_root=str(root),
            workspace_root=str(tmp_path / "workspace"),
        )
        yield


def run_pipeline(name: str, image: Image, **arguments: Any) -> dict[str, Any]:
    return dict(load_pipeline(package_of(name), image.tag)(**arguments).outputs)


@pytest.mark.usefixtures("runner")
@pytest.mark.parametrize("name", [DEFAULT, "parallel-prepare"])
def test_pipeline_reads_from_a_bucket_and_writes_to_it(image: Image, s3: str, data_uri: str, name: str) -> None:
    places = {parameter: f"{s3}/{parameter}" for parameter in WRITTEN}
    outputs = run_pipeline(name, image, data_uri=data_uri, label="label", **QUICK, **places)
    assert outputs["average_precision"] > 0.16, "better than the share of late flights"
    assert "<svg" in Path(outputs["report"].path).read_text()
    bucket = fsspec.filesystem("s3")
    bucket.invalidate_cache()
    for parameter, place in places.items():
        assert bucket.find(place), f"{parameter}: nothing was written"


@pytest.mark.usefixtures("runner")
def test_smoke_test_passes_its_own_gate_and_publishes(image: Image, s3: str) -> None:
    outputs = run_pipeline("smoke", image, publish_uri=f"{s3}/best")
    assert outputs["approved"] and outputs["average_precision"] > 0.9
    bucket = fsspec.filesystem("s3")
    bucket.invalidate_cache()
    assert "| average_precision | 0.9" in bucket.read_text(f"{s3}/best/README.md").split("test metric")[1]


@pytest.mark.usefixtures("runner")
def test_sweep_hands_on_the_best_entry_and_the_gate_holds(image: Image, s3: str, data_uri: str) -> None:
    places = {parameter: f"{s3}/{parameter}" for parameter in WRITTEN}
    # An additive model beside the networks would make up for the rate of the first.
    entries = [{"learning_rate": 1e-5, "epochs": 1}, {"learning_rate": 0.01, "epochs": 2.0}]
    outputs = run_pipeline(
        "sweep",
        image,
        data_uri=data_uri,
        label="label",
        **QUICK,
        **places,
        sweep=entries,
        min_average_precision=1.0,
        blend=False,
    )
    metrics = json.loads((Path(outputs["model"].path) / "metrics.json").read_text())
    assert metrics["training"]["learning_rate"] == 0.01
    bucket = fsspec.filesystem("s3")
    bucket.invalidate_cache()
    assert not outputs["approved"] and not bucket.find(places["publish_uri"])
    runs = {Path(path).parent.name for path in bucket.find(f"{places['checkpoint_uri']}/fastkan-sweep")}
    assert len(runs) == 2, "runs keep out of each other's way"


@pytest.mark.usefixtures("runner")
def test_failing_component_fails_the_pipeline_and_is_named(
    image: Image, data_uri: str, capfd: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(RuntimeError, match=r"fastkan-training.* finished with status .*FAILURE.*prepare-parquet"):
        run_pipeline(DEFAULT, image, data_uri=data_uri, label="no_such_label", **QUICK)
    assert "no_such_label" in capfd.readouterr().out, "the step's own error is shown"
