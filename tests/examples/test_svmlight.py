"""``examples/svmlight.py``: every row with its ids, in blocks of any size."""

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from scipy.sparse import csr_matrix
from sklearn.datasets import dump_svmlight_file

from examples import svmlight
from tests.data.sparse_tables import make_ones


@pytest.mark.parametrize("block", [97, 1 << 20])
def test_every_row_has_its_ids(block: int, tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr(svmlight, "BLOCK_BYTES", block)
    ones_NV = make_ones(200)
    label_N = np.where(ones_NV[:, 0], 1, -1)
    dump_svmlight_file(csr_matrix(ones_NV.astype(float)), label_N, str(tmp_path / "rows.svm"), zero_based=True)
    svmlight.convert(tmp_path / "rows.svm", tmp_path / "rows.parquet")
    rows = pq.read_table(tmp_path / "rows.parquet")
    assert rows["label"].to_pylist() == (label_N > 0).astype(int).tolist()
    assert rows["ids"].to_pylist() == [np.flatnonzero(ones_V).tolist() for ones_V in ones_NV]


def test_other_values_than_ones_are_refused_unless_told(tmp_path: Path) -> None:
    (tmp_path / "rows.svm").write_text("1 3:0.5 7:1\n-1 2:0\n")
    with pytest.raises(ValueError, match=r"holds the value 0\.5; expected 0 or 1, or set --nonzero"):
        svmlight.convert(tmp_path / "rows.svm", tmp_path / "rows.parquet")
    svmlight.convert(tmp_path / "rows.svm", tmp_path / "rows.parquet", nonzero=True)
    assert pq.read_table(tmp_path / "rows.parquet")["ids"].to_pylist() == [[3, 7], []]
