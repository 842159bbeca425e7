"""The benchmark of data: its processes measure themselves, at two sizes."""

from pathlib import Path

from benchmarks.data.generated import write_rows
from benchmarks.data.preparation import markdown, measure_preparation
from benchmarks.data.preparations import PREPARATIONS, installed


def test_preparation_is_measured_at_two_sizes(tmp_path: Path) -> None:
    results = measure_preparation(tmp_path, features=2, rows=400, turns=1)
    assert [(each["by"], each["rows"]) for each in results] == [
        (name, rows) for rows in (400, 4000) for name in installed()
    ]
    assert all(each["cpu_seconds"] > 0 and each["peak_bytes"] > 1e7 for each in results)
    table = markdown(results)
    assert "| dkan | 2 | 4,000 |" in table
    assert all(f"{name} is not installed" in table for name in PREPARATIONS if name not in installed())


def test_generated_rows_are_the_same_each_time(tmp_path: Path) -> None:
    first, second = (write_rows(tmp_path / name, 100, 2).read_bytes() for name in ("first", "second"))
    assert first == second
