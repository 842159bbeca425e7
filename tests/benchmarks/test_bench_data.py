"""The benchmark of data: its processes measure themselves, at two sizes."""

import math
from pathlib import Path

from benchmarks.data import loading
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


def test_loaders_are_compared_on_the_same_rows(tmp_path: Path) -> None:
    results = loading.measure_loading(tmp_path, features=3, rows=3000, turns=1)
    kinds = [f"dkan, {dtype}, {place}" for dtype in ("float32", "uint8") for place in ("memory", "disk")]
    assert [each["loader"] for each in results][:6] == [*kinds, loading.MEMCPY, loading.TORCH]
    assert len({each["rows"] for each in results}) == 1 and results[0]["rows"] > 1900
    by_loader = {each["loader"]: each for each in results}
    assert by_loader[loading.MEMCPY]["of_memcpy"] == by_loader[loading.TORCH]["of_torch"] == 1
    assert all(math.isfinite(each["rows_per_cpu_second"]) and each["of_memcpy"] > 0 for each in results)
    table = loading.markdown(results)
    assert f"| {loading.TORCH} | 3 | " in table
