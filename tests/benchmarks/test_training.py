"""The training benchmark: a small exchange with real processes, and the files that figures go to."""

import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from benchmarks.training import exchange, report, schemes
from benchmarks.training.__main__ import Experiment, app
from benchmarks.training.data import stage
from dkan_core import DataError


@pytest.mark.slow
def test_exchange_measures_every_scheme_and_its_figures_become_a_table(tmp_path: Path) -> None:
    rows = exchange.measure(sizes=(8, 4, 1), workers=(2,), rounds=2, steps=3, optimizer=(True,))
    assert [row["scheme"] for row in rows] == list(exchange.SCHEMES)
    assert all(row["wall_ms"] > 0 and row["cpu_ms"] > 0 and len(row["rounds"]) == 2 for row in rows)
    assert rows[0]["wall_ratio"] == rows[0]["cpu_ratio"] == 1
    out = tmp_path / "figures.json"
    report.add(out, "exchange", rows, {"rounds": 2})
    report.add(out, "quality", [{"data": "a", "way": "ring", "average_precision": 0.5}], {})
    shown = CliRunner().invoke(app, ["--show", "--out", str(out)])
    assert shown.exit_code == 0 and "| torch DDP | 2 | AdamW |" in shown.output
    assert "| a | ring | 0.5000 |" in shown.output and "± over seeds" not in shown.output
    report.add(out, "quality", [], {})
    assert report.read(out)["exchange"]["rows"][0]["scheme"] == "parameter server"


def test_process_cpu_is_the_clock_of_that_process() -> None:
    command = "import time\nwhile time.process_time() < 0.2: pass\nprint(flush=True); input()"
    with subprocess.Popen([sys.executable, "-c", command], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        assert 0.2 <= schemes.process_cpu(process.pid) < 1
        process.communicate(b"\n")


def test_every_experiment_has_a_table() -> None:
    assert list(report.TABLES) == [experiment.value for experiment in Experiment]


def test_prepared_data_is_taken_as_it_is(prepared: Path, tmp_path: Path) -> None:
    (found,) = stage([prepared], tmp_path, label="label", rows=0)
    assert found.folder == prepared.absolute() and found.train_rows > 0
    with pytest.raises(DataError, match="nothing"):
        stage([tmp_path / "nothing"], tmp_path, label="label", rows=0)
