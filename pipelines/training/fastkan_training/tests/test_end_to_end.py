"""The compiled pipeline, run on this machine from raw Parquet to the report."""

import hashlib
import json
import math
import re
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from sklearn.datasets import load_breast_cancer

from tests import warm_python
from tests.registry import registry_server, versions

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[4]


def command(out: Path, *parameters: str) -> list[str]:
    words = [word for parameter in parameters for word in ("--param", parameter)]
    return ["-m", "pipelines", "run", "--out", str(out), *words]


@pytest.fixture(scope="module")
def raw(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """569 tumours, 10 measurements each; label 1 is malignant."""
    data = load_breast_cancer()
    table = pa.table(dict(zip(data.feature_names[:10], data.data.T[:10], strict=True)))
    path = tmp_path_factory.mktemp("raw") / "tumours.parquet"
    pq.write_table(table.append_column("malignant", pa.array(1 - data.target, pa.int8())), path)
    return path


@pytest.fixture(scope="module")
def run(raw: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What the run printed and left behind."""
    out = tmp_path_factory.mktemp("out")
    training = ("label=malignant", "split=60/20/20", "epochs=30", "batch_size=64", "members=1")
    with registry_server(tmp_path_factory.mktemp("registry")) as registry:
        publishing = (f"publish_uri={out / 'models' / '{date}' / 'tumours'}", f"registry_url={registry}")
        process = warm_python.run(command(out, f"data_uri={raw}", *training, *publishing), ROOT)
        assert process.returncode == 0, process.stdout + process.stderr
        registered = versions(registry, "tumours")
    printed = dict(re.findall(r"^(model|report|test AP|published): +(.+)$", process.stdout, re.MULTILINE))
    files = out.glob("*/*/executor_output.json")
    return {"printed": printed, "registered": registered} | {
        path.parent.name: json.loads(path.read_text()) for path in files
    }


def metadata(run: dict[str, Any], task: str, artifact: str) -> dict[str, Any]:
    found: dict[str, Any] = run[task]["artifacts"][artifact]["artifacts"][0]["metadata"]
    return found


def test_average_precision_is_high_and_printed(run: dict[str, Any]) -> None:
    average_precision = run["evaluate-fastkan"]["parameterValues"]["average_precision"]
    assert average_precision > 0.9
    assert run["printed"]["test AP"] == f"{average_precision:.4f}"
    assert metadata(run, "train-fastkan", "metrics")["validation_average_precision"] > 0.9
    assert "run ended (" in (Path(run["printed"]["model"]).parent / "logs" / "train.log").read_text()


def test_approved_model_is_published_and_registered(run: dict[str, Any]) -> None:
    (version,) = run["registered"]
    (artifact,) = version["artifacts"]
    published = Path(artifact["uri"].removeprefix("file://"))
    assert str(published) == run["printed"]["published"]
    assert published.name == "tumours" and (published / "model.safetensors").is_file()
    assert version["plain"]["test_average_precision"] == run["evaluate-fastkan"]["parameterValues"]["average_precision"]
    assert artifact["modelSourceKind"] == "kfp" and artifact["modelSourceId"] and "{{" not in artifact["modelSourceId"]


def test_report_is_one_page_that_needs_no_network(run: dict[str, Any]) -> None:
    report = Path(run["printed"]["report"])
    assert report.is_absolute() and report.name == "report.html"
    text = report.read_text()
    assert "<svg" in text
    assert not re.search(r"(?:src|href)=\"?https?:", text)


def test_model_is_a_whole_one(run: dict[str, Any]) -> None:
    names = {path.name for path in Path(run["printed"]["model"]).iterdir()}
    assert {"model.safetensors", "config.json", "preprocessor.json"} <= names


def test_roc_curve_goes_from_corner_to_corner(run: dict[str, Any]) -> None:
    points = metadata(run, "evaluate-fastkan", "classification")["confidenceMetrics"]
    assert 2 <= len(points) <= 200
    assert all(math.isfinite(value) for point in points for value in point.values())
    rates = [(point["falsePositiveRate"], point["recall"]) for point in points]
    assert rates == sorted(rates)
    assert (rates[0], rates[-1]) == ((0, 0), (1, 1))


def test_confusion_matrix_counts_every_test_row(run: dict[str, Any]) -> None:
    matrix = metadata(run, "evaluate-fastkan", "classification")["confusionMatrix"]
    assert [category["displayName"] for category in matrix["annotationSpecs"]] == ["negative", "positive"]
    total = sum(sum(row["row"]) for row in matrix["rows"])
    assert total == metadata(run, "prepare-parquet", "prepared")["test_rows"]
    assert total == metadata(run, "evaluate-fastkan", "metrics")["rows"]


def test_pipeline_continues_from_a_model(run: dict[str, Any], raw: Path, tmp_path: Path) -> None:
    """The label is the model's, and so is the architecture."""
    start = f"initial_model_uri={run['printed']['model']}"
    settings = (f"data_uri={raw}", start, "epochs=1", "batch_size=64", "label=")
    process = warm_python.run(command(tmp_path / "out", *settings), ROOT)
    assert process.returncode == 0, process.stdout + process.stderr
    (metrics,) = (tmp_path / "out").glob("*/train-fastkan/model/metrics.json")
    training = json.loads(metrics.read_text())["training"]
    weights = Path(run["printed"]["model"]) / "model.safetensors"
    assert training["init_from"] == f"sha256:{hashlib.sha256(weights.read_bytes()).hexdigest()}"


def test_failing_step_fails_the_run_and_is_named(raw: Path, tmp_path: Path) -> None:
    process = warm_python.run(command(tmp_path / "out", f"data_uri={raw}", "label=benign"), ROOT)
    assert process.returncode == 1
    assert "prepare-parquet" in process.stderr
    # The cause is in the last line, too: a log of several screens may stand before it.
    assert "label column 'benign' does not exist" in process.stderr.strip().splitlines()[-1]
    assert "benign" in process.stdout, "the step's own error is shown"
    assert "test AP" not in process.stdout


def test_wrong_setting_of_the_training_fails_before_preparation(raw: Path, tmp_path: Path) -> None:
    settings = (f"data_uri={raw}", "label=malignant", "model_kind=additive", "monotone=mean size:+")
    process = warm_python.run(command(tmp_path / "out", *settings), ROOT)
    assert process.returncode == 1
    assert "monotone: 'mean size' is not a numeric column of the data" in process.stderr.strip().splitlines()[-1]
    assert not [*(tmp_path / "out").glob("*/prepare-parquet")]
