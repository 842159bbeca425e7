"""The folds of a data set leave its test rows out, and test on rows that differ."""

import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from benchmarks import splits
from benchmarks.splits import MAX_FOLDS, without_test


def test_parts_of_a_fold_are_disjoint_and_without_the_test_rows() -> None:
    rows = pa.table({"number": range(5_000)})
    folds = [without_test(rows, fold) for fold in range(MAX_FOLDS)]
    held_out = [{*table.filter(pc.field("split") != "train")["number"].to_pylist()} for table in folds]
    kept = {*folds[0]["number"].to_pylist()}
    assert all({*table["number"].to_pylist()} == kept for table in folds)
    assert set.union(*held_out) == kept and sum(map(len, held_out)) == len(kept)
    assert 0.78 < len(kept) / len(rows) < 0.82


def test_every_fold_of_a_file_is_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pq.write_table(pa.table({"number": range(900), "label": [0, 1] * 450}), tmp_path / "rows.parquet")
    command = ["splits", str(tmp_path / "rows.parquet"), "--folds", "2", "--out", str(tmp_path / "folds")]
    monkeypatch.setattr(sys, "argv", command)
    splits.main()
    written = sorted((tmp_path / "folds").iterdir())
    assert [path.name for path in written] == ["rows-0.parquet", "rows-1.parquet"]
    assert {*pq.read_table(written[1])["split"].to_pylist()} == {"train", "valid", "test"}
