"""The comparison of a model with its ONNX file, on a few rows."""

from pathlib import Path

import pyarrow.parquet as pq
import pytest

from tests.onnx_export.models import random_model, table

pytest.importorskip("onnxruntime", reason="needs the onnx extra")


def test_comparison_measures_both_on_the_same_rows(tmp_path: Path) -> None:
    from benchmarks.onnx_export import compare

    pq.write_table(table(), tmp_path / "rows.parquet")
    found = compare(random_model(tmp_path / "model"), [str(tmp_path / "rows.parquet")], limit=500)
    assert (found.rows, found.columns) == (500, 9)
    assert 0 < found.largest_difference <= 1e-5 and 0 < found.megabytes < 1
    assert found.model_rows > 0 and found.graph_rows > 0
    assert str(found).count(" | ") == 6
