"""An additive model goes through the pipeline, evaluation, gate, publishing and serving as any other model does."""

from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from kfp import dsl

from components.deployment.publish_model import publish_model
from components.evaluation.approve_model import approve_model
from components.evaluation.evaluate_fastkan import evaluate_fastkan
from dkan_core import edit, export, predict
from dkan_core.model.saved_model import SavedModel
from tests import warm_python
from tests.additive_data import QUICK, make_rows
from tests.serving.server import needs_kserve, serving

ROOT = Path(__file__).parents[2]

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("additive")


@pytest.fixture(scope="module")
def artifacts(folder: Path) -> Path:
    """Return what the whole pipeline leaves on this machine, a folder for each step."""
    pq.write_table(make_rows().drop_columns(["other"]), folder / "rows.parquet")
    form = {
        "data_uri": folder / "rows.parquet",
        "label": "label",
        "model_kind": "additive",
        "pairs": 1,
        "monotone": "noise:+",
        "members": QUICK.members,
        "epochs": QUICK.epochs,
        "batch_size": QUICK.batch_size,
        "learning_rate": QUICK.learning_rate,
        "strategy": "parameter-server",
        "workers": 2,
    }
    command = ["-m", "pipelines", "run", "--out", str(folder / "out")]
    command += [word for name, value in form.items() for word in ("--param", f"{name}={value}")]
    done = warm_python.run(command, ROOT)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "pairs to learn: x x z" in done.stdout and "test AP: 0." in done.stdout
    (artifacts,) = (folder / "out").iterdir()
    return artifacts


@pytest.fixture(scope="module")
def prepared(artifacts: Path) -> dsl.Dataset:
    return dsl.Dataset(uri=str(artifacts / "prepare-parquet/prepared"))


@pytest.fixture(scope="module")
def run(artifacts: Path) -> dsl.Model:
    return dsl.Model(uri=str(artifacts / "train-fastkan/model"))


@pytest.fixture(scope="module")
def edited(run: dsl.Model, folder: Path) -> Path:
    """Remove a term that counts: a model that is worse."""
    edit(run.path, [{"term": "x", "action": "remove"}], folder / "edited")
    return folder / "edited"


def evaluated(
    prepared: dsl.Dataset, model: dsl.Model, folder: Path, previous: str
) -> tuple[float, float, bool, dsl.Metrics]:
    """Evaluate as the component of the pipeline does; return its outputs, and the metrics of the model."""
    artifacts = [
        dsl.Metrics(uri=str(folder / "metrics")),
        dsl.ClassificationMetrics(uri=str(folder / "classification")),
        dsl.HTML(uri=str(folder / "report")),
        dsl.Markdown(uri=str(folder / "summary.md")),
    ]
    found = evaluate_fastkan.python_func(prepared, model, *artifacts, previous_model_uri=previous)
    return (*found, artifacts[0])


def test_a_better_model_passes_the_gate_and_is_published(
    prepared: dsl.Dataset, run: dsl.Model, edited: Path, tmp_path: Path
) -> None:
    assert SavedModel(Path(run.path)).config.model == "additive"
    precision, earlier, comparable, metrics = evaluated(prepared, run, tmp_path, previous=str(edited))
    assert precision > 0.55 and comparable
    assert approve_model.python_func(precision, 0.5, earlier, comparable)
    report = (tmp_path / "report" / "report.html").read_text(encoding="utf-8")
    assert "Comparison with the previous best model" in report and "<title>x = " in report
    published = dsl.Model(uri=str(tmp_path / "published"))
    publish_model.python_func(run, metrics, published, publish_uri=str(tmp_path / "best"))
    card = (tmp_path / "best" / "README.md").read_text(encoding="utf-8")
    assert "the log-odds are the intercept and their sum" in card
    assert SavedModel(tmp_path / "best").config.additive == SavedModel(Path(run.path)).config.additive


def test_a_model_that_edits_made_worse_does_not_pass(
    prepared: dsl.Dataset, run: dsl.Model, edited: Path, tmp_path: Path
) -> None:
    precision, earlier, comparable, _ = evaluated(prepared, dsl.Model(uri=str(edited)), tmp_path, previous=run.path)
    assert precision < earlier and comparable
    assert not approve_model.python_func(precision, 0.0, earlier, comparable)


@needs_kserve
def test_it_is_served_with_its_terms_as_reasons(run: dsl.Model, tmp_path: Path) -> None:
    rows = make_rows(20, seed=1).drop_columns(["label", "other"])
    pq.write_table(rows, tmp_path / "rows.parquet")
    predict(run.path, tmp_path / "rows.parquet", tmp_path / "scores.parquet", reasons=20)
    scores = pq.read_table(tmp_path / "scores.parquet")
    with serving(run.path, tmp_path / "log") as server:
        asked = {"instances": rows.to_pylist(), "parameters": {"reasons": 20}}
        answer = server.ask("/v1/models/late:predict", asked).content
    found = np.array([row["label_probability"] for row in answer["predictions"]], np.float32)
    np.testing.assert_array_equal(found, scores["label_probability"].to_numpy())
    for row, expected in zip(answer["predictions"], scores["label_reasons"].to_pylist(), strict=True):
        terms = {reason["column"]: reason["log_odds"] for reason in row["label_reasons"]}
        assert terms == pytest.approx({reason["column"]: reason["log_odds"] for reason in expected}, abs=1e-6)
        assert any(" x " in name for name in terms), "a pair is a reason of its own"
        log_odds = answer["baseline_log_odds"]["label"] + sum(terms.values())
        assert 1 / (1 + np.exp(-log_odds)) == pytest.approx(row["label_probability"], abs=1e-5)


def test_onnx_file_gives_its_probabilities(run: dsl.Model, tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime", reason="needs the onnx extra")
    result = export(run.path, tmp_path / "model.onnx")
    assert result.rows >= 512 and result.largest_difference <= 1e-5
