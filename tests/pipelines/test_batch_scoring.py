"""The compiled batch scoring, run on this machine: a gate that fails on shifted rows, and one that they pass."""

import json
import subprocess
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from sklearn.metrics import average_precision_score, roc_auc_score

from dkan_core import TrainResult, predict
from tests import warm_python

pytestmark = pytest.mark.slow


ROOT = Path(__file__).parents[2]
FILES = ("a.parquet", "b.parquet", "c.parquet")


@pytest.fixture(scope="module")
def shifted(source: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three files in whose rows one column is twice what it was."""
    folder, rows = tmp_path_factory.mktemp("shifted"), pq.read_table(source)
    index = rows.schema.get_field_index("mean_area")
    rows = rows.set_column(index, "mean_area", pc.multiply(rows["mean_area"], pa.scalar(2.0)))
    for name, start, stop in zip(FILES, (0, 50, 300), (50, 300, 569), strict=True):
        pq.write_table(rows.slice(start, stop - start), folder / name)
    return folder


def run_pipeline(out: Path, **parameters: Any) -> subprocess.CompletedProcess[str]:
    command = ["-m", "pipelines", "run", "--pipeline", "batch-scoring", "--out", str(out)]
    for name, value in parameters.items():
        command += ["--param", f"{name}={value}"]
    return warm_python.run(command, ROOT)


def results_of(out: Path, task: str) -> dict[str, Any]:
    (file,) = out.glob(f"*/{task}/executor_output.json")
    return dict(json.loads(file.read_text()))


def test_date_of_the_run_is_filled_in(trained: TrainResult, source: Path, tmp_path: Path) -> None:
    form = {"model_uri": trained.model, "data_uri": source, "output_uri": tmp_path / "scores" / "{date}"}
    before = datetime.now(UTC).date()
    run = run_pipeline(tmp_path / "run", **form)
    assert run.returncode == 0, run.stdout + run.stderr
    (scores,) = (tmp_path / "scores").iterdir()
    assert before <= date.fromisoformat(scores.name) <= datetime.now(UTC).date()
    assert (scores / "_scoring.json").exists() and (scores / source.name).exists()


def test_gate_fails_on_shifted_rows_and_a_second_run_accepts_them(
    trained: TrainResult, shifted: Path, tmp_path: Path
) -> None:
    scores = tmp_path / "scores"
    form = {"model_uri": trained.model, "data_uri": shifted, "output_uri": scores, "num_parts": 2}
    form |= {"columns": "label", "label": "label"}
    failed = run_pipeline(tmp_path / "first", **form, max_psi=0.5)
    assert failed.returncode == 1 and "complete-scores" in failed.stderr
    assert "GateError: PSI above max_psi 0.5: number 'mean_area' has" in failed.stdout
    assert {path.name for path in scores.iterdir()} == {*FILES, ".work"}
    report = Path(results_of(tmp_path / "first", "summarize-scores")["artifacts"]["report"]["artifacts"][0]["uri"])
    assert "mean_area" in report.read_text(), "why it failed can be seen"

    accepted = run_pipeline(tmp_path / "second", **form, min_average_precision=0.5)
    assert accepted.returncode == 0, accepted.stdout + accepted.stderr
    assert "rows:    569" in accepted.stdout and "report.html" in accepted.stdout
    assert {path.name for path in scores.iterdir()} == {*FILES, "_scoring.json"}
    for name in FILES:
        predict(trained.model, shifted / name, tmp_path / "alone", columns=("label",), overwrite=True)
        assert (scores / name).read_bytes() == (tmp_path / "alone").read_bytes()
    rows = pq.read_table(scores, columns=["label", "label_probability"])
    labels, probabilities = (column.to_numpy() for column in rows.columns)
    logged = results_of(tmp_path / "second", "summarize-scores")["artifacts"]["metrics"]["artifacts"][0]["metadata"]
    assert logged["average_precision"] == pytest.approx(average_precision_score(labels, probabilities), rel=1e-12)
    assert logged["roc_auc"] == pytest.approx(roc_auc_score(labels, probabilities), rel=1e-12)
    assert logged["rows"] == 569 and logged["max_psi"] > 0.5
