"""The benchmark of the whole way: its rows, what it sees of processes, and its arithmetic."""

import sys
from pathlib import Path

import numpy as np
import pytest

from benchmarks.end_to_end import batches, markdown, watch, whole, write_rows

# A process that holds 200 MB, in a child of its own.
HOLD = "import time; held = bytearray(b'x') * 200_000_000; time.sleep(1); print('{\"average_precision\": 0.5}')"
CHILD = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {HOLD!r}], check=True)"


def test_rows_have_three_splits_and_a_label_that_can_be_learned(tmp_path: Path) -> None:
    write_rows(tmp_path / "rows.parquet", 3000, 28)
    x_NF, label_N = whole(tmp_path / "rows.parquet", "train")
    assert x_NF.shape == (len(label_N), 28) and 1900 < len(label_N) < 2300
    assert 0.1 < label_N.mean() < 0.5
    assert np.corrcoef(np.abs(x_NF[:, 1]), label_N)[0, 1] > 0.1
    assert sum(len(y) for split in ("valid", "test") for _, y in batches(tmp_path / "rows.parquet", split)) > 700


def test_memory_and_time_of_all_processes_count() -> None:
    result = watch([sys.executable, "-c", CHILD])
    assert result["peak_bytes"] > 200e6
    assert result["cpu_seconds"] > 0 and result["seconds"] > 1
    assert result["average_precision"] == 0.5


def test_failures_show_what_was_printed() -> None:
    with pytest.raises(RuntimeError, match="no such rows"):
        watch([sys.executable, "-c", "raise SystemExit('no such rows')"])


def test_the_estimate_adds_what_a_row_costs_between_the_sizes() -> None:
    small, large = ({"cpu_seconds": cpu, "seconds": cpu / 2, "peak_bytes": 1e9} for cpu in (10.0, 30.0))
    table = markdown([1000, 3000], [{"dkan prepare": small}, {"dkan prepare": large}], 10_000)
    assert table.splitlines()[-1] == "| dkan prepare | 10 | 5 | 1,000 |  | 30 | 15 | 1,000 |  | 100 | 50 |"
