"""The benchmark of explaining, evaluating and scoring runs, on a few rows."""

import subprocess
import sys
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from benchmarks.inference import HERE, commands_of, measure_commands, measure_scoring
from tests import warm_python
from tests.onnx_export.models import random_model, table


def test_commands_of_two_checkouts_take_turns() -> None:
    found = measure_commands({"help": ["--help"]}, [HERE, HERE], turns=2)
    assert list(found) == ["help"] and [len(seconds) for seconds in found["help"]] == [2, 2]
    assert all(0 < second < 60 for seconds in found["help"] for second in seconds)
    with pytest.raises(subprocess.CalledProcessError):
        measure_commands({"wrong": ["explore"]}, [HERE], turns=1)


def test_commands_can_run_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", warm_python.executable())
    pq.write_table(table(), tmp_path / "rows.parquet")
    random_model(tmp_path / "model")
    commands = commands_of(tmp_path / "model", tmp_path / "prepared", tmp_path / "rows.parquet", tmp_path)
    assert all("--overwrite" in words for words in commands.values())
    assert len(measure_commands({"predict": commands["predict"]}, [HERE], turns=2)["predict"][0]) == 2


def test_scoring_is_measured_in_rows_of_a_cpu_second(tmp_path: Path) -> None:
    pq.write_table(table(), tmp_path / "rows.parquet")
    found = measure_scoring(random_model(tmp_path / "model"), pq.read_table(tmp_path / "rows.parquet"), "a", turns=1)
    assert found["dkan"] > 0
