"""The component leaves a page, metrics and the largest index, and says whether the data are stable, or fails."""

import json
import math
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from kfp import dsl

from components.deployment.monitor_data import monitor_data
from dkan_core import ConfigError, DataError, GateError, TrainResult


def monitored(
    folder: Path, data: Path, model: str, *, max_psi: float = 0.25, fail: bool = False
) -> tuple[dsl.Metrics, dsl.HTML, dsl.Artifact, tuple[float, bool]]:
    metrics, report, drift = (
        kind(uri=str(folder / name))
        for name, kind in (("metrics", dsl.Metrics), ("report", dsl.HTML), ("drift", dsl.Artifact))
    )
    arguments = (str(data), model, max_psi, fail)
    return metrics, report, drift, monitor_data.python_func(metrics, report, drift, *arguments)


@pytest.fixture
def shifted(source: Path, tmp_path: Path) -> Path:
    table = pq.read_table(source)
    path = tmp_path / "shifted.parquet"
    pq.write_table(table.set_column(0, table.column_names[0], pc.add(table.column(0), pa.scalar(100.0))), path)
    return path


def test_stable_data_pass(trained: TrainResult, source: Path, tmp_path: Path) -> None:
    metrics, report, drift, (max_psi, stable) = monitored(tmp_path, source, str(trained.model))
    assert stable and 0 < max_psi < 0.25 and all(math.isfinite(value) for value in metrics.metadata.values())
    assert metrics.metadata["max_psi"] == max_psi == json.loads(Path(drift.path).read_text())["drift"]["max_psi"]
    assert "mean_radius" in Path(report.path).read_text() and report.uri.endswith("report.html")


def test_drift_is_told_or_fails(trained: TrainResult, shifted: Path, tmp_path: Path) -> None:
    _, report, _, (max_psi, stable) = monitored(tmp_path, shifted, str(trained.model))
    assert not stable and max_psi > 1 and Path(report.path).exists()
    assert monitored(tmp_path / "free", shifted, str(trained.model), max_psi=0)[3] == (max_psi, True)
    with pytest.raises(GateError, match="'mean_radius' has"):
        monitored(tmp_path / "again", shifted, str(trained.model), fail=True)


@pytest.mark.parametrize("limit", [0.0, math.nan])
def test_failing_takes_a_limit(limit: float, trained: TrainResult, source: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=f"fail_on_drift: max_psi must be above 0, got {limit:g}"):
        monitored(tmp_path, source, str(trained.model), max_psi=limit, fail=True)


def test_rows_of_another_kind_are_an_error(trained: TrainResult, tmp_path: Path) -> None:
    pq.write_table(pa.table({"x": [1.0]}), tmp_path / "other.parquet")
    with pytest.raises(DataError, match="column 'mean_radius' is missing"):
        monitored(tmp_path, tmp_path / "other.parquet", str(trained.model))
