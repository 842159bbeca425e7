"""The benchmark that compares log-odds with the sum of the terms."""

from pathlib import Path

import pyarrow.parquet as pq
import pytest
import typer

from benchmarks import identity
from tests.additive_data import make_rows

ROWS = 600


def run(folder: Path) -> int:
    """Run the benchmark on the sets of a folder; return its exit code."""
    with pytest.raises(typer.Exit) as ended:
        identity.main([folder])
    return int(ended.value.exit_code)


def test_sets_of_a_folder_are_compared(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pq.write_table(make_rows(ROWS).drop_columns(["other"]), tmp_path / "one.parquet")
    assert run(tmp_path) == 0
    (line,) = (line for line in capsys.readouterr().out.splitlines() if line.startswith("| one |"))
    cells = [cell.strip() for cell in line.strip("|").split("|")]
    assert cells[1] == f"{ROWS:,}" and float(cells[3]) <= 1e-9 and 0 < float(cells[4]) < 1e-4
    # As if the sums were wrong by more than is allowed.
    monkeypatch.setattr(identity, "LIMIT", -1.0)
    assert run(tmp_path) == 1


def test_a_folder_without_sets_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(tmp_path) == 2
    assert "without *.parquet" in capsys.readouterr().err
