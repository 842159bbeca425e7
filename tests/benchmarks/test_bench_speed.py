"""The benchmark of whole runs: commands are really run, and every process of theirs counts."""

from pathlib import Path

import pyarrow.parquet as pq
import pytest
import typer

from benchmarks import speed
from benchmarks.quality.data import ROOT, DataSet, stage
from benchmarks.quality.runner import Results, Settings
from dkan_core import ConfigError
from tests.benchmarks.test_quality import LABELS, rows

SETTINGS = Settings(threads=1, max_cpu_seconds=None)


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> DataSet:
    folder = tmp_path_factory.mktemp("speed")
    pq.write_table(rows(), folder / "rows.parquet")
    return stage(folder / "rows.parquet", folder / "staged", LABELS)


def test_whole_runs_are_compared_on_the_same_rows(data: DataSet, tmp_path: Path) -> None:
    ours = speed.run_dkan(data, ROOT, 0, SETTINGS, tmp_path)
    theirs = speed.run_reference(data, "logistic", 0, SETTINGS, Results(tmp_path))
    # Of training, importing torch alone takes more.
    assert (
        0.1 < ours["prepare"] < ours["train"]
        and ours["seconds"] > 0.1
        and ours["cpu_seconds"] == ours["prepare"] + ours["train"]
    )
    assert all(0.5 < cost["average_precision"] < 1 and cost["cpu_seconds"] > 0.1 for cost in (ours, theirs))
    assert not list(tmp_path.glob("run-*"))


def test_failed_command_and_unknown_reference_are_named(data: DataSet, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="nowhere"):
        speed.cpu_seconds(["verify", str(tmp_path / "nowhere")], ROOT, 1)
    with pytest.raises(typer.Exit) as exit_of:
        speed.main([Path(data.path("train"))], reference="forest", out=tmp_path)
    assert exit_of.value.exit_code == 2


def test_first_turn_is_on_the_smallest_set_and_does_not_count(data: DataSet) -> None:
    large = DataSet(**{**vars(data), "name": "large", "rows": {"train": 10_000}})
    found = [(seed, each.name, counts) for seed, each, counts in speed.turns([large, data], 2)]
    counted = [(seed, name, True) for seed in (0, 1) for name in ("large", data.name)]
    assert found == [(0, data.name, False), *counted]


def test_table_has_medians_ratios_and_precision() -> None:
    theirs = [{"cpu_seconds": seconds, "average_precision": 0.5} for seconds in (1.0, 2.0, 9.0)]
    costs = {"cpu_seconds": 5.0, "prepare": 1.0, "train": 4.0, "seconds": 3.0}
    ours = [{**costs, "average_precision": ap} for ap in (0.4, 0.5, 0.6)]
    row = {
        "set": "rows",
        "rows": 1000,
        "medians": {"lightgbm": 2.0, "dkan": 5.0},
        "ratios": {"dkan": 2.5},
        "turns": {"lightgbm": theirs, "dkan": ours},
    }
    text = speed.markdown([row], "lightgbm", {"dkan": 2.5})
    assert "| rows | 1,000 | 2.0 | 5.0 (1.0 + 4.0) | 3.0 | 2.50 | 0.5000 ± 0.0000 | 0.5000 ± 0.1000 |" in text
    assert text.endswith("Geometric mean of the ratios: dkan 2.50.")
